//! The two text forms of a trace.

use crate::fields;
use crate::record::{Operation, Record};
use std::num::NonZeroU32;

/// A line format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `time_secs,key,size[,ttl]`: each line is a get, with the size and TTL for the set after a
    /// miss.
    LookAside,
    /// `timestamp,anonymized key,key size,value size,client id,operation,TTL`: the form of
    /// Twitter's cache traces, <https://github.com/twitter/cache-trace>. The key may contain
    /// commas.
    Twitter,
}

/// Number of fields in Twitter's format.
const TWITTER_FIELDS: usize = 7;

impl Form {
    /// Determines the form of a line from its number of fields.
    pub(crate) fn of_line(line: &[u8]) -> Result<Self, &'static str> {
        match line.split(|byte| *byte == b',').count() {
            _ if line.starts_with(&ZSTD_MAGIC) => {
                Err("the file is compressed with zstd; decompress it first")
            }
            3 | 4 => Ok(Self::LookAside),
            TWITTER_FIELDS.. => Ok(Self::Twitter),
            _ => Err(
                "expected time_secs,key,size or time_secs,key,size,ttl, or the seven fields of \
                      Twitter's cache traces",
            ),
        }
    }

    /// Parses a line. The record's time is the time in the line; the caller makes it relative to
    /// the start of the trace.
    pub(crate) fn record(self, line: &[u8]) -> Result<Record<'_>, &'static str> {
        match self {
            Self::LookAside => look_aside(line),
            Self::Twitter => twitter(line),
        }
    }
}

/// The first bytes of a zstd file. Twitter publishes its traces in this format.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn look_aside(line: &[u8]) -> Result<Record<'_>, &'static str> {
    let mut fields = line.split(|byte| *byte == b',');
    let (Some(time), Some(key), Some(size), ttl, None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err("expected time_secs,key,size or time_secs,key,size,ttl");
    };
    record(time, key, size, Operation::Get, fields::ttl_secs(ttl.unwrap_or_default())?)
}

fn twitter(line: &[u8]) -> Result<Record<'_>, &'static str> {
    // Only the key may contain commas. The key follows the first field and precedes the last five
    // fields.
    let mut fields = line.rsplitn(TWITTER_FIELDS - 1, |byte| *byte == b',');
    let (Some(ttl), Some(operation), Some(_client), Some(size), Some(key_len), Some(rest)) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(TWITTER_EXPECTED);
    };
    let comma = rest.iter().position(|byte| *byte == b',').ok_or(TWITTER_EXPECTED)?;
    let (time, key) = (&rest[..comma], &rest[comma + 1..]);
    fields::key_len(key_len)?;
    let operation = Operation::from_name(operation).ok_or(
        "the operation must be one of get, gets, set, add, replace, cas, append, prepend, \
                delete, incr, decr",
    )?;
    record(time, key, size, operation, fields::ttl_secs(ttl)?)
}

const TWITTER_EXPECTED: &str =
    "expected timestamp,anonymized key,key size,value size,client id,operation,TTL";

fn record<'l>(
    time: &[u8],
    key: &'l [u8],
    size: &[u8],
    operation: Operation,
    ttl_secs: Option<NonZeroU32>,
) -> Result<Record<'l>, &'static str> {
    let (at_nanos, unit_nanos) = fields::time(time)?;
    let (key, value_len) = (fields::key(key)?, fields::value_len(size)?);
    Ok(Record { at_nanos, unit_nanos, operation, key, value_len, ttl_secs })
}
