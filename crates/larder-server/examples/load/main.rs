//! Sends requests to a running server and checks the replies, for the Python tests.
//!
//! ```text
//! load ADDRESS set   from=F to=T size=S [size_end=E] [threads=1]
//! load ADDRESS churn from=F to=T size=S window=W share=P    P % of the sets overwrite
//! load ADDRESS probe from=F to=T [size=S]                   every value is checked
//! load ADDRESS soak  seconds=N [threads=24]                 all checks concurrently
//! ```
//! The address is `host:port` or the path of a socket. The keys of the first three commands are
//! `key%010d`; with `size_end`, the size changes linearly from `size` to `size_end`. The output is
//! one line of JSON. The exit status is 1 after an unexpected reply or a fault in the soak. A
//! refused set only increments a count and is not a fault.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

mod fill;
mod options;
mod soak;
mod wire;

use std::io;
use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> io::Result<String> {
    let [address, verb, rest @ ..] = arguments else {
        return Err(io::Error::other("usage: load ADDRESS set|churn|probe|soak NAME=NUMBER.."));
    };
    let options = Options::parse(rest)?;
    match verb.as_str() {
        "set" => Ok(fill::set_in_threads(address, &options)?.json()),
        "churn" => Ok(fill::churn(address, &options)?.json()),
        "probe" => Ok(fill::probe(address, &options)?.json()),
        "soak" => soak::run(address, &options),
        _ => Err(io::Error::other(format!("no such verb: {verb}"))),
    }
}
