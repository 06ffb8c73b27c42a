//! Counters and timers for the client's own snapshot. Each update is also reported through the
//! facade.

use super::facade::{self, Labels};
use super::histogram::{AtomicHistogram, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A monotonic counter.
#[derive(Debug)]
pub(super) struct Counter {
    value: AtomicU64,
    reported: facade::Counter,
}

impl Counter {
    pub(super) fn new(name: &'static str, labels: Labels<'_>) -> Self {
        Self { value: AtomicU64::new(0), reported: facade::counter(name, labels) }
    }

    pub(super) fn increment(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        self.reported.increment(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug)]
pub(super) struct Timer {
    histogram: AtomicHistogram,
    reported: facade::Histogram,
}

impl Timer {
    pub(super) fn new(name: &'static str, labels: Labels<'_>) -> Self {
        let histogram = AtomicHistogram::default();
        Self { histogram, reported: facade::histogram(name, labels) }
    }

    #[inline]
    pub(super) fn record(&self, time: Duration) {
        self.histogram.record(time);
        self.reported.record(time);
    }

    pub(super) fn get(&self) -> Histogram {
        self.histogram.snapshot()
    }
}
