//! `stats`: each page consists of rows in `rows/`, which the table in `table.rs` lists. To add a
//! statistic, add a row; `docs/internals/changing.md` lists the steps. The rows of memcached's
//! statistics keep memcached's names and order. If Larder lacks the mechanism that a statistic of
//! memcached describes, the row is a constant.

mod metric_help;
#[cfg(feature = "metrics")]
mod metrics;
mod row;
mod rows;
mod slab_class;
mod snapshot;
mod socket;
mod table;

pub use metric_help::metric_help;
#[cfg(feature = "metrics")]
pub(crate) use metrics::samples;
pub use row::{Condition, Kind, Metric, Row, Unit, Value};
pub use table::{PAGES, Page, visit_metrics};

use crate::server::Server;
use larder_protocol::reply::StatsRefusal;
use larder_session::StatsAnswer;

/// The pages that clients can request by any prefix of the name, as in memcached. The first match
/// wins.
const BY_PREFIX: [&str; 3] = ["settings", "conns", "extstore"];

/// Answers `stats <topic>`.
pub(crate) fn answer(
    server: &Server,
    topic: &[u8],
    stat: &mut dyn FnMut(&str, &str),
) -> StatsAnswer {
    let end = topic.iter().position(|&byte| byte == b' ').unwrap_or(topic.len());
    let (name, words) = topic.split_at(end);
    let page = match name {
        b"" => "general",
        b"items" => "items",
        b"slabs" => "slabs",
        b"mrc" => "mrc",
        b"memory" => "memory",
        b"latency" => "latency",
        b"hotkeys" => "hotkeys",
        b"prefixes" => "prefixes",
        b"replication" => "replication",
        b"cluster" => "cluster",
        b"sizes" => {
            stat("sizes_status", "disabled");
            return StatsAnswer::Lines;
        }
        b"sizes_enable" | b"sizes_disable" => return track_sizes(server, name == b"sizes_enable"),
        _ if is_prefix(name, "reset") => {
            server.reset();
            return StatsAnswer::Reset;
        }
        _ if is_prefix(name, "detail") => return detail(server, words.trim_ascii()),
        _ => match BY_PREFIX.into_iter().find(|page| is_prefix(name, page)) {
            Some(page) => page,
            None => return StatsAnswer::Refused(StatsRefusal::UnknownPage),
        },
    };
    match Page::named(page) {
        Some(page) if page.is_allowed(server) => page.show(server, stat),
        _ => return StatsAnswer::Refused(StatsRefusal::KeysNotAllowed),
    }
    StatsAnswer::Lines
}

/// Handles `stats sizes_enable` and `stats sizes_disable`.
fn track_sizes(server: &Server, on: bool) -> StatsAnswer {
    server.controls.track_sizes(on);
    StatsAnswer::SizesStatus(on)
}

/// Handles `stats detail`.
fn detail(server: &Server, words: &[u8]) -> StatsAnswer {
    if server.options.disable_dumping {
        return StatsAnswer::Refused(StatsRefusal::DetailNotAllowed);
    }
    match words.split(|&byte| byte == b' ').next() {
        Some(b"on") => server.log.set_prefixes(true),
        Some(b"off") => server.log.set_prefixes(false),
        Some(b"dump") => return StatsAnswer::Prefixes(server.prefixes.counts()),
        _ => return StatsAnswer::Refused(StatsRefusal::DetailUsage),
    }
    StatsAnswer::Done
}

fn is_prefix(topic: &[u8], name: &str) -> bool {
    !topic.is_empty() && name.as_bytes().starts_with(topic)
}
