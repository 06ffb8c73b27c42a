//! `larder`: the command-line tool that load-tests and compares cache servers, and operates Larder
//! clusters.

mod cluster;

use clap::{Args, Parser, Subcommand};
use larder_bench::clients;
use larder_capacity::{fill, hitratio};
use larder_compare as compare;
use larder_target::empty_loop;
use std::process::ExitCode;

/// Load-test and compare cache servers, and operate Larder clusters
#[derive(Debug, Parser)]
#[command(name = "larder", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a cache server and report throughput, latency and CPU time
    #[command(args_conflicts_with_subcommands = true, disable_help_flag = true)]
    Bench {
        #[command(flatten)]
        load: Box<larder_bench::Arguments>,
        #[command(subcommand)]
        measure: Option<Measure>,
    },
    /// Run a suite of benchmarks against several cache servers and write a report
    Compare(compare::Arguments),
    /// Inspect and operate a cluster of larderd nodes
    Cluster {
        #[command(subcommand)]
        command: cluster::ClusterCommand,
    },
}

#[derive(Debug, Subcommand)]
enum Measure {
    /// Measure how many items a server holds per GiB of memory limit and per GiB of resident memory
    Fill(WithHelp<fill::Arguments>),
    /// Replay a trace against a server, and compare its miss ratio with those of simulated caches
    Hitratio(Box<WithHelp<hitratio::Arguments>>),
    /// Measure client libraries with the calls of several threads or tasks
    Clients(WithHelp<clients::Arguments>),
    /// Serve fixed replies without parsing requests: a lower bound of CPU time for comparisons
    EmptyLoop(WithHelp<empty_loop::Arguments>),
}

/// Adds `-h` to a subcommand of `bench`. `bench` disables clap's `-h`, because memtier's `-h` is
/// the host.
#[derive(Args, Debug)]
struct WithHelp<A: Args> {
    #[command(flatten)]
    arguments: A,
    /// Print help
    #[arg(short, long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Cluster { command } => cluster::command(&command, &mut std::io::stdout()),
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
            #[expect(clippy::print_stderr, reason = "command errors go to stderr")]
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
