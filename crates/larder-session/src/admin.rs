//! What is asked of the server rather than of its items.

use crate::session::Context;
use crate::time::resolve;
use crate::{Host, StatsAnswer};
use larder_protocol::reply;
use larder_protocol::{Exptime, Shape};
use larder_store::Engine;

/// `flush_all`, now or later.
pub(crate) fn flush<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    delay: Exptime,
    shape: &Shape<'_>,
    output: &mut Vec<u8>,
) {
    cx.operations.counters.thread.cmd_flush.add(1);
    if !cx.settings.flush_enabled {
        return reply::flush_refused(shape, output);
    }
    cx.operations.flush(resolve(delay, cx.operations.now));
    reply::ok(shape, output);
}

/// `stats`.
pub(crate) fn stats<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    topic: &[u8],
    shape: &Shape<'_>,
    output: &mut Vec<u8>,
) {
    let answer = cx.host.stats(topic, &mut |name, value| reply::stat(shape, name, value, output));
    match answer {
        StatsAnswer::Lines => reply::stats_end(shape, output),
        StatsAnswer::Reset => reply::stats_reset(shape, output),
        StatsAnswer::Ok => reply::ok(shape, output),
        StatsAnswer::Unknown => reply::stats_unknown(shape, output),
        StatsAnswer::Detail(lines) => reply::stats_detail(shape, &lines, output),
        StatsAnswer::Raw(_) if matches!(shape, Shape::Binary(_)) => {
            reply::stats_unknown(shape, output);
        }
        StatsAnswer::Raw(lines) => output.extend_from_slice(&lines),
        StatsAnswer::Error(line) => reply::error_line(shape, line, output),
    }
}
