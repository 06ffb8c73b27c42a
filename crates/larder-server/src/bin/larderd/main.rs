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
use std::io::Write;
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

fn print_usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp => print(&error.to_string()),
        ErrorKind::DisplayVersion => {
            print(&format!("larder {} (memcached {})", version::LARDER, version::MEMCACHED_LEVEL))
        }
        _ => {
            // An error is ignored, because the exit status also shows the failure.
            let _ = write!(std::io::stderr(), "{error}");
            ExitCode::from(1)
        }
    }
}

/// Prints the output of an option. Ignores errors, as memcached does: the reader of a pipe may have
/// ended.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    ExitCode::SUCCESS
}

fn fail(status: u8, message: impl Display) -> ExitCode {
    if logs_to_system() {
        tracing::error!("{message}");
    } else {
        // The log may not have started yet. An error is ignored, because the exit status also shows
        // the failure.
        let _ = writeln!(std::io::stderr(), "{message}");
    }
    ExitCode::from(status)
}
