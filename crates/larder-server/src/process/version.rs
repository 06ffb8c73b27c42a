//! The versions that larderd reports.

/// The version that the `version` command reports. It is the memcached release with which Larder is
/// compatible, because client libraries choose their commands by this version.
pub const MEMCACHED_LEVEL: &str = "1.6.45";

/// Larder's own version, for `larderd -V` and the log.
pub const LARDER: &str = env!("CARGO_PKG_VERSION");
