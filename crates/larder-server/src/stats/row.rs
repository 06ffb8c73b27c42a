//! A row of the statistics table: its name, documentation, condition, and the source of its value.

use super::slab_class::SlabClass;
use super::snapshot::Snapshot;
use super::socket::Socket;
use larder_cluster::FollowerStatus;
use larder_operations::{ClassCounters, CommandClass, Counter, Histogram, HotKey, ThreadCounters};
use larder_store::{ClassGauges, FlashPage};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The object whose statistics a section shows.
#[derive(Debug)]
pub(super) enum Entry<'a> {
    Server,
    /// A size class, from 0.
    Class(usize),
    Socket(Socket<'a>),
    /// A page of the flash tier.
    Page(FlashPage),
    /// A class of commands.
    Commands(CommandClass),
    /// A key or prefix with many requests.
    Hot(&'a HotKey),
    /// A follower of this server.
    Follower(&'a FollowerStatus),
}

/// One statistic.
#[derive(Debug)]
pub struct Row {
    /// The name in `stats`, without the prefix that the section adds.
    pub name: &'static str,
    /// How the value changes over time.
    pub kind: Kind,
    /// The unit of the value.
    pub unit: Unit,
    /// The documentation for operators, one sentence.
    pub help: &'static str,
    /// The metric; `None` if the statistic is not exported as a metric.
    pub metric: Option<Metric>,
    /// The condition for showing the row; `None` if the row is always shown.
    pub condition: Option<Condition>,
    source: Source,
}

/// How a statistic's value changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value only grows. A restart sets it to 0. For most counters, `stats reset` also sets it
    /// to 0.
    Counter,
    /// The value goes up and down.
    Gauge,
    /// The value is not a number.
    Text,
    /// The value never changes, usually because Larder lacks the mechanism that memcached measures.
    Constant,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// No unit: a count, a ratio, a flag, an identifier or text.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds; the metric is in seconds.
    Microseconds,
}

/// The Prometheus metric of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// Names and values of its labels.
    pub labels: &'static [(&'static str, &'static str)],
}

/// A condition for showing a row.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// The text after the word "Shown" in the documentation.
    pub text: &'static str,
    holds: fn(&Snapshot<'_>, &Entry<'_>) -> bool,
}

