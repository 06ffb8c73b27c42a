//! Requests as values, and what their replies mean.

use crate::core::connection::Connection;
use crate::core::key::Key;
use crate::core::operation::batch::Batch;
use crate::core::operation::{
    Count, Delete, Failure, Flush, Get, GetMany, Operation, Stats, Store, Touch, Version, one,
};
use crate::error::Error;
use crate::item::{Counted, Item, StoreRequest, Stored, Ttl};
use bytes::Bytes;
use larder_protocol::answer::Answer;
use larder_protocol::encode::WireKey;

/// A request to one server. Those for several items are sent together, and are answered as one call.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Looks an item up: [`Output::Item`].
    Get {
        /// Which item.
        key: &'a [u8],
        /// Whether the CAS is wanted.
        cas: bool,
        /// How long the item lives from now on; `None` leaves its expiry as it is.
        touch: Option<Ttl>,
    },
    /// Looks several items up: [`Output::Items`].
    GetMany {
        /// Which items.
        keys: &'a [&'a [u8]],
        /// Whether their CAS are wanted.
        cas: bool,
    },
    /// Stores items: [`Output::Stored`].
    Store(&'a [StoreRequest<'a>]),
    /// Removes the items of these keys: [`Output::Found`].
    Delete(&'a [&'a [u8]]),
    /// Sets how long an item lives: [`Output::Found`].
    Touch {
        /// Which item.
        key: &'a [u8],
        /// How long.
        ttl: Ttl,
    },
    /// Counts up or down: [`Output::Counted`].
    Count {
        /// Which item.
        key: &'a [u8],
        /// Whether the number becomes smaller.
        down: bool,
        /// By how much.
        delta: u64,
    },
    /// Removes all items after a time: [`Output::Done`].
    Flush(Ttl),
    /// Asks for the server's version: [`Output::Version`].
    Version,
    /// Asks for a page of statistics: [`Output::Stats`]. Without a topic it is the general page.
    Stats(Option<&'a str>),
}

/// What a server has answered to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The item, if there is one.
    Item(Option<Item>),
    /// What was found for each key, in their order.
    Items(Vec<Option<Item>>),
    /// The outcome of each store, in their order.
    Stored(Vec<Stored>),
    /// Whether there was an item, for each key in their order.
    Found(Vec<bool>),
    /// The outcome of counting.
    Counted(Counted),
    /// It is done.
    Done,
    /// The server's version.
    Version(String),
    /// Names and values.
    Stats(Vec<(String, String)>),
}

/// A request that can be sent.
pub(super) enum Checked<'a> {
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

/// What is kept of a request until its replies have come.
#[derive(Debug)]
pub(super) enum Awaited {
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
    /// Whether it changes nothing.
    pub(super) fn reads(&self) -> bool {
        match self {
            Self::Get { touch, .. } => touch.is_none(),
            Self::GetMany { .. } | Self::Version | Self::Stats(_) => true,
            Self::Store(_) | Self::Delete(_) | Self::Touch { .. } => false,
            Self::Count { .. } | Self::Flush(_) => false,
        }
    }

    /// The output if nothing is asked for.
    pub(super) fn nothing(&self) -> Option<Output> {
        match self {
            Self::GetMany { keys: [], .. } => Some(Output::Items(Vec::new())),
            Self::Store([]) => Some(Output::Stored(Vec::new())),
            Self::Delete([]) => Some(Output::Found(Vec::new())),
            _ => None,
        }
    }

    /// What is to be kept of it.
    pub(super) fn awaited(&self) -> Awaited {
        match self {
            Self::Get { key, .. } => Awaited::Item((*key).into()),
            Self::GetMany { keys, .. } => {
                Awaited::Items(keys.iter().map(|key| (*key).into()).collect())
            }
            Self::Store(_) => Awaited::Stored,
            Self::Delete(_) => Awaited::Removed,
            Self::Touch { .. } => Awaited::Touched,
            Self::Count { .. } => Awaited::Counted,
            Self::Flush(_) => Awaited::Done,
            Self::Version => Awaited::Version,
            Self::Stats(_) => Awaited::Stats,
        }
    }

