//! Statistics of a server's flash tier, which have the names of memcached's extstore.

use crate::ServerAddress;
use crate::blocking::{Connection, Dialect};
use std::collections::BTreeMap;
use std::time::Duration;

/// Timeout for connecting and for each read of the reply. The timeout limits how long an
/// unresponsive server delays a run's results.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Statistics of a server with a flash tier: counters since the server's start, and the current
/// contents of the tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Number of hits, in memory or on flash (`get_hits`).
    pub hits: u64,
    /// Number of sets (`cmd_set`).
    pub sets: u64,
    /// Number of reads from flash (`get_extstore`).
    pub reads: u64,
    /// Number of reads whose request was cancelled, or whose record was overwritten or corrupt
    /// (`get_aborted_extstore`, `miss_from_extstore`, `badcrc_from_extstore`).
    pub failed_reads: u64,
    /// Current number of items on flash (`extstore_objects_used`).
    pub items: u64,
    /// Current bytes of the items on flash (`extstore_bytes_used`).
    pub used_bytes: u64,
    /// Bytes written to flash (`extstore_bytes_written`).
    pub written_bytes: u64,
    /// Bytes read from flash (`extstore_bytes_read`).
    pub read_bytes: u64,
}

impl FlashStats {
    /// Queries a server. Returns `None` if the server has no flash tier or does not answer in
    /// memcached's text protocol. Connecting and each read may take up to 2 s.
    #[must_use]
    pub fn of(address: &ServerAddress) -> Option<Self> {
        let mut connection = Connection::open_within(address, Dialect::Text, TIMEOUT).ok()?;
        Self::parse(&connection.stats().ok()?)
    }

    /// Parses the values of `stats`. Returns `None` if the statistics of a flash tier are missing.
    #[must_use]
    pub fn parse(stats: &BTreeMap<String, String>) -> Option<Self> {
        let number = |name: &str| stats.get(name).and_then(|value| value.parse::<u64>().ok());
        let failures = ["get_aborted_extstore", "miss_from_extstore", "badcrc_from_extstore"];
        Some(Self {
            reads: number("get_extstore")?,
            items: number("extstore_objects_used")?,
            hits: number("get_hits")?,
            sets: number("cmd_set").unwrap_or(0),
            failed_reads: failures.into_iter().filter_map(number).sum(),
            used_bytes: number("extstore_bytes_used").unwrap_or(0),
            written_bytes: number("extstore_bytes_written").unwrap_or(0),
            read_bytes: number("extstore_bytes_read").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<FlashStats> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        FlashStats::parse(&pairs.map(|(name, value)| (name.into(), value.into())).collect())
    }

    #[test]
    fn extstores_statistics_are_understood() {
        let found = parse(
            "get_hits=100 cmd_set=7 get_extstore=60 get_aborted_extstore=1 miss_from_extstore=2 \
             badcrc_from_extstore=3 extstore_objects_used=1000 extstore_bytes_used=5000 \
             extstore_bytes_written=9000 extstore_bytes_read=300 version=1.6.45",
        );
        let expected = FlashStats {
            hits: 100,
            sets: 7,
            reads: 60,
            failed_reads: 6,
            items: 1000,
            used_bytes: 5000,
            written_bytes: 9000,
            read_bytes: 300,
        };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn a_server_without_flash_has_none() {
        assert_eq!(parse("get_hits=100 cmd_set=7"), None);
        assert_eq!(parse("get_hits=100 get_extstore=many extstore_objects_used=1"), None);
    }
}
