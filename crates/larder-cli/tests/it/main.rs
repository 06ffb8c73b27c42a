//! The integration tests of larder, one program.

mod broken;
#[path = "../../../larder-bench/tests/it/common/broken_server.rs"]
mod broken_server;
mod clients;
mod cluster;
#[path = "../../../larder-etcd/tests/common/etcd_server.rs"]
mod etcd_server;
