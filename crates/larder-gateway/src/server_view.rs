//! The interface between the gateway and the server process.

use crate::web_counts::WebCounts;
use larder_operations::{EventQueue, Latencies, Limits, Observer};
use larder_store::Now;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// State of the server. The gateway calls these methods on its own threads, concurrently with the
/// workers.
pub trait ServerView: Send + Sync + 'static {
    /// Visits the current samples of the server's metrics. Excludes latencies, gateway metrics and
    /// process metrics.
    fn samples(&self, visit: &mut dyn FnMut(MetricSample));

    /// Returns the gateway's counters of HTTP and gRPC.
    fn web_counts(&self) -> &WebCounts;

    /// Returns the latencies of all threads, summed.
    fn latencies(&self) -> Latencies;

    /// Returns the current time on the cache's clock.
    fn now(&self) -> Now;

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Returns the limits of operations.
    fn limits(&self) -> &Limits;

    /// Returns the memory limit of the cache, in bytes.
    fn memory_limit(&self) -> u64;

    /// Visits the names and values on a statistics page. Returns false if there is no such page, or
    /// if this server does not allow it.
    fn statistics(&self, page: &str, visit: &mut dyn FnMut(&str, &str)) -> bool;

    /// Returns the observer of operations, or `None` if operations need not be reported.
    fn observer(&self) -> Option<&dyn Observer>;

    /// Returns whether clients may watch events.
    fn watch_allowed(&self) -> bool;

    /// Registers a watcher's queue, which receives events from now on. Returns false if there are
    /// too many watchers.
    fn watch(&self, queue: &Arc<EventQueue>) -> bool;

    /// Unregisters a watcher's queue.
    fn unwatch(&self, queue: &Arc<EventQueue>);

    /// Returns whether clients have to log in.
    fn login_required(&self) -> bool;

    /// Checks a login. Returns the permissions of the client, or `None` if the login is wrong.
    fn log_in(&self, login: &Login<'_>) -> Option<Rights>;

    /// Returns whether clients may flush the cache.
    fn flush_allowed(&self) -> bool;

    /// Returns whether clients may only read, because this server follows another one and forwards
    /// no changes.
    fn read_only(&self) -> bool;

    /// Returns whether this server currently serves requests about items of its group. A server
    /// outside a cluster, and the leader of a group, serve all such requests. If `is_lookup` is
    /// true, a replica whose items are recent enough for lookups also serves such requests.
    fn serves(&self, is_lookup: bool) -> bool;

    /// Returns the group that owns a key.
    fn group_of(&self, key: &[u8]) -> Group;

    /// Returns all groups that own items or import them.
    fn groups(&self) -> Vec<Group>;

    /// Returns the time for which the gateway may repeat a request that its group has not executed.
    /// The time is longer during a leadership transfer.
    fn retry_time(&self, group: Group) -> Duration;

    /// Opens a request to the leader of `group`, which is another server.
    fn open_route(&self, group: Group) -> Box<dyn RemoteRequest>;

    /// Returns whether clients may list keys.
    fn dumps_allowed(&self) -> bool;

    /// Returns whether the server accepts requests: false while it shuts down.
    fn is_ready(&self) -> bool;

    /// Returns the memory limit of all connections together, in bytes.
    fn connection_memory(&self) -> usize;

    /// Reserves this many bytes of memory for a connection. Returns false if the limit is reached.
    /// Does not close other connections to make room.
    fn reserve(&self, bytes: usize) -> bool;

    /// Releases this many bytes of reserved memory.
    fn release(&self, bytes: usize);
}

/// A group of servers with the same items, identified by a number that is valid only on this
/// server. Without a cluster, there is only [`Group::OWN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

impl Group {
    /// The group of this server.
    pub const OWN: Self = Self(0);
}

/// One request to another server, in memcached's protocol. Dropping it discards the reply.
pub trait RemoteRequest: Send {
    /// Returns whether the next bytes of the request can be sent now. If not, `waker` is called
    /// when the bytes can be sent or the state of the request changes.
    fn has_room(&mut self, waker: &Waker) -> bool;

    /// Sends the next bytes of the request. `more` is true if further bytes will follow. `waker` is
    /// called when the state of the request changes.
    fn send(&mut self, bytes: &[u8], more: bool, waker: &Waker);

    /// Appends the received bytes of the reply to `into`, and returns the state of the request.
    fn take(&mut self, into: &mut Vec<u8>) -> RemoteState;

    /// Requests the next part of the reply, after [`RemoteState::Partial`].
    fn request_rest(&mut self);
}

/// The state of a request to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteState {
    /// No part of the reply has arrived yet.
    Waiting,
    /// A part of the reply has arrived. The rest follows after [`RemoteRequest::request_rest`].
    Partial,
    /// The reply is complete.
    Complete,
    /// The request was not executed and can be repeated: the owner of the item may have changed.
    Retry,
    /// The connection was lost: the request may have been executed, but the rest of its reply will
    /// not arrive.
    ConnectionLost,
    /// The group has no leader, or too many unsent bytes are queued for its leader.
    NoLeader,
}

/// The credentials of a client.
#[derive(Clone, Copy)]
pub enum Login<'a> {
    /// A user name and password.
    User(&'a [u8], &'a [u8]),
    /// A bearer token.
    Token(&'a [u8]),
}

/// The permissions of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All requests.
    All,
    /// Requests that change nothing.
    Read,
}

/// One sample: a metric's value for one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The metric's Prometheus name; a counter's name ends in `_total`.
    pub name: &'static str,
    /// The names and values of labels.
    pub labels: &'static [(&'static str, &'static str)],
    /// Further labels, whose values are known only at run time, such as the name of a node.
    pub dynamic_labels: Vec<(&'static str, String)>,
    /// One sentence about the metric, the same for all labels.
    pub help: &'static str,
    /// The kind of the metric.
    pub kind: MetricKind,
    /// The value. Times are in seconds, sizes in bytes.
    pub value: f64,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows, until it is reset or the server restarts.
    Counter,
    /// A value that can rise and fall.
    Gauge,
}
