//! Tests of sessions on members of a cluster: leaders, replicas, and owners of some of the keys.

mod forwarding;
mod holds;
mod leader;
mod moved;
mod read_only;
mod replica_reads;
mod scattering;
mod server_list;
mod to_all;
