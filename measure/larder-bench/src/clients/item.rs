//! A thread's item, and the check of the values that gets return.

use super::arguments::Arguments;
use super::results::Failure;

/// A thread's key, and the two values that its sets store in turn.
#[derive(Clone, Debug)]
pub struct ThreadItem {
    /// The key.
    pub key: String,
    /// Sets alternate between these values, so the check detects a get that returns the previous
    /// value.
    values: [Vec<u8>; 2],
}

impl ThreadItem {
    /// Returns the item of a thread.
    #[must_use]
    pub fn new(arguments: &Arguments, thread: usize) -> Self {
        let key = format!("bench-{}-{thread}", arguments.seed);
        let value = |letter: &str| {
            let mut value = format!("{key}-{letter}").into_bytes();
            value.resize(arguments.value_bytes as usize, b'.');
            value
        };
        Self { values: [value("a"), value("b")], key }
    }

    /// Returns the value that set `number` stores.
    #[must_use]
    pub fn value(&self, number: usize) -> &[u8] {
        &self.values[number % 2]
    }

    /// Compares the result of a get with the value that set `number` stored.
    ///
    /// # Errors
    /// The values differ, or the get found no value.
    pub fn judge(&self, number: usize, found: Option<&[u8]>) -> Result<(), Failure> {
        let expected = self.value(number);
        if found == Some(expected) {
            return Ok(());
        }
        let begin =
            |value: &[u8]| format!("{:?}", String::from_utf8_lossy(&value[..value.len().min(40)]));
        let (key, expected) = (self.key.clone(), begin(expected));
        let found = found.map_or_else(|| "missing".to_owned(), begin);
        Err(Failure::WrongValue { key, expected, found })
    }
}
