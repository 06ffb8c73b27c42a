//! `larder`: the tool for people.

use clap::{Parser, Subcommand};
use larder_bench::{fill, hitratio};
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
    /// Load a cache and say what it did; or measure what it holds, or how often it hits
    #[command(args_conflicts_with_subcommands = true, disable_help_flag = true)]
    Bench {
        #[command(flatten)]
        load: Box<larder_bench::Arguments>,
        #[command(subcommand)]
        measure: Option<Measure>,
    },
}

#[derive(Debug, Subcommand)]
enum Measure {
    Fill(fill::Arguments),
    Hitratio(Box<hitratio::Arguments>),
}

fn main() -> ExitCode {
    let Command::Bench { load, measure } = Line::parse().command;
    let result = match measure {
        None => said(larder_bench::bench(&load, &mut std::io::stdout())),
        Some(Measure::Fill(arguments)) => said(fill::command(&arguments)),
        Some(Measure::Hitratio(arguments)) => said(hitratio::command(&arguments)),
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

fn said<E: std::fmt::Display>(result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}