    /// # Errors
    /// No server takes such a key or value.
    pub(super) fn check(&self) -> Result<Checked<'a>, Error> {
        Ok(match *self {
            Self::Get { key, cas, touch } => {
                Checked::Get(Get { key: Key::new(key)?, cas, touch: touch.map(Ttl::exptime) })
            }
            Self::GetMany { keys, cas } => {
                let keys: Result<_, _> = keys.iter().map(|key| Key::new(key)).collect();
                Checked::GetMany(keys?, cas)
            }
            Self::Store([item]) => Checked::Store(store(item)?),
            Self::Store(items) => {
                let stores: Result<_, Error> = items.iter().map(store).collect();
                Checked::StoreMany(Batch::new(stores?))
            }
            Self::Delete([key]) => Checked::Delete(delete(key)?),
            Self::Delete(keys) => {
                let deletes: Result<_, Error> = keys.iter().map(|key| delete(key)).collect();
                Checked::DeleteMany(Batch::new(deletes?))
            }
            Self::Touch { key, ttl } => {
                Checked::Touch(Touch { key: Key::new(key)?, expiry: ttl.exptime() })
            }
            Self::Count { key, down, delta } => {
                Checked::Count(Count { key: Key::new(key)?, down, delta, create: None })
            }
            Self::Flush(delay) => Checked::Flush(Flush(delay.exptime())),
            Self::Version => Checked::Version,
            Self::Stats(topic) => {
                let topic = topic.filter(|topic| !topic.is_empty());
                let topic = topic.map(|topic| WireKey::new(topic.as_bytes())).transpose();
                Checked::Stats(Stats(topic?))
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

impl Checked<'_> {
    pub(super) fn begin(self, connection: &mut Connection) {
        match self {
            Self::Get(mut operation) => operation.begin(connection),
            Self::GetMany(keys, cas) => GetMany::new(&keys, cas).begin(connection),
            Self::Store(mut operation) => operation.begin(connection),
            Self::StoreMany(mut operation) => operation.begin(connection),
            Self::Delete(mut operation) => operation.begin(connection),
            Self::DeleteMany(mut operation) => operation.begin(connection),
            Self::Touch(mut operation) => operation.begin(connection),
            Self::Count(mut operation) => operation.begin(connection),
            Self::Flush(mut operation) => operation.begin(connection),
            Self::Version => Version.begin(connection),
            Self::Stats(mut operation) => operation.begin(connection),
        }
    }
}

impl Awaited {
    /// What the replies to the request say.
    ///
    /// # Errors
    /// [`Failure`]: they have not what was asked for.
    pub(super) fn output(&self, replies: &[Bytes]) -> Result<Output, Failure> {
        let key = |key| Key::new(key).map_err(|_| Failure::unexpected("a key was changed"));
        match self {
            Self::Item(name) => {
                let operation = Get { key: key(name)?, cas: false, touch: None };
                last(operation, replies).map(Output::Item)
            }
            Self::Items(names) => {
                let keys = names.iter().map(|name| key(name)).collect::<Result<Vec<_>, _>>()?;
                last(GetMany::begun(&keys, replies.len()), replies).map(Output::Items)
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

/// The output that an operation has with its last reply.
fn last<O: Operation>(mut operation: O, replies: &[Bytes]) -> Result<O::Output, Failure> {
    for reply in replies {
        if let Some(output) = operation.take(reply)? {
            return Ok(output);
        }
    }
    Err(Failure::unexpected(""))
}

/// What each reply of one answer says. If one of several says what it should not, the others may have happened.
fn each<T>(replies: &[Bytes], known: impl Fn(&Answer<'_>) -> Option<T>) -> Result<Vec<T>, Failure> {
    let is_alone = replies.len() == 1;
    let outputs = replies.iter().map(|reply| single(std::slice::from_ref(reply), &known));
    outputs.collect::<Result<_, _>>().map_err(|failure: Failure| Failure {
        is_definite: failure.is_definite && is_alone,
        ..failure
    })
}

fn single<T>(
    replies: &[Bytes],
    known: impl FnOnce(&Answer<'_>) -> Option<T>,
) -> Result<T, Failure> {
    let output = replies.first().map(|reply| one(reply, known)).transpose()?.flatten();
    output.ok_or_else(|| Failure::unexpected(""))
}
