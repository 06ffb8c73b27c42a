//! The integration tests of larderd, as one program.

#[path = "../../../../clients/larder-client/tests/it/common/any_client.rs"]
mod any_client;
mod common;
mod flash;

mod administration {
    mod dumps;
    mod helpers;
    mod memory;
    mod pages;
    mod watchers;
}

mod client {
    mod fake_server;
    mod items;
    mod logins;
    mod tls;
    mod tls_faults;
}

mod options {
    mod command_line;
    mod config;
    mod documented;
    mod options_page;
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
