//! Sessions of a server that other servers depend on, or that depends on them.

mod forwarding;
mod holds;
mod leader;
mod read_only;
mod replica_reads;
mod scattering;
mod server_list;
