//! `NAME=NUMBER` words from the command line.

use std::collections::HashMap;
use std::io;

/// What was asked for, by name.
pub(crate) struct Options(HashMap<String, u64>);

impl Options {
    /// Reads the words; one that is no `NAME=NUMBER` is an error.
    pub(crate) fn parse(words: &[String]) -> io::Result<Self> {
        let pair = |word: &String| {
            let (name, number) = word.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        let parsed: Option<_> = words.iter().map(pair).collect();
        parsed.map(Self).ok_or_else(|| io::Error::other(format!("not NAME=NUMBER: {words:?}")))
    }

    /// The number, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// The number, which must have been given.
    pub(crate) fn need(&self, name: &str) -> io::Result<u64> {
        self.get(name).ok_or_else(|| io::Error::other(format!("{name}= is missing")))
    }
}
