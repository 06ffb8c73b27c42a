//! `flush_all` and `stats`.

use crate::context::Context;
use crate::time::resolve;
use crate::{Host, StatsAnswer};
use larder_protocol::reply;
use larder_protocol::{Exptime, ReplyFormat};
use larder_store::Engine;

/// Answers `flush_all`.
pub(crate) fn flush<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    at: Exptime,
    format: &ReplyFormat<'_>,
    output: &mut Vec<u8>,
) {
    cx.operations.counters.thread.cmd_flush.add(1);
    if !cx.settings.flush_enabled {
        return reply::flush_refused(format, output);
    }
    cx.operations.flush(resolve(at, cx.operations.now));
    reply::ok(format, output);
}

/// Answers `stats` for a page that needs no walk over items.
pub(crate) fn stats<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    topic: &[u8],
    format: &ReplyFormat<'_>,
    output: &mut Vec<u8>,
) {
    let answer = cx.host.stats(topic, &mut |name, value| reply::stat(format, name, value, output));
    match answer {
        StatsAnswer::Lines => reply::stats_end(format, output),
        StatsAnswer::Reset => reply::stats_reset(format, output),
        StatsAnswer::Done => reply::ok(format, output),
        StatsAnswer::Prefixes(counts) => {
            let prefixes = counts.iter().map(|(prefix, counts)| (&prefix[..], *counts));
            reply::stats_prefixes(format, prefixes, output);
        }
        StatsAnswer::SizesStatus(on) => reply::stats_sizes_status(format, on, output),
        StatsAnswer::Refused(refusal) => reply::stats_refused(format, refusal, output),
    }
}
