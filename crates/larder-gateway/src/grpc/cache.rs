//! The methods of `larder.v1.Cache`.

use super::codec::{MESSAGE_LEN_MAX, PARTS_MAX};
use super::fields::{self, NewItem, expiry, no_tags, out_of_memory, tag, ttl};
use super::guard::owner_unreachable;
use super::memory::RequestMemory;
use super::pb;
use super::pb::Outcome;
use super::pb::cache_server::Cache;
use super::{value, watch};
use crate::items::{LookupOutcome, StoredItem, is_binary};
use crate::web::app::App;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, Stream};
use larder_operations::{
    ArithmeticOutcome, Count, CreateNumber, ExpireOutcome, Remove, RemoveOutcome,
};
use std::collections::VecDeque;
use tokio::task::yield_now;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

/// A `GetMany` runs at most this many lookups concurrently, so that their waits for slower storage
/// overlap.
const CONCURRENT_MAX: usize = 32;
/// The maximum length, in bytes, of an encoded reply without its value.
const FIELDS_LEN: usize = 64;

pub(super) struct CacheService(pub(super) App);

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Cache for CacheService {
    type GetManyStream = BoxStream<pb::GetResponse>;
    type ReadStream = BoxStream<pb::ReadResponse>;
    type WatchStream = BoxStream<pb::WatchResponse>;

    async fn get(&self, request: Request<pb::GetRequest>) -> RpcResult<pb::GetResponse> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        let found = look_up(&self.0, fields::key(&request.get_ref().key)?).await?;
        Ok(Response::new(whole_reply(&self.0, &memory, found, 0).await?))
    }

    async fn get_many(
        &self,
        request: Request<pb::GetManyRequest>,
    ) -> RpcResult<BoxStream<pb::GetResponse>> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        let keys = request.into_inner().keys;
        if keys.len() > PARTS_MAX {
            let text = format!("A request may have at most {PARTS_MAX} keys.");
            return Err(Status::invalid_argument(text));
        }
        keys.iter().try_for_each(|key| fields::key(key).map(|_| ()))?;
        memory.require(&self.0, keys_len(&keys)).await?;
        Ok(Response::new(Box::pin(replies(self.0.clone(), memory, keys))))
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> RpcResult<BoxStream<pb::ReadResponse>> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        let found = look_up(&self.0, fields::key(&request.get_ref().key)?).await?;
        memory.require(&self.0, copied_len(&self.0, found.as_ref())).await?;
        Ok(Response::new(Box::pin(stream::iter(value::parts(found)))))
    }

    async fn set(&self, request: Request<pb::SetRequest>) -> RpcResult<pb::SetResponse> {
        let item = request.into_inner();
        let new = NewItem::of(&self.0, &item)?;
        let stored = new.store(&self.0, fields::key(&item.key)?, &item.value, None).await?;
        Ok(Response::new(stored))
    }

    async fn write(
        &self,
        request: Request<Streaming<pb::WriteRequest>>,
    ) -> RpcResult<pb::SetResponse> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        value::write(&self.0, &memory, request.into_inner()).await.map(Response::new)
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> RpcResult<pb::DeleteResponse> {
        let pb::DeleteRequest { key, cas: compare } = request.into_inner();
        let op = Remove { compare, ..Remove::default() };
        let outcome = match self.0.items.remove(fields::key(&key)?, op).await {
            RemoveOutcome::Removed => Outcome::Done,
            RemoveOutcome::NotFound => Outcome::NotFound,
            RemoveOutcome::Exists => Outcome::Exists,
            RemoveOutcome::OutOfMemory | RemoveOutcome::Pending => return Err(out_of_memory()),
        };
        Ok(Response::new(pb::DeleteResponse { outcome: outcome.into() }))
    }

    async fn increment(
        &self,
        request: Request<pb::IncrementRequest>,
    ) -> RpcResult<pb::IncrementResponse> {
        let pb::IncrementRequest { key, by, initial, ttl } = request.into_inner();
        let (key, by) = (fields::key(&key)?, by.unwrap_or(1));
        let expiry = expiry(ttl, self.0.view.now())?;
        let binary_key = is_binary(key);
        let create = initial.map(|value| CreateNumber { value, expiry, binary_key, tags: &[] });
        let op = Count { down: by < 0, delta: by.unsigned_abs(), create, ..Count::default() };
        let (value, cas) = match self.0.items.count(key, op).await {
            ArithmeticOutcome::Number { value, cas, .. } => (Some(value), cas),
            ArithmeticOutcome::NotFound | ArithmeticOutcome::Exists => (None, 0),
            ArithmeticOutcome::NonNumeric => {
                let text = "The value is not a number of decimal digits.";
                return Err(Status::failed_precondition(text));
            }
            ArithmeticOutcome::OutOfMemory { .. } | ArithmeticOutcome::Pending => {
                return Err(out_of_memory());
            }
        };
        Ok(Response::new(pb::IncrementResponse { value, cas }))
    }

    async fn touch(&self, request: Request<pb::TouchRequest>) -> RpcResult<pb::TouchResponse> {
        let pb::TouchRequest { key, ttl } = request.into_inner();
        let expiry = expiry(ttl, self.0.view.now())?;
        let outcome = match self.0.items.expire(fields::key(&key)?, expiry).await {
            ExpireOutcome::Changed | ExpireOutcome::Kept => Outcome::Done,
            ExpireOutcome::NotFound => Outcome::NotFound,
            ExpireOutcome::OutOfMemory | ExpireOutcome::Pending => return Err(out_of_memory()),
        };
        Ok(Response::new(pb::TouchResponse { outcome: outcome.into() }))
    }

    async fn drop_tag(
        &self,
        request: Request<pb::DropTagRequest>,
    ) -> RpcResult<pb::DropTagResponse> {
        let name = request.into_inner().tag;
        tag(&name)?;
        let is_dropped = self.0.items.drop_tag(&name).ok_or_else(no_tags)?;
        let outcome = if is_dropped { Outcome::Done } else { Outcome::NotFound };
        Ok(Response::new(pb::DropTagResponse { outcome: outcome.into() }))
    }

    async fn flush(&self, request: Request<pb::FlushRequest>) -> RpcResult<pb::FlushResponse> {
        if !self.0.view.flush_allowed() {
            return Err(Status::permission_denied("This server does not allow flushes (-F)."));
        }
        self.0.items.flush(expiry(request.into_inner().delay, self.0.view.now())?).await;
        Ok(Response::new(pb::FlushResponse {}))
    }

    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> RpcResult<BoxStream<pb::WatchResponse>> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        watch::watch(&self.0, &memory, request.into_inner()).await
    }

    async fn stats(&self, request: Request<pb::StatsRequest>) -> RpcResult<pb::StatsResponse> {
        let memory = RequestMemory::of(request.extensions(), &self.0);
        let mut topic = request.into_inner().topic;
        if topic.is_empty() {
            "general".clone_into(&mut topic);
        }
        let mut statistics = Vec::new();
        let is_there = self.0.view.statistics(&topic, &mut |name, value| {
            let (name, value) = (name.to_owned(), value.to_owned());
            statistics.push(pb::Statistic { name, value });
        });
        if is_there {
            let len =
                |one: &pb::Statistic| one.name.len() + one.value.len() + size_of::<pb::Statistic>();
            // Count the statistics twice, because the encoder copies them into the message.
            memory.require(&self.0, 2 * statistics.iter().map(len).sum::<usize>()).await?;
            return Ok(Response::new(pb::StatsResponse { statistics }));
        }
        let text = "The topics are general, items, slabs, settings, conns, extstore, latency, hotkeys, prefixes, memory and mrc.";
        Err(Status::invalid_argument(text))
    }
}

