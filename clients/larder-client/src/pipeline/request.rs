//! Requests as values, and the interpretation of their replies.

use crate::core::connection::Connection;
use crate::core::key::Key;
use crate::core::operation::batch::Batch;
use crate::core::operation::{
    Count, Delete, Flush, Get, GetMany, Operation, ReplyFailure, Stats, Store, Touch, Version, one,
};
use crate::error::Error;
use crate::item::{CountOutcome, Item, StoreOutcome, StoreRequest, Ttl};
use bytes::Bytes;
use larder_protocol::answer::Answer;
use larder_protocol::encode::WireKey;

/// A request to one server. A request for several items is sent as a batch and has a single result.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Looks up an item. Result: [`Output::Item`].
    Get {
        /// The key of the item.
        key: &'a [u8],
        /// Whether to request the CAS.
        cas: bool,
        /// The new TTL of the item. `None` leaves its expiry unchanged.
        touch: Option<Ttl>,
    },
    /// Looks up several items. Result: [`Output::Items`].
    GetMany {
        /// The keys of the items.
        keys: &'a [&'a [u8]],
        /// Whether to request the CAS of each item.
        cas: bool,
    },
    /// Stores items. Result: [`Output::Stored`].
    Store(&'a [StoreRequest<'a>]),
    /// Deletes items. Result: [`Output::Found`].
    Delete(&'a [&'a [u8]]),
    /// Sets the TTL of an item. Result: [`Output::Found`].
    Touch {
        /// The key of the item.
        key: &'a [u8],
        /// The new TTL.
        ttl: Ttl,
    },
    /// Increments or decrements a number. Result: [`Output::Counted`].
    Count {
        /// The key of the item.
        key: &'a [u8],
        /// Whether to decrement.
        down: bool,
        /// The amount to add or subtract.
        delta: u64,
    },
    /// Removes all items after this delay. Result: [`Output::Done`].
    Flush(Ttl),
    /// Requests the server's version. Result: [`Output::Version`].
    Version,
    /// Requests the statistics page for a topic. `None` selects the general page. Result:
    /// [`Output::Stats`].
    Stats(Option<&'a str>),
}

/// The result of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The item, if it exists.
    Item(Option<Item>),
    /// One item per key, in the order of the keys.
    Items(Vec<Option<Item>>),
    /// One outcome per store, in the order of the stores.
    Stored(Vec<StoreOutcome>),
    /// Whether the item existed, for each key in the order of the keys.
    Found(Vec<bool>),
    /// The outcome of an increment or decrement.
    Counted(CountOutcome),
    /// The server has accepted the flush.
    Done,
    /// The server's version.
    Version(String),
    /// Statistics: names and values.
    Stats(Vec<(String, String)>),
}

