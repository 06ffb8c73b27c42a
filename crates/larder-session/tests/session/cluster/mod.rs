//! Sessions of a server that other servers depend on, or that depends on them.

mod forwarding;
mod holds;
mod read_only;
mod scattering;
