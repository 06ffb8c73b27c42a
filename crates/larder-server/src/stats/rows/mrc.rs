//! Rows of `stats mrc`, Larder's own: the miss-ratio curve, shown as the estimated hit ratio for
//! each of several memory limits.

use crate::stats::row::Source::Server;
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_store::segment::MissRatioCurve;

const ESTIMATE: &str = "larder_hit_ratio_estimate";
const CURVE: Condition = Condition::new("with the segment engine", |s, _| s.curve().is_some());
const NO_CURVE: Condition = Condition::new("with other engines", |s, _| s.curve().is_none());
const SAMPLED: Condition = Condition::new("after the first 32 samples", |s, _| {
    s.curve().is_some_and(|curve| !curve.hit_ratios.is_empty())
});

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::constant("mrc", "none", "The engine has no estimate.").shown(NO_CURVE),
    Row::gauge(
        "mrc:0.25",
        Server(|s| hit_ratio(s, 0.25)),
        "Estimated hit ratio with a quarter of the current limit.",
    )
    .metric(ESTIMATE, &[("memory", "0.25")])
    .shown(SAMPLED),
    Row::gauge(
        "mrc:0.5",
        Server(|s| hit_ratio(s, 0.5)),
        "Estimated hit ratio with half of the current limit.",
    )
    .metric(ESTIMATE, &[("memory", "0.5")])
    .shown(SAMPLED),
    Row::gauge(
        "mrc:1",
        Server(|s| hit_ratio(s, 1.0)),
        "Estimated hit ratio with the current limit.",
    )
    .metric(ESTIMATE, &[("memory", "1")])
    .shown(SAMPLED),
    Row::gauge(
        "mrc:2",
        Server(|s| hit_ratio(s, 2.0)),
        "Estimated hit ratio with twice the current limit.",
    )
    .metric(ESTIMATE, &[("memory", "2")])
    .shown(SAMPLED),
    Row::gauge(
        "mrc:4",
        Server(|s| hit_ratio(s, 4.0)),
        "Estimated hit ratio with four times the current limit.",
    )
    .metric(ESTIMATE, &[("memory", "4")])
    .shown(SAMPLED),
    Row::gauge(
        "mrc:samples",
        Server(|s| curve(s, |curve| curve.samples.into())),
        "Sampled lookups of the estimate; older samples count less.",
    )
    .metric("larder_hit_ratio_samples", &[])
    .shown(CURVE),
    Row::gauge("mrc:keys", Server(|s| curve(s, |curve| curve.keys.into())), "Sampled keys.")
        .shown(CURVE),
    Row::gauge(
        "mrc:sampled",
        Server(|s| curve(s, |curve| Value::Real(curve.sampled, Some(6)))),
        "Share of all keys that are sampled.",
    )
    .shown(CURVE),
];

/// Returns the estimated hit ratio with `memory` times the current limit, or 0 without an estimate.
fn hit_ratio(snapshot: &Snapshot<'_>, memory: f64) -> Value {
    curve(snapshot, |curve| {
        let ratio = curve.hit_ratios.iter().find(|(factor, _)| *factor == memory);
        Value::Real(ratio.map_or(0.0, |(_, ratio)| *ratio), Some(4))
    })
}

fn curve(snapshot: &Snapshot<'_>, read: impl FnOnce(&MissRatioCurve) -> Value) -> Value {
    snapshot.curve().map_or(Value::Whole(0), read)
}
