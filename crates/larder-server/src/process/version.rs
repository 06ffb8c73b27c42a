//! The versions that larderd reports.

/// What `version` answers. Client libraries read memcached's version numbers out of it to find out
/// which commands they may use, so this is the release of memcached whose behaviour Larder has.
pub const MEMCACHED_LEVEL: &str = "1.6.45";

/// Larder's own version, for people: `larderd -V` and the log.
pub const LARDER: &str = env!("CARGO_PKG_VERSION");
