//! The versions that larderd reports.

/// The version that the `version` command reports: the memcached release that Larder is compatible
/// with. Client libraries parse it to decide which commands to use.
pub const MEMCACHED_LEVEL: &str = "1.6.45";

/// Larder's own version, for `larderd -V` and the log.
pub const LARDER: &str = env!("CARGO_PKG_VERSION");
