//! The integration tests of larderd, one program.

mod common;
#[path = "../../../../clients/larder-client/tests/it/common/face.rs"]
mod face;
mod flash;

mod administration {
    mod commands;
}

mod client {
    mod items;
    mod tls;
}

mod options {
    mod command_line;
    mod config;
    mod documented;
    mod refusals;
    mod suboptions;
}

mod process {
    mod daemon;
    mod descriptors;
    mod life_cycle;
    mod runtimes;
}

mod protocol {
    mod auth;
    mod conformance;
    mod differential;
    mod tls;
    mod udp;
}

mod redis {
    mod differential;
    mod redis_rs;
}

mod stats {
    mod latency;
    mod metrics;
    mod statistics;
}

mod structure {
    mod arrows;
    mod imports;
}