/// A valid request, ready to be sent.
pub(super) enum CheckedRequest<'a> {
    Get(Get<'a>),
    GetMany(Vec<Key<'a>>, bool),
    Store(Store<'a, 'a>),
    StoreMany(Batch<Store<'a, 'a>>),
    Delete(Delete<'a>),
    DeleteMany(Batch<Delete<'a>>),
    Touch(Touch<'a>),
    Count(Count<'a>),
    Flush(Flush),
    Version,
    Stats(Stats<'a>),
}

/// The part of a request that is necessary to interpret its replies.
#[derive(Debug)]
pub(super) enum PendingReply {
    Item(Box<[u8]>),
    Items(Box<[Box<[u8]>]>),
    Stored,
    Removed,
    Touched,
    Counted,
    Done,
    Version,
    Stats,
}

impl<'a> Request<'a> {
    /// Returns whether the request changes nothing.
    pub(super) fn reads(&self) -> bool {
        match self {
            Self::Get { touch, .. } => touch.is_none(),
            Self::GetMany { .. } | Self::Version | Self::Stats(_) => true,
            Self::Store(_) | Self::Delete(_) | Self::Touch { .. } => false,
            Self::Count { .. } | Self::Flush(_) => false,
        }
    }

    /// Returns the output of a request without keys or items. Such a request is not sent. Returns
    /// `None` for other requests.
    pub(super) fn empty_output(&self) -> Option<Output> {
        match self {
            Self::GetMany { keys: [], .. } => Some(Output::Items(Vec::new())),
            Self::Store([]) => Some(Output::Stored(Vec::new())),
            Self::Delete([]) => Some(Output::Found(Vec::new())),
            _ => None,
        }
    }

    /// Returns the part that is necessary to interpret the replies.
    pub(super) fn pending_reply(&self) -> PendingReply {
        match self {
            Self::Get { key, .. } => PendingReply::Item((*key).into()),
            Self::GetMany { keys, .. } => {
                PendingReply::Items(keys.iter().map(|key| (*key).into()).collect())
            }
            Self::Store(_) => PendingReply::Stored,
            Self::Delete(_) => PendingReply::Removed,
            Self::Touch { .. } => PendingReply::Touched,
            Self::Count { .. } => PendingReply::Counted,
            Self::Flush(_) => PendingReply::Done,
            Self::Version => PendingReply::Version,
            Self::Stats(_) => PendingReply::Stats,
        }
    }

    /// Validates the request.
    ///
    /// # Errors
    /// A key or a value is invalid.
    pub(super) fn check(&self) -> Result<CheckedRequest<'a>, Error> {
        Ok(match *self {
            Self::Get { key, cas, touch } => CheckedRequest::Get(Get {
                key: Key::new(key)?,
                cas,
                touch: touch.map(Ttl::exptime),
            }),
            Self::GetMany { keys, cas } => {
                let keys: Result<_, _> = keys.iter().map(|key| Key::new(key)).collect();
                CheckedRequest::GetMany(keys?, cas)
            }
            Self::Store([item]) => CheckedRequest::Store(store(item)?),
            Self::Store(items) => {
                let stores: Result<_, Error> = items.iter().map(store).collect();
                CheckedRequest::StoreMany(Batch::new(stores?))
            }
            Self::Delete([key]) => CheckedRequest::Delete(delete(key)?),
            Self::Delete(keys) => {
                let deletes: Result<_, Error> = keys.iter().map(|key| delete(key)).collect();
                CheckedRequest::DeleteMany(Batch::new(deletes?))
            }
            Self::Touch { key, ttl } => {
                CheckedRequest::Touch(Touch { key: Key::new(key)?, expiry: ttl.exptime() })
            }
            Self::Count { key, down, delta } => {
                CheckedRequest::Count(Count { key: Key::new(key)?, down, delta, create: None })
            }
            Self::Flush(delay) => CheckedRequest::Flush(Flush(delay.exptime())),
            Self::Version => CheckedRequest::Version,
            Self::Stats(topic) => {
                let topic = topic.filter(|topic| !topic.is_empty());
                let topic = topic.map(|topic| WireKey::new(topic.as_bytes())).transpose();
                CheckedRequest::Stats(Stats(topic?))
            }
        })
    }
}

fn store<'a>(request: &StoreRequest<'a>) -> Result<Store<'a, 'a>, Error> {
    Store::new(request.mode, request.key, request.item(), request.cas)
}

fn delete(key: &[u8]) -> Result<Delete<'_>, Error> {
    Ok(Delete { key: Key::new(key)?, compare: None, stale: None })
}

impl CheckedRequest<'_> {
    pub(super) fn encode(self, connection: &mut Connection) {
        match self {
            Self::Get(mut operation) => operation.encode(connection),
            Self::GetMany(keys, cas) => GetMany::new(&keys, cas).encode(connection),
            Self::Store(mut operation) => operation.encode(connection),
            Self::StoreMany(mut operation) => operation.encode(connection),
            Self::Delete(mut operation) => operation.encode(connection),
            Self::DeleteMany(mut operation) => operation.encode(connection),
            Self::Touch(mut operation) => operation.encode(connection),
            Self::Count(mut operation) => operation.encode(connection),
            Self::Flush(mut operation) => operation.encode(connection),
            Self::Version => Version.encode(connection),
            Self::Stats(mut operation) => operation.encode(connection),
        }
    }
}

impl PendingReply {
    /// Interprets the replies to the request.
    ///
    /// # Errors
    /// [`ReplyFailure`]: the server reported an error, or the replies do not match the request.
    pub(super) fn output(&self, replies: &[Bytes]) -> Result<Output, ReplyFailure> {
        let key = |key| Key::new(key).map_err(|_| ReplyFailure::unexpected("unexpected"));
        match self {
            Self::Item(name) => {
                let operation = Get { key: key(name)?, cas: false, touch: None };
                last(operation, replies).map(Output::Item)
            }
            Self::Items(names) => {
                let keys = names.iter().map(|name| key(name)).collect::<Result<Vec<_>, _>>()?;
                last(GetMany::sent(&keys, replies.len()), replies).map(Output::Items)
            }
            Self::Stored => each(replies, Store::known).map(Output::Stored),
            Self::Removed => each(replies, Delete::known).map(Output::Found),
            Self::Touched => each(replies, Touch::known).map(Output::Found),
            Self::Counted => single(replies, Count::known).map(Output::Counted),
            Self::Done => single(replies, Flush::known).map(|()| Output::Done),
            Self::Version => single(replies, Version::known).map(Output::Version),
            Self::Stats => last(Stats(None), replies).map(Output::Stats),
        }
    }
}

/// Interprets all replies to an operation, and returns its output.
fn last<O: Operation>(mut operation: O, replies: &[Bytes]) -> Result<O::Output, ReplyFailure> {
    for reply in replies {
        if let Some(output) = operation.take(reply)? {
            return Ok(output);
        }
    }
    Err(ReplyFailure::unexpected(""))
}

/// Interprets replies that consist of one message each. A failure in a batch is not definite,
/// because the server may have carried out other requests of the batch.
fn each<T>(
    replies: &[Bytes],
    interpret: impl Fn(&Answer<'_>) -> Option<T>,
) -> Result<Vec<T>, ReplyFailure> {
    let is_alone = replies.len() == 1;
    let outputs = replies.iter().map(|reply| single(std::slice::from_ref(reply), &interpret));
    outputs.collect::<Result<_, _>>().map_err(|failure: ReplyFailure| ReplyFailure {
        is_definite: failure.is_definite && is_alone,
        ..failure
    })
}

fn single<T>(
    replies: &[Bytes],
    interpret: impl FnOnce(&Answer<'_>) -> Option<T>,
) -> Result<T, ReplyFailure> {
    let output = replies.first().map(|reply| one(reply, interpret)).transpose()?.flatten();
    output.ok_or_else(|| ReplyFailure::unexpected(""))
}
