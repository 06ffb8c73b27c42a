//! The integration tests of larderd, one program.

mod administration;
mod arrows;
mod auth;
mod client;
mod client_tls;
mod common;
mod config;
mod conformance;
mod daemon;
mod descriptors;
mod differential;
mod documented;
#[path = "../../../../clients/larder-client/tests/it/common/face.rs"]
mod face;
mod flash;
mod latency;
mod life_cycle;
mod metrics;
mod options;
mod redis;
mod redis_rs;
mod refusals;
mod runtimes;
mod statistics;
mod suboptions;
mod tls;
mod udp;
