//! The texts of `-h` and `--help`.

use super::suboption_list;
use clap::{Arg, Command};

/// The width of name lists, in characters.
const WIDTH: usize = 100;

/// Appends the names of all options that `-h` does not explain to the text of `-h`.
///
/// Scripts written for memcached search the output of `-h` to determine which options the server
/// supports, so `-h` must contain every name.
pub(super) fn with_other_names(command: Command) -> Command {
    let hidden = command.get_arguments().filter(|arg| arg.is_hide_short_help_set());
    let names = wrap(hidden.map(names_of));
    let suboptions = wrap(suboption_list::names().map(str::to_owned));
    command.after_help(format!(
        "Other options, which --help explains:\n{names}\n\nExtended options (-o), which --help explains:\n{suboptions}"
    ))
}

/// Returns the names of an option: `-U --udp-port`.
fn names_of(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    short.into_iter().chain(long).collect::<Vec<_>>().join(" ")
}

/// Joins names with commas, and breaks the list into indented lines of at most [`WIDTH`]
/// characters.
fn wrap(names: impl Iterator<Item = String>) -> String {
    let mut lines = vec![String::new()];
    for name in names {
        let line = lines.last_mut().filter(|line| line.len() + name.len() + 3 <= WIDTH);
        match line {
            Some(line) if line.is_empty() => line.push_str(&format!("  {name}")),
            Some(line) => line.push_str(&format!(", {name}")),
            None => lines.push(format!("  {name}")),
        }
    }
    lines.join(",\n")
}
