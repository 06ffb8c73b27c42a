//! The server as its interfaces see it.

use larder_operations::{Latencies, Limits, Observer};
use larder_store::Seconds;

/// What a server shows of itself. It is asked on the gateway's thread, while workers go on.
pub trait ServerView: Send + Sync + 'static {
    /// Visits all metrics but latencies, as they are now.
    fn samples(&self, visit: &mut dyn FnMut(Sample));

    /// The latencies of all threads together.
    fn latencies(&self) -> Latencies;

    /// The time.
    fn now(&self) -> Seconds;

    /// The limits of operations.
    fn limits(&self) -> &Limits;

    /// Visits the names and values of a page of statistics; false if there is no such page.
    fn statistics(&self, page: &str, visit: &mut dyn FnMut(&str, &str)) -> bool;

    /// What receives the events of operations, if anything does.
    fn observer(&self) -> Option<&dyn Observer>;

    /// Whether clients have to log in.
    fn login_required(&self) -> bool;

    /// What a client may do that logs in so; `None` if the login is wrong.
    fn log_in(&self, login: &Login<'_>) -> Option<Rights>;

    /// Whether clients may remove all items at once.
    fn flush_allowed(&self) -> bool;

    /// Whether the server takes requests, rather than ending.
    fn is_ready(&self) -> bool;

    /// Counts memory for a connection, in bytes; false if there is not so much left for connections.
    fn reserve(&self, bytes: usize) -> bool;

    /// Gives back what was reserved.
    fn release(&self, bytes: usize);
}

/// How a client says who it is.
#[derive(Clone, Copy)]
pub enum Login<'a> {
    /// The name of a user and its password.
    User(&'a [u8], &'a [u8]),
    /// A token, as bearer.
    Token(&'a [u8]),
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    All,
    /// What changes nothing.
    Read,
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
