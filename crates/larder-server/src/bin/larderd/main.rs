//! `larderd`: reads the options, starts the engine, binds the sockets, and serves.

mod cache_parts;
mod credentials;
mod engine;
mod failure;
mod privileges;
mod serve;
mod sockets;

use clap::error::ErrorKind;
use engine::start;
use failure::Failure;
use larder_server::log::verbosity::{Verbosity, logs_to_system};
use larder_server::options::{Options, OptionsError};
use larder_server::process::version;
use std::fmt::Display;
use std::process::ExitCode;

const LICENCE: &str = "larderd is licensed under the MIT licence or the Apache License, Version 2.0,\n\
                       as you like: https://opensource.org/license/mit,\n\
                       https://www.apache.org/licenses/LICENSE-2.0";

fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os()) {
        Ok(options) => options,
        Err(OptionsError::Clap(error)) => return print_usage(&error),
        Err(OptionsError::Refused(refusal)) => return fail(refusal.status, refusal.message),
    };
    if options.license {
        return print(LICENCE);
    }
    if options.check_config {
        return match sockets::check(&options) {
            Ok(()) => print("The options are valid."),
            Err(Failure { status, message }) => fail(status, message),
        };
    }
    let verbosity = Verbosity::start_log(options.verbosity());
    match start(options, verbosity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, message }) => fail(status, message),
    }
}

#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "help goes to the terminal, not the log"
)]
fn print_usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayVersion => {
            println!("larder {} (memcached {})", version::LARDER, version::MEMCACHED_LEVEL);
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{error}");
            ExitCode::from(1)
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output of an option that prints")]
fn print(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "the log may not have started yet")]
fn fail(status: u8, message: impl Display) -> ExitCode {
    if logs_to_system() {
        tracing::error!("{message}");
    } else {
        eprintln!("{message}");
    }
    ExitCode::from(status)
}
