//! The server as its interfaces see it.

use larder_operations::Latencies;

/// What a server shows of itself. It is asked on the gateway's thread, while workers go on.
pub trait ServerView: Send + Sync + 'static {
    /// Visits all metrics but latencies, as they are now.
    fn samples(&self, visit: &mut dyn FnMut(Sample));

    /// The latencies of all threads together.
    fn latencies(&self) -> Latencies;
}

/// The value of a metric for one set of labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name in Prometheus' form; that of a counter ends in `_total`.
    pub name: &'static str,
    /// Names and values of its labels.
    pub labels: &'static [(&'static str, &'static str)],
    /// One sentence about the metric, whatever its labels.
    pub help: &'static str,
    /// How it changes.
    pub kind: Kind,
    /// Its value, in seconds or bytes if it is a time or a size.
    pub value: f64,
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until it is reset or the server restarts.
    Counter,
    /// It goes up and down.
    Gauge,
}