/// Looks up an item. Returns `None` if it does not exist. While too many large values are being
/// sent, closes slow connections one by one and retries.
///
/// # Errors
/// `UNAVAILABLE`: the server that owns the item is unreachable, or too many large values are being
/// sent and no connection is slow. `RESOURCE_EXHAUSTED`: the engine could not allocate memory for
/// the lookup.
async fn look_up(app: &App, key: &[u8]) -> Result<Option<StoredItem>, Status> {
    loop {
        match app.items.get(key, true).await {
            LookupOutcome::Found(found) => return Ok(Some(found)),
            LookupOutcome::Missing => return Ok(None),
            LookupOutcome::Busy if app.connections.close_slow() => yield_now().await,
            LookupOutcome::Busy => {
                let text = "Too many large values are being sent at the moment: retry in a second.";
                return Err(Status::unavailable(text));
            }
            LookupOutcome::OutOfMemory => return Err(out_of_memory()),
            LookupOutcome::OwnerUnreachable => return Err(owner_unreachable()),
        }
    }
}

/// Builds the reply to a lookup, with the value in one piece. If `found` is `None`, the reply
/// contains no item. Reserves memory for the value and its encoded copy, in addition to
/// `overhead_bytes` bytes of keys and other values.
///
/// # Errors
/// The value is too long for one message, or would exceed the memory limit.
async fn whole_reply(
    app: &App,
    memory: &RequestMemory,
    found: Option<StoredItem>,
    overhead_bytes: usize,
) -> Result<pb::GetResponse, Status> {
    let Some(mut found) = found else { return Ok(pb::GetResponse::default()) };
    let len = found.len();
    if len + FIELDS_LEN > MESSAGE_LEN_MAX {
        let text = format!("The value has {len} bytes: use Read, which sends it in pieces.");
        return Err(Status::resource_exhausted(text));
    }
    // Count the value twice, because the encoder copies it into the message.
    memory.require(app, overhead_bytes + 2 * len).await?;
    let value = match &mut *found.value {
        [] => Bytes::new(),
        [piece] => std::mem::take(piece),
        pieces => {
            let mut whole = BytesMut::with_capacity(len);
            pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
            whole.freeze()
        }
    };
    let (cas, flags, ttl) = (found.cas, found.client_flags, ttl(&found));
    Ok(pb::GetResponse { found: true, value, cas, flags, ttl })
}

