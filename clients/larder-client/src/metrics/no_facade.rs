//! Replaces the crate `metrics` in builds without the feature `metrics`, and reports nothing.

/// A counter that reports nothing.
#[derive(Debug)]
pub(super) struct Counter;
/// A gauge that reports nothing.
#[derive(Debug)]
pub(super) struct Gauge;
/// A histogram that reports nothing.
#[derive(Debug)]
pub(super) struct Histogram;

pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

pub(super) fn counter(_: &'static str, _: Labels<'_>) -> Counter {
    Counter
}

pub(super) fn gauge(_: &'static str, _: Labels<'_>) -> Gauge {
    Gauge
}

pub(super) fn histogram(_: &'static str, _: Labels<'_>) -> Histogram {
    Histogram
}

pub(super) fn describe(_: &[(&'static str, &'static str)]) {}

impl Counter {
    pub(super) fn increment(&self, _: u64) {}
}

impl Gauge {
    pub(super) fn increment(&self, _: u32) {}
    pub(super) fn decrement(&self, _: u32) {}
}

impl Histogram {
    pub(super) fn record(&self, _: std::time::Duration) {}
}
