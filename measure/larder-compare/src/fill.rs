//! Runs a fill phase of a suite, as `larder bench fill` does.

use super::results::FillResult;
use super::suite::Fill;
use larder_capacity::fill::{Settings, measure};
use larder_target::blocking::Dialect;
use larder_target::target::Target;
use larder_target::{Protocol, ServerAddress};
use std::time::Duration;

/// Fills a server beyond its memory limit and counts the items that it holds.
///
/// # Errors
/// The server cannot be reached, the connection fails, a reply of the server is malformed, the
/// reply to a get is an error, the fill needs 2^32 items or more, or `protocol` is the binary
/// protocol.
pub(crate) fn fill(
    fill: Fill,
    address: &ServerAddress,
    protocol: Protocol,
    limit_mb: u64,
    pid: i32,
) -> Result<FillResult, String> {
    let dialect = match protocol {
        Protocol::Text | Protocol::Meta => Dialect::Text,
        Protocol::Resp => Dialect::Resp,
        Protocol::Binary => {
            return Err("a fill phase requires the text protocol or RESP, not the binary protocol"
                .to_owned());
        }
    };
    let target = Target::Running { address: address.clone(), pid: Some(pid) };
    let mut server = target.open(dialect, Some(limit_mb)).map_err(|error| error.to_string())?;
    // Uses the limit of the suite instead of the limit that the server reports, which may be
    // rounded.
    server.limit_bytes = limit_mb << 20;
    let held = measure(&mut server, 0, &settings(fill)).map_err(|error| error.to_string())?;
    Ok(FillResult {
        items: held.items,
        items_error: held.items_error,
        limit_bytes: held.limit_bytes,
        rss_bytes: held.rss_bytes,
    })
}

/// Returns the default settings of `larder bench fill`, with the value size of the phase.
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
