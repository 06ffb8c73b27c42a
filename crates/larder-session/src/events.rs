//! Reports request events to the host, which passes them to log watchers and counts requests per
//! key prefix. In each poll that may answer requests, the session queries the host for the events
//! that the host observes. If the host observes none, each operation costs only one more branch.

use crate::{Host, PrefixEvent};
use larder_operations::{Event, LookupResult, Observer, StoreKind, StoreOutcome};
use larder_protocol::watch::{self, ItemLine, StoreCommand, StoreStatus};
use larder_protocol::{ReplyFormat, Request, Streams};

/// An observer that reports the events of one request's operations to the host.
pub(crate) struct RequestObserver<'r, H> {
    host: &'r H,
    /// The connection's number in the log.
    client: u64,
    /// The log streams that the host observes: see [`Host::observed`].
    wanted: Streams,
    by_meta: bool,
    /// The prefix counter that this request increments; `None` if it increments no counter. For a
    /// lookup, `count_prefix` replaces the field of [`PrefixEvent::Get`] by the result of the
    /// lookup.
    prefix_event: Option<PrefixEvent>,
    /// Whether the request is a touch that returns no value. Its lookup does not read the item for
    /// the client.
    only_touches: bool,
}

impl<'r, H: Host> RequestObserver<'r, H> {
    pub(crate) fn new(host: &'r H, client: u64, wanted: Streams, request: &Request<'_>) -> Self {
        let (format, event) = match request {
            Request::Get(get) => (Some(&get.format), get.value.then_some(PrefixEvent::Get(false))),
            Request::Store(store) => (Some(&store.format), Some(PrefixEvent::Set)),
            Request::Delete(delete) => (Some(&delete.format), Some(PrefixEvent::Delete)),
            _ => (None, None),
        };
        let by_meta = matches!(format, Some(ReplyFormat::Meta(_)));
        let counts = !by_meta && wanted.has(Streams::PREFIXES);
        let prefix_event = event.filter(|_| counts);
        let only_touches =
            matches!(request, Request::Get(get) if get.touch.is_some() && !get.value);
        Self { host, client, wanted, by_meta, prefix_event, only_touches }
    }

    /// Returns an observer for a RESP, HTTP or gRPC request, which the host does not count by
    /// prefix.
    pub(crate) fn unprefixed(host: &'r H, client: u64, wanted: Streams) -> Self {
        let (by_meta, only_touches) = (false, false);
        Self { host, client, wanted, by_meta, prefix_event: None, only_touches }
    }

    fn count_prefix(&self, key: &[u8], found: LookupResult) {
        let event = match self.prefix_event {
            Some(PrefixEvent::Get(_)) => PrefixEvent::Get(found.class().is_some()),
            Some(event) => event,
            None => return,
        };
        self.host.count_prefix(key, event);
    }

    fn log(&self, stream: Streams, line: &ItemLine<'_>) {
        if self.wanted.has(stream) {
            self.host.log_item(stream, line);
        }
    }
}

impl<H: Host> Observer for RequestObserver<'_, H> {
    fn notify(&self, event: &Event<'_>) {
        let client = self.client;
        match *event {
            Event::Fetched { key, found, is_read } => {
                self.count_prefix(key, found);
                let (found, class, size) = match found {
                    LookupResult::Live { class, value_len } => {
                        (watch::LookupStatus::Live, class + 1, value_len)
                    }
                    LookupResult::Nothing => (watch::LookupStatus::Nothing, 0, 0),
                    LookupResult::Expired => (watch::LookupStatus::Expired, 0, 0),
                    LookupResult::Flushed => (watch::LookupStatus::Flushed, 0, 0),
                };
                let is_read = is_read && !self.only_touches;
                let line = ItemLine::Get { key, found, class, client, size, is_read };
                self.log(Streams::FETCHERS, &line);
            }
            Event::Stored { key, outcome, kind, ttl, class, value_len: size } => {
                // A refused store emits no lookup event, so count the set here. memcached, too,
                // counts a set before it allocates the item.
                if matches!(
                    outcome,
                    StoreOutcome::TooLarge | StoreOutcome::OutOfMemory | StoreOutcome::NoCas
                ) {
                    self.count_prefix(key, LookupResult::Nothing);
                }
                let (status, command) = (status(outcome), command(kind));
                let (ttl, class) = (ttl.unwrap_or(0), class + 1);
                let line = ItemLine::Store { key, status, command, ttl, class, client, size };
                self.log(Streams::MUTATIONS, &line);
            }
            Event::Removed { key, class, value_len: size } => {
                let (by_meta, class) = (self.by_meta, class + 1);
                let line = ItemLine::Deleted { key, by_meta, class, size };
                self.log(Streams::DELETIONS, &line);
            }
        }
    }
}

/// Reports an event of an operation to the host, for interfaces that have no session.
pub fn notify_host<H: Host>(host: &H, event: &Event<'_>) {
    RequestObserver::unprefixed(host, 0, host.observed()).notify(event);
}

fn status(outcome: StoreOutcome) -> StoreStatus {
    match outcome {
        StoreOutcome::Stored { .. } => StoreStatus::Stored,
        StoreOutcome::NotStored => StoreStatus::NotStored,
        StoreOutcome::Exists => StoreStatus::Exists,
        StoreOutcome::NotFound => StoreStatus::NotFound,
        StoreOutcome::TooLarge => StoreStatus::TooLarge,
        StoreOutcome::OutOfMemory | StoreOutcome::NoCas | StoreOutcome::Pending => {
            StoreStatus::NoMemory
        }
    }
}

fn command(kind: StoreKind) -> StoreCommand {
    match kind {
        StoreKind::Set => StoreCommand::Set,
        StoreKind::Add => StoreCommand::Add,
        StoreKind::Replace => StoreCommand::Replace,
        StoreKind::Append => StoreCommand::Append,
        StoreKind::Prepend => StoreCommand::Prepend,
        StoreKind::Compare => StoreCommand::Cas,
    }
}
