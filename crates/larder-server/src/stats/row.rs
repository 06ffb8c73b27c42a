//! A row of the table of statistics: what it says, when it is shown, and how its value is read.

use super::slab_class::SlabClass;
use super::snapshot::Snapshot;
use super::socket::Socket;
use larder_cluster::FollowerStatus;
use larder_operations::{ClassCounters, CommandClass, Counter, Histogram, HotKey, ThreadCounters};
use larder_store::{ClassGauges, FlashPage};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// What a section is shown for.
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
    /// A key or prefix that many requests are for.
    Hot(&'a HotKey),
    /// A server that keeps a copy of this one's items.
    Follower(&'a FollowerStatus),
}

/// One statistic.
#[derive(Debug)]
pub struct Row {
    /// memcached's name, without what its section has in front.
    pub name: &'static str,
    /// How it changes.
    pub kind: Kind,
    /// What it is counted in.
    pub unit: Unit,
    /// One sentence for operators.
    pub help: &'static str,
    /// Its name among the metrics; `None` for what a monitoring system has no use for.
    pub metric: Option<Metric>,
    /// When it is shown, if not always.
    pub condition: Option<Condition>,
    source: Source,
}

/// How a statistic changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until `stats reset` or a restart.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is no number.
    Text,
    /// It is always the same: what memcached measures there does not exist here.
    Constant,
}

/// What a number is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count of things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds; metrics have seconds.
    Microseconds,
}

/// The name of a statistic in Prometheus' form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// Names and values of its labels.
    pub labels: &'static [(&'static str, &'static str)],
}

/// When a row is shown.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// What follows the word "Shown" in the documentation.
    pub text: &'static str,
    holds: fn(&Snapshot<'_>, &Entry<'_>) -> bool,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A count that each thread keeps.
    Thread(fn(&ThreadCounters) -> &Counter),
    /// A count that each thread keeps for each size class: that of the class which the section is
    /// shown for, or of all classes.
    Class(fn(&ClassCounters) -> &Counter),
    /// A total that the engine keeps for each size class, likewise.
    Engine(fn(&ClassGauges) -> u64),
    /// Anything else about the whole server.
    Server(fn(&Snapshot<'_>) -> Value),
    /// What memcached would need for the items of a size class.
    Slab(fn(&SlabClass) -> u64),
    /// Something about a listener or connection.
    Socket(fn(&Socket<'_>) -> Value),
    /// Something about a page of the flash tier.
    Page(fn(&FlashPage) -> u64),
    /// Something about the latencies of a class of commands.
    Latency(fn(&Histogram) -> Value),
    /// Something about a key or prefix that many requests are for.
    Hot(fn(&HotKey) -> Value),
    /// Something about a follower.
    Follower(fn(&FollowerStatus) -> Value),
    /// It never changes.
    Constant(&'static str),
}

/// A value as it was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Whole(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A number as it was given, or, with decimals, rounded.
    Real(f64, Option<usize>),
    /// A time, shown in seconds and microseconds.
    Time(Duration),
    /// `yes` or `no`.
    Flag(bool),
    /// Words.
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

    /// What a constant always is.
    #[must_use]
    pub fn constant_value(&self) -> Option<&'static str> {
        match self.source {
            Source::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Its value; `None` if it is not shown for this entry now.
    pub(super) fn read(&self, snapshot: &Snapshot<'_>, entry: &Entry<'_>) -> Option<Value> {
        let shown = self.condition.is_none_or(|condition| (condition.holds)(snapshot, entry));
        shown.then(|| self.source.read(snapshot, entry)).flatten()
    }
}

impl Source {
    /// `None` for a source that does not know this kind of entry.
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
    /// The unit that metrics have, as their names end, and what a value is multiplied with.
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
    /// 1 or 0, for what memcached shows so instead of `yes` and `no`.
    pub(super) fn bit(on: bool) -> Self {
        Self::Whole(on.into())
    }

    /// The number that it is, if it is one.
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
