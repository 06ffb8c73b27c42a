//! `larder`: the tool for people.

use clap::{Args, Parser, Subcommand};
use larder_bench::{compare, empty_loop, fill, hitratio};
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
    /// Run a suite: several caches side by side, with a report
    Compare(compare::Arguments),
}

#[derive(Debug, Subcommand)]
enum Measure {
    /// Count how many items a server holds, by its limit and by its resident memory
    Fill(WithHelp<fill::Arguments>),
    /// Replay look-aside requests and report the miss ratio, next to simulated caches
    Hitratio(Box<WithHelp<hitratio::Arguments>>),
    /// Serve without parsing anything: the floor that servers are compared with
    EmptyLoop(WithHelp<empty_loop::Arguments>),
}

/// `bench` gives up clap's own `-h`, which is memtier's for the host, and its measures with it.
#[derive(Args, Debug)]
struct WithHelp<A: Args> {
    #[command(flatten)]
    arguments: A,
    /// Print help
    #[arg(short, long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

fn main() -> ExitCode {
    let result = match Line::parse().command {
        Command::Compare(arguments) => with_message(compare::command(&arguments)),
        Command::Bench { load, measure } => match measure {
            None => with_message(larder_bench::bench(&load, &mut std::io::stdout())),
            Some(Measure::Fill(with_help)) => with_message(fill::command(&with_help.arguments)),
            Some(Measure::Hitratio(with_help)) => with_message(hitratio::command(&with_help.arguments)),
            Some(Measure::EmptyLoop(with_help)) => with_message(empty_loop::command(&with_help.arguments)),
        },
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

fn with_message<E: std::fmt::Display>(result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}