/// Returns the total length, in bytes, of the copied values in `found`. Only values shorter than
/// `upload_len_min` are copied. The implementation of `Items` limits the memory of longer values.
fn copied_len<'f>(app: &App, found: impl IntoIterator<Item = &'f StoredItem>) -> usize {
    let large = app.items.upload_len_min();
    found.into_iter().map(StoredItem::len).filter(|len| *len < large).sum()
}

/// Returns the memory, in bytes, of the list `keys` without the keys' own bytes, which are part of
/// the received message.
fn keys_len(keys: &[Bytes]) -> usize {
    size_of_val(keys)
}

/// Streams a reply for each key until the first error. Looks up at most [`CONCURRENT_MAX`] keys
/// concurrently, so that their waits for slower storage overlap.
fn replies(
    app: App,
    memory: RequestMemory,
    keys: Vec<Bytes>,
) -> impl Stream<Item = Result<pb::GetResponse, Status>> + Send {
    // Count all keys for the whole request, because the list of keys stays in memory until all keys
    // have been looked up.
    let keys_bytes = keys_len(&keys);
    let keys = keys.into_iter();
    let state = ((app, memory, keys_bytes), keys, VecDeque::<(Bytes, LookupOutcome)>::new());
    let answers =
        stream::unfold(state, async |((app, memory, keys_bytes), mut keys, mut ahead)| {
            if ahead.is_empty() {
                let next: Vec<Bytes> = keys.by_ref().take(CONCURRENT_MAX).collect();
                let outcomes = next.iter().map(|key| app.items.get(key, true));
                let outcomes = join_all(outcomes).await;
                ahead.extend(next.into_iter().zip(outcomes));
            }
            let (key, outcome) = ahead.pop_front()?;
            let found = match outcome {
                LookupOutcome::Found(found) => Ok(Some(found)),
                LookupOutcome::Missing => Ok(None),
                LookupOutcome::OutOfMemory => Err(out_of_memory()),
                LookupOutcome::OwnerUnreachable => Err(owner_unreachable()),
                // Too many large values are being sent, perhaps for earlier keys of this group. The
                // replies for those keys have left this stream by now, so look up this key and the
                // later keys again, one by one.
                LookupOutcome::Busy => {
                    ahead.iter_mut().for_each(|(_, outcome)| *outcome = LookupOutcome::Busy);
                    look_up(&app, &key).await
                }
            };
            let answer = match found {
                Ok(found) => {
                    let ahead = ahead.iter().filter_map(|(_, outcome)| outcome.found());
                    whole_reply(&app, &memory, found, keys_bytes + copied_len(&app, ahead)).await
                }
                Err(status) => Err(status),
            };
            Some((answer, ((app, memory, keys_bytes), keys, ahead)))
        });
    // An error ends the stream.
    answers.scan(false, |has_failed, answer| {
        let is_over = *has_failed;
        *has_failed = answer.is_err();
        std::future::ready((!is_over).then_some(answer))
    })
}
