//! Removes white space around the values on a command line. memcached skips white space before
//! numbers, and Helm charts pass an option and its value as one word: `"-m 1024"`.

use clap::{Arg, Command};
use std::ffi::OsString;

/// Removes white space around the value of each option. Keeps a value that consists only of white
/// space, because it may be a delimiter.
pub(super) fn trimmed(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let mut is_value = false;
    let mut trim = |word: OsString| {
        let Some(text) = word.to_str() else { return word };
        if std::mem::take(&mut is_value) {
            return trimmed_value(text).into();
        }
        if let Some(long) = text.strip_prefix("--") {
            if let Some((name, value)) = long.split_once('=') {
                return format!("--{name}={}", trimmed_value(value)).into();
            }
            is_value = find(command, |arg| has_long(arg, long)).is_some_and(takes_value);
        } else if let Some(short) = text.strip_prefix('-') {
            // Flags can precede an option in the same word: `-vm 1024`.
            let with_value = short.char_indices().find(|(_, letter)| {
                find(command, |arg| has_short(arg, *letter)).is_none_or(takes_value)
            });
            if let Some((at, letter)) = with_value {
                let (before, value) = short.split_at(at + letter.len_utf8());
                is_value = value.is_empty();
                return format!("-{before}{}", trimmed_value(value)).into();
            }
        }
        word
    };
    // The first word is the name of the program.
    let mut words = words.into_iter();
    let program = words.next();
    program.into_iter().chain(words.map(&mut trim)).collect()
}

/// Returns the value without white space around it. Returns a value of only white space unchanged.
pub(super) fn trimmed_value(value: &str) -> &str {
    match value.trim() {
        "" => value,
        trimmed => trimmed,
    }
}

fn find(command: &Command, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
    command.get_arguments().find(|arg| is_it(arg))
}

fn has_long(arg: &Arg, name: &str) -> bool {
    arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|names| names.contains(&name))
}

fn has_short(arg: &Arg, letter: char) -> bool {
    arg.get_short() == Some(letter)
        || arg.get_all_short_aliases().is_some_and(|letters| letters.contains(&letter))
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}
