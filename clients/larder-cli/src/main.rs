//! `larder`: the command-line tool that loads and compares cache servers, and shows clusters.

mod cluster;

use clap::{Args, Parser, Subcommand};
use larder_bench::clients;
use larder_capacity::{fill, hitratio};
use larder_compare as compare;
use larder_target::empty_loop;
use std::process::ExitCode;

/// Load generator for cache servers, side-by-side comparisons of them, and clusters of larderds
#[derive(Debug, Parser)]
#[command(name = "larder", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a cache server and report throughput, latency and CPU time; or measure its capacity
    /// (fill) or miss ratio (hitratio)
    #[command(args_conflicts_with_subcommands = true, disable_help_flag = true)]
    Bench {
        #[command(flatten)]
        load: Box<larder_bench::Arguments>,
        #[command(subcommand)]
        measure: Option<Measure>,
    },
    /// Compare several cache servers as a suite defines, and write a report
    Compare(compare::Arguments),
    /// Show the groups of a cluster of larderds, and have other nodes lead
    Cluster {
        #[command(subcommand)]
        task: cluster::Task,
    },
}

#[derive(Debug, Subcommand)]
enum Measure {
    /// Count how many items a server holds per GiB of its memory limit and of its resident memory
    Fill(WithHelp<fill::Arguments>),
    /// Replay look-aside requests and report the miss ratio, next to simulated caches
    Hitratio(Box<WithHelp<hitratio::Arguments>>),
    /// Measure Larder's client library
    Clients(WithHelp<clients::Arguments>),
    /// Serve fixed answers without parsing requests: a lower bound of CPU time to compare servers
    /// with
    EmptyLoop(WithHelp<empty_loop::Arguments>),
}

/// Adds `-h` to a subcommand of `bench`, which disables clap's own because memtier's `-h` is the
/// host.
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
        Command::Cluster { task } => cluster::command(&task, &mut std::io::stdout()),
        Command::Compare(arguments) => with_message(compare::command(&arguments)),
        Command::Bench { load, measure } => match measure {
            None => with_message(larder_bench::bench(&load, &mut std::io::stdout())),
            Some(Measure::Fill(with_help)) => with_message(fill::command(&with_help.arguments)),
            Some(Measure::Hitratio(with_help)) => {
                with_message(hitratio::command(&with_help.arguments))
            }
            Some(Measure::Clients(with_help)) => {
                let arguments = &with_help.arguments;
                let harness = clients::Threads::<clients::Larder>::new(arguments);
                with_message(clients::measure(&harness, arguments, &mut std::io::stdout()))
            }
            Some(Measure::EmptyLoop(with_help)) => {
                with_message(empty_loop::command(&with_help.arguments))
            }
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
