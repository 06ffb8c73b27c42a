//! The one place that knows how a server is filled.

use super::results::Held;
use super::suite::Fill;
use crate::blocking::Dialect;
use crate::fill::{Settings, measure};
use crate::settings::{Protocol, ServerAddress};
use crate::target::Target;
use std::time::Duration;

/// Fills a server until old items are missing.
///
/// # Errors
/// It can't be reached, hangs up, or speaks binary only.
pub(crate) fn fill(
    fill: Fill,
    address: &ServerAddress,
    protocol: Protocol,
    limit_mb: u64,
    pid: i32,
) -> Result<Held, String> {
    let dialect = match protocol {
        Protocol::Text | Protocol::Meta => Dialect::Text,
        Protocol::Resp => Dialect::Resp,
        Protocol::Binary => return Err("cannot be filled over the binary protocol".to_owned()),
    };
    let target = Target::Running { address: address.clone(), pid: Some(pid) };
    let mut server = target.open(dialect, Some(limit_mb)).map_err(|error| error.to_string())?;
    // What a server says of its limit may be rounded; ours is what it was started with.
    server.limit_bytes = limit_mb << 20;
    let held = measure(&mut server, 0, &settings(fill)).map_err(|error| error.to_string())?;
    Ok(Held {
        items: held.items,
        items_error: held.items_error,
        limit_bytes: held.limit_bytes,
        rss_bytes: held.rss_bytes,
    })
}

/// As `larder bench fill` does unless told otherwise.
fn settings(fill: Fill) -> Settings {
    Settings {
        value_bytes: fill.value_bytes,
        key_bytes: 13,
        fill: 3.0,
        probes_max: 2_000_000,
        pipeline: 64,
        settle: Duration::from_secs(2),
    }
}
