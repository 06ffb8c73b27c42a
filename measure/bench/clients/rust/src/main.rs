//! Measures Rust clients of memcached: `larder-bench-clients CLIENT --server HOST:PORT --mode pool
//! ...`
//!
//! docs/client-benchmarks.md defines the arguments and the output lines of all drivers. To add a
//! client, implement `Library` if it blocks threads, or `AsyncLibrary` if it is asynchronous.
#![forbid(unsafe_code)]

mod async_client;
mod larder_client;
mod memcache_clients;
mod tasks;

use clap::{Parser, ValueEnum};
use larder_bench::clients::{Arguments, Error, Threads, measure};
use std::io::stdout;
use std::process::ExitCode;

#[derive(Debug, Parser)]
struct Line {
    client: Client,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Client {
    Memcache,
    MemcacheExp,
    AsyncMemcached,
    LarderTokio,
}

fn main() -> ExitCode {
    let line = Line::parse();
    match run(line.client, &line.arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(client: Client, arguments: &Arguments) -> Result<(), Error> {
    let out = &mut stdout();
    match client {
        Client::Memcache => {
            measure(&Threads::<memcache_clients::Classic>::new(arguments), arguments, out)
        }
        Client::MemcacheExp => {
            measure(&Threads::<memcache_clients::Experimental>::new(arguments), arguments, out)
        }
        Client::AsyncMemcached => {
            let tasks = tasks::Tasks::<async_client::AsyncMemcached>::new(arguments)?;
            measure(&tasks, arguments, out)
        }
        Client::LarderTokio => {
            let tasks = tasks::Tasks::<larder_client::Larder>::new(arguments)?;
            measure(&tasks, arguments, out)
        }
    }
}
