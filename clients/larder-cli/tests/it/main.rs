//! The integration tests of `larder`, in one program.

mod broken;
#[path = "../../../../measure/larder-bench/tests/it/common/broken_server.rs"]
mod broken_server;
mod clients;
mod cluster;
#[path = "../../../../crates/larder-etcd/tests/common/etcd_server.rs"]
mod etcd_server;
