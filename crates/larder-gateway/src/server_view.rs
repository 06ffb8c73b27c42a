//! The server as its interfaces see it.

use crate::web_counts::WebCounts;
use larder_operations::{EventQueue, Latencies, Limits, Observer};
use larder_store::Now;
use std::sync::Arc;
use std::task::Waker;

/// What a server shows of itself. It is asked on the gateway's thread, while workers go on.
pub trait ServerView: Send + Sync + 'static {
    /// Visits all metrics but latencies, as they are now.
    fn samples(&self, visit: &mut dyn FnMut(Sample));

    /// What the gateway counts of HTTP and gRPC.
    fn web_counts(&self) -> &WebCounts;

    /// The latencies of all threads together.
    fn latencies(&self) -> Latencies;

    /// The time.
    fn now(&self) -> Now;

    /// A random number.
    fn random(&self) -> u64;

    /// The limits of operations.
    fn limits(&self) -> &Limits;

    /// The memory limit of the cache, in bytes.
    fn memory_limit(&self) -> u64;

    /// Visits the names and values of a page of statistics; false if there is no such page.
    fn statistics(&self, page: &str, visit: &mut dyn FnMut(&str, &str)) -> bool;

    /// What receives the events of operations, if anything does.
    fn observer(&self) -> Option<&dyn Observer>;

    /// Whether clients may watch events.
    fn watch_allowed(&self) -> bool;

    /// Has events put into a queue from now on; false if there are as many watchers as there may be.
    fn watch(&self, queue: &Arc<EventQueue>) -> bool;

    /// Has no more events put into a queue.
    fn unwatch(&self, queue: &Arc<EventQueue>);

    /// Whether clients have to log in.
    fn login_required(&self) -> bool;

    /// What a client may do that logs in so; `None` if the login is wrong.
    fn log_in(&self, login: &Login<'_>) -> Option<Rights>;

    /// Whether clients may remove all items at once.
    fn flush_allowed(&self) -> bool;

    /// Whether clients may only read, because the items are a copy of another server's.
    fn read_only(&self) -> bool;

    /// Whether this server answers requests about items of its group at the moment, and not another one, or nobody.
    /// Lookups may be answered from a copy.
    fn answers(&self, is_look_up: bool) -> bool;

    /// The group that has a key.
    fn group_of(&self, key: &[u8]) -> Group;

    /// All groups that have items, or are to get some.
    fn groups(&self) -> Vec<Group>;

    /// The way of a request to the server that answers for a group, which is another one.
    fn open(&self, group: Group) -> Box<dyn Asking>;

    /// Whether clients may have keys listed.
    fn dumps_allowed(&self) -> bool;

    /// Whether the server takes requests, rather than ending.
    fn is_ready(&self) -> bool;

    /// The memory that all connections may hold together, in bytes.
    fn connection_memory(&self) -> usize;

    /// Counts memory for a connection, in bytes; false if there is not so much left for connections. No other
    /// connection is closed for it.
    fn reserve(&self, bytes: usize) -> bool;

    /// Gives back what was reserved.
    fn release(&self, bytes: usize);
}

/// Servers that have the same items, as this server numbers them. Without a cluster there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

impl Group {
    /// The group of this server.
    pub const OWN: Self = Self(0);
}

/// The way of one request, in memcached's protocol, to another server. Dropping it gives the answer up.
pub trait Asking: Send {
    /// Whether more may be sent of a request whose beginning was. If not, `waker` is called when it may, or when something
    /// has become of the request.
    fn has_room(&mut self, waker: &Waker) -> bool;

    /// Sends the next bytes of the request. `more`: its rest follows. `waker` is called when something has become of
    /// the request.
    fn send(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Appends what has come of the answer, and says what has become of the request.
    fn take(&mut self, into: &mut Vec<u8>) -> Asked;

    /// Asks for the rest of the answer.
    fn go_on(&mut self);
}

/// What has become of a request to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is not answered yet.
    Waiting,
    /// There is a part of the answer; the rest comes after [`Asking::go_on`].
    More,
    /// It is answered.
    Answered,
    /// It was not carried out, and may be repeated: its item may be elsewhere now, or here.
    Again,
    /// It may have been carried out, and no answer will come.
    Lost,
    /// Nobody answers for that group at the moment.
    Nobody,
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
