//! `larder`: the tool for people.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Loads caches, and compares them.
#[derive(Debug, Parser)]
#[command(name = "larder", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a cache and say what it did
    Bench(Box<larder_bench::Arguments>),
    /// Run a suite: several caches side by side, with a report
    Compare(larder_bench::compare::Arguments),
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn std::error::Error>> = match Line::parse().command {
        Command::Bench(arguments) => {
            larder_bench::bench(&arguments, &mut std::io::stdout()).map_err(Into::into)
        }
        Command::Compare(arguments) => {
            larder_bench::compare::command(&arguments).map_err(Into::into)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a command's errors go there")]
            {
                eprintln!("larder: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
