//! Replies to `stats`.

use super::encode::{binary, binary_error, success, text};
use crate::meta_flags::number;
use crate::request::{BinaryHead, ReplyFormat, Status};

/// The reason for refusing a request for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsRefusal {
    /// There is no page of that name.
    UnknownPage,
    /// `stats detail` on a server that forbids dumps of keys (`-X`).
    DetailNotAllowed,
    /// A page that shows keys, on a server that forbids dumps of keys (`-X`).
    KeysNotAllowed,
    /// `stats detail` with a word other than `on`, `off` or `dump`.
    DetailUsage,
    /// `stats cachedump` on a server that forbids dumps of keys (`-X`).
    CachedumpNotAllowed,
    /// `stats cachedump` without its two numbers.
    CachedumpUsage,
    /// `stats cachedump` with malformed numbers.
    CachedumpNumbers,
    /// `stats cachedump` with an invalid slab class.
    CachedumpClass,
}

impl StatsRefusal {
    fn words(self) -> &'static str {
        match self {
            Self::UnknownPage => "ERROR",
            Self::DetailNotAllowed => "CLIENT_ERROR stats detail not allowed",
            Self::KeysNotAllowed => "CLIENT_ERROR stats with keys not allowed",
            Self::DetailUsage => "CLIENT_ERROR usage: stats detail on|off|dump",
            Self::CachedumpNotAllowed => "CLIENT_ERROR stats cachedump not allowed",
            Self::CachedumpUsage => "CLIENT_ERROR bad command line",
            Self::CachedumpNumbers => "CLIENT_ERROR bad command line format",
            Self::CachedumpClass => "CLIENT_ERROR Illegal slab id",
        }
    }
}

/// Numbers of requests for keys with one prefix (`stats detail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats detail dump`")]
pub struct PrefixCounts {
    pub get: u64,
    pub hit: u64,
    pub set: u64,
    pub del: u64,
}

/// Writes one statistic.
pub fn stat(format: &ReplyFormat<'_>, name: &str, value: &str, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => stat_bytes(head, name, value.as_bytes(), out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            for part in ["STAT ", name, " ", value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
    }
}

fn stat_bytes(head: &BinaryHead, name: &str, value: &[u8], out: &mut Vec<u8>) {
    binary(head, 0, &[], name.as_bytes(), value.len(), 0, out);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value);
}

/// Writes the end of a statistics page, or of a dump in the same format.
pub fn stats_end(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    success(format, "END", out);
}

/// Writes the reply to `stats reset`.
pub fn stats_reset(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    success(format, "RESET", out);
}

/// Writes the reply to `stats detail dump`, which has a line for each prefix. In binary, one
/// statistic contains all these lines.
pub fn stats_prefixes<'p>(
    format: &ReplyFormat<'_>,
    prefixes: impl IntoIterator<Item = (&'p [u8], PrefixCounts)>,
    out: &mut Vec<u8>,
) {
    let mut lines = Vec::new();
    for (prefix, counts) in prefixes {
        lines.extend_from_slice(b"PREFIX ");
        lines.extend_from_slice(prefix);
        number(b" get ", counts.get, &mut lines);
        number(b" hit ", counts.hit, &mut lines);
        number(b" set ", counts.set, &mut lines);
        number(b" del ", counts.del, &mut lines);
        lines.extend_from_slice(b"\r\n");
    }
    text("END", &mut lines);
    match format {
        ReplyFormat::Binary(head) => {
            stat_bytes(head, "detailed", &lines, out);
            stats_end(format, out);
        }
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => out.append(&mut lines),
    }
}

/// Writes the reply to `stats sizes_enable` or `sizes_disable`. Like memcached's reply, this reply
/// has no `END`. In binary, the reply is "not found", although the setting has changed.
pub fn stats_sizes_status(format: &ReplyFormat<'_>, enabled: bool, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(_) = format {
        return stats_refused(format, StatsRefusal::UnknownPage, out);
    }
    stat(format, "sizes_status", if enabled { "enabled" } else { "disabled" }, out);
}

/// Writes the reply to a refused request for statistics. In binary, every refusal is "not found".
pub fn stats_refused(format: &ReplyFormat<'_>, refusal: StatsRefusal, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary_error(head, Status::NotFound, out),
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => text(refusal.words(), out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Classic;

    #[test]
    fn lines_of_prefixes_match_memcached() {
        let counts = PrefixCounts { get: 2, hit: 1, set: 1, del: 0 };
        let prefixes = [(&b""[..], PrefixCounts::default()), (b"a", counts)];
        let mut out = Vec::new();
        stats_prefixes(&ReplyFormat::Classic(Classic::default()), prefixes, &mut out);
        let lines =
            "PREFIX  get 0 hit 0 set 0 del 0\r\nPREFIX a get 2 hit 1 set 1 del 0\r\nEND\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), lines);
    }
}
