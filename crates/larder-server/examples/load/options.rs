//! `NAME=NUMBER` words from the command line.

use std::collections::HashMap;
use std::io;

/// The numbers by name.
pub(crate) struct Options(HashMap<String, u64>);

impl Options {
    /// Parses the words.
    ///
    /// # Errors
    /// A word is not `NAME=NUMBER`.
    pub(crate) fn parse(words: &[String]) -> io::Result<Self> {
        let pair = |word: &String| {
            let (name, number) = word.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        let parsed: Option<_> = words.iter().map(pair).collect();
        parsed.map(Self).ok_or_else(|| io::Error::other(format!("not NAME=NUMBER: {words:?}")))
    }

    /// Returns the number with this name, or `None` if it is missing.
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Returns the number with this required name.
    ///
    /// # Errors
    /// The number is missing.
    pub(crate) fn need(&self, name: &str) -> io::Result<u64> {
        self.get(name).ok_or_else(|| io::Error::other(format!("{name}= is missing")))
    }
}
