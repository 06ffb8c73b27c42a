//! The options `--command`, `--command-ratio` and `--command-key-pattern`. `--command-ratio` and
//! `--command-key-pattern` apply to the last `--command` before them.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// A custom command with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOptions {
    /// The command with its arguments.
    pub line: String,
    /// Number of times that a client sends the command in a row before it continues with the next
    /// command.
    pub ratio: u32,
    /// Key selection: a letter, as in `--key-pattern`.
    pub pattern: String,
}

/// The custom commands, in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandList(pub Vec<CommandOptions>);

/// Heading of these options in the help text.
const HEADING: &str = "Custom commands";

impl Args for CommandList {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str| {
            Arg::new(name).long(name).action(ArgAction::Append).help_heading(HEADING)
        };
        command
            .arg(
                option("command")
                    .value_name("COMMAND")
                    .conflicts_with_all(["ratio", "key_pattern", "multi_get", "verify"])
                    .help(
                        "A command to send instead of sets and gets, in quotes. __key__ stands for \
                         a key and __data__ for a value; in memcached's text protocol __data__ is \
                         the length, and the value follows the line. Repeat the option to send several \
                         commands in turn",
                    ),
            )
            .arg(
                option("command-ratio")
                    .value_name("NUMBER")
                    .value_parser(clap::value_parser!(u32).range(1..))
                    .help("Number of times in a row to send the command before this option [default: 1]"),
            )
            .arg(
                option("command-key-pattern")
                    .value_name("R|Z|G|S|P")
                    .value_parser(["R", "Z", "G", "S", "P"])
                    .help(
                        "Key selection of the command before this option, as in --key-pattern \
                         [default: R]",
                    ),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CommandList {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let lines = with_indices::<String>(matches, "command");
        let mut list: Vec<(usize, CommandOptions)> = lines
            .map(|(index, line)| {
                (index, CommandOptions { line, ratio: 1, pattern: "R".to_owned() })
            })
            .collect();
        for (index, ratio) in with_indices::<u32>(matches, "command-ratio") {
            before(&mut list, index)?.ratio = ratio;
        }
        for (index, pattern) in with_indices::<String>(matches, "command-key-pattern") {
            before(&mut list, index)?.pattern = pattern;
        }
        Ok(Self(list.into_iter().map(|(_, command)| command).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the last command before index `index` of the command line, or an error if no command
/// precedes it.
fn before(
    list: &mut [(usize, CommandOptions)],
    index: usize,
) -> Result<&mut CommandOptions, clap::Error> {
    let command = list.iter_mut().rev().find(|(command, _)| *command < index);
    command.map(|(_, command)| command).ok_or_else(|| {
        let message = "--command-ratio and --command-key-pattern apply to the --command before them; \
                       put a --command before them";
        clap::Error::raw(ErrorKind::MissingRequiredArgument, format!("{message}\n"))
    })
}

/// Returns the values of an option, each with its index in the command line.
fn with_indices<T: Clone + Send + Sync + 'static>(
    matches: &ArgMatches,
    name: &str,
) -> impl Iterator<Item = (usize, T)> {
    let indices: Vec<usize> = matches.indices_of(name).into_iter().flatten().collect();
    let values: Vec<T> = matches.get_many(name).into_iter().flatten().cloned().collect();
    indices.into_iter().zip(values)
}