/// The source of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A counter of each thread. The value is the sum over all threads.
    Thread(fn(&ThreadCounters) -> &Counter),
    /// A counter per thread and size class, summed over threads. The section of a class shows the
    /// counter of that class, and other sections show the sum over all classes.
    Class(fn(&ClassCounters) -> &Counter),
    /// An engine gauge per size class. The section of a class shows the gauge of that class, and
    /// other sections show the sum over all classes.
    Engine(fn(&ClassGauges) -> u64),
    /// Any other value of the server.
    Server(fn(&Snapshot<'_>) -> Value),
    /// A property of the slabs that memcached would need for a size class.
    Slab(fn(&SlabClass) -> u64),
    /// A value of a listener or connection.
    Socket(fn(&Socket<'_>) -> Value),
    /// A value of one flash page.
    Page(fn(&FlashPage) -> u64),
    /// A value from the latency histogram of a command class.
    Latency(fn(&Histogram) -> Value),
    /// A value of a key or prefix with many requests.
    Hot(fn(&HotKey) -> Value),
    /// A value of a follower.
    Follower(fn(&FollowerStatus) -> Value),
    /// A fixed string.
    Constant(&'static str),
}

/// The value of a statistic.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A real number, rounded to the given number of decimals. With `None`, it is not rounded.
    Real(f64, Option<usize>),
    /// A duration, shown in seconds with six decimals. It is rounded down.
    Time(Duration),
    /// `yes` or `no`.
    Flag(bool),
    /// Text.
    Text(Cow<'static, str>),
}

impl Row {
    const fn new(name: &'static str, kind: Kind, source: Source, help: &'static str) -> Self {
        Self { name, kind, unit: Unit::None, help, metric: None, condition: None, source }
    }

    pub(super) const fn counter(name: &'static str, source: Source, help: &'static str) -> Self {
        Self::new(name, Kind::Counter, source, help)
    }

    pub(super) const fn gauge(name: &'static str, source: Source, help: &'static str) -> Self {
        Self::new(name, Kind::Gauge, source, help)
    }

    pub(super) const fn text(name: &'static str, source: Source, help: &'static str) -> Self {
        Self::new(name, Kind::Text, source, help)
    }

    pub(super) const fn constant(
        name: &'static str,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self::new(name, Kind::Constant, Source::Constant(value), help)
    }

    pub(super) const fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    pub(super) const fn metric(
        self,
        name: &'static str,
        labels: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { metric: Some(Metric { name, labels }), ..self }
    }

    pub(super) const fn shown(self, condition: Condition) -> Self {
        Self { condition: Some(condition), ..self }
    }

    /// Returns the text of a constant row.
    #[must_use]
    pub fn constant_value(&self) -> Option<&'static str> {
        match self.source {
            Source::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Reads the value. Returns `None` if the row is currently not shown for this entry.
    pub(super) fn read(&self, snapshot: &Snapshot<'_>, entry: &Entry<'_>) -> Option<Value> {
        let shown = self.condition.is_none_or(|condition| (condition.holds)(snapshot, entry));
        shown.then(|| self.source.read(snapshot, entry)).flatten()
    }
}

impl Source {
    /// Reads the value. Returns `None` if the source does not apply to this kind of entry.
    fn read(self, snapshot: &Snapshot<'_>, entry: &Entry<'_>) -> Option<Value> {
        let value = match (self, entry) {
            (Self::Thread(counter), _) => counter(&snapshot.counters().thread).get().into(),
            (Self::Class(counter), &Entry::Class(class)) => {
                snapshot.counters().classes.get(class).map_or(0, |c| counter(c).get()).into()
            }
            (Self::Class(counter), _) => snapshot.class_counter(counter).into(),
            (Self::Engine(gauge), &Entry::Class(class)) => {
                snapshot.gauges().classes.get(class).map_or(0, gauge).into()
            }
            (Self::Engine(gauge), _) => snapshot.class_gauge(gauge).into(),
            (Self::Server(read), _) => read(snapshot),
            (Self::Slab(read), &Entry::Class(class)) => {
                read(&SlabClass::new(snapshot, class)).into()
            }
            (Self::Socket(read), Entry::Socket(socket)) => read(socket),
            (Self::Page(read), Entry::Page(page)) => read(page).into(),
            (Self::Latency(read), &Entry::Commands(class)) => {
                read(snapshot.counters().latencies.of(class))
            }
            (Self::Hot(read), &Entry::Hot(hot)) => read(hot),
            (Self::Follower(read), &Entry::Follower(follower)) => read(follower),
            (Self::Constant(value), _) => value.into(),
            (Self::Slab(_) | Self::Socket(_) | Self::Page(_) | Self::Latency(_), _) => return None,
            (Self::Hot(_) | Self::Follower(_), _) => return None,
        };
        Some(value)
    }
}

impl Condition {
    pub(super) const fn new(
        text: &'static str,
        holds: fn(&Snapshot<'_>, &Entry<'_>) -> bool,
    ) -> Self {
        Self { text, holds }
    }
}

impl Unit {
    /// Returns the unit that metric names use for this unit, and the factor that converts the
    /// statistic's value to it.
    #[must_use]
    pub fn base(self) -> (&'static str, f64) {
        match self {
            Self::None => ("", 1.0),
            Self::Bytes => ("bytes", 1.0),
            Self::Seconds => ("seconds", 1.0),
            Self::Microseconds => ("seconds", 1e-6),
        }
    }
}

impl Value {
    /// Converts a flag to 1 or 0, for flags that memcached does not show as `yes` and `no`.
    pub(super) fn bit(on: bool) -> Self {
        Self::Whole(on.into())
    }

    /// Returns the value as a number, or `None` for text.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::Whole(number) => Some(number as f64),
            Self::Signed(number) => Some(number as f64),
            Self::Real(number, _) => Some(number),
            Self::Time(time) => Some(time.as_secs_f64()),
            Self::Flag(on) => Some(on.into()),
            Self::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::Real(number, None) => number.fmt(f),
            Self::Real(number, Some(decimals)) => write!(f, "{number:.decimals$}"),
            Self::Time(time) => write!(f, "{}.{:06}", time.as_secs(), time.subsec_micros()),
            Self::Flag(on) => f.write_str(if *on { "yes" } else { "no" }),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Signed(number.into())
    }
}

impl From<bool> for Value {
    fn from(on: bool) -> Self {
        Self::Flag(on)
    }
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Self {
        Self::Time(time)
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}
