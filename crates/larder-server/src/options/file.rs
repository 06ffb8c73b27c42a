//! The configuration file: TOML whose keys are the long names of options.

use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// One key of the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) given: RawValue,
    /// The line number, from 1.
    pub(super) line: usize,
}

/// A value from the file or the environment.
#[derive(Debug)]
pub(super) enum RawValue {
    /// `true` or `false`.
    Flag(bool),
    /// One value.
    One(String),
    /// A list of values.
    Many(Vec<String>),
}

/// An error in the file, with its line number.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) message: String,
}

/// Parses the file into its keys, in their order. A TOML table contains suboptions. Each line of
/// the table becomes a separate entry, so that an error can name the line.
///
/// # Errors
/// [`Fault`]: the file is not TOML, or a value has a type that no option accepts.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, Fault> {
    let line = |span: Range<usize>| line_of(text, span.start);
    let table = DeTable::parse(text).map_err(|error| Fault {
        line: line(error.span().unwrap_or_default()),
        message: error.message().to_owned(),
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let mut add = |line, given: Result<RawValue, String>| {
            let key = key.get_ref().to_string();
            match given {
                Ok(given) => entries.push(Entry { key, given, line }),
                Err(message) => return Err(Fault { line, message: format!("{key}: {message}") }),
            }
            Ok(())
        };
        match value.get_ref() {
            DeValue::Table(list) => {
                for (name, value) in list {
                    let element = element(name.get_ref(), value.get_ref());
                    add(line(name.span()), element.map(RawValue::One))?;
                }
            }
            value => add(line(key.span()), given(value))?,
        }
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn given(value: &DeValue<'_>) -> Result<RawValue, String> {
    match value {
        DeValue::Boolean(flag) => Ok(RawValue::Flag(*flag)),
        DeValue::Array(values) => {
            let values = values.iter().map(|value| text_of(value.get_ref()));
            values.collect::<Result<_, _>>().map(RawValue::Many)
        }
        value => text_of(value).map(RawValue::One),
    }
}

/// Converts a line of a table to a suboption: `idle_timeout = 5` to `idle_timeout=5`,
/// `lru_crawler = false` to `no_lru_crawler`.
fn element(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    let name = name.replace('-', "_");
    match value {
        DeValue::Boolean(true) => Ok(name),
        DeValue::Boolean(false) => Ok(format!("no_{name}")),
        value => Ok(format!("{name}={}", text_of(value)?)),
    }
}

/// Converts a value to its form on a command line. Octal numbers stay octal, for file modes.
fn text_of(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) if matches!(number.radix(), 8 | 10) => {
            Ok(number.as_str().to_owned())
        }
        other => Err(format!("a value of this type ({}) is not supported", other.type_str())),
    }
}

/// Returns the number of the line that contains a byte offset. The first line has number 1.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
}
