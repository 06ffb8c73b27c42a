//! Executes operations at the owner of their item, which is this server or another server of the
//! cluster.

use super::CacheItems;
use super::memory::{CountGuard, PIECE_LEN, Reply};
use crate::abort::{self, Abort};
use crate::items::Items;
use crate::remote::{self, RemoteOperation, ReplyOutcome};
use crate::server_view::{Group, RemoteState};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use larder_operations::{CommandClass, OpContext};
use larder_protocol::encode::{MetaKey, VALUE_END};
use larder_store::erased;
use larder_store::{Expiry, HashedKey};
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// If [`FORWARDED_MAX`] requests are in flight to a group, a further request waits at most this
/// long.
const QUEUE_MAX: Duration = Duration::from_secs(5);

/// The maximum number of requests in flight to a group.
const FORWARDED_MAX: usize = 64;

/// If a group replies that it has no leader, the gateway repeats the request after this pause.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The reason why an operation has no outcome.
pub(super) enum OwnerError {
    /// The item belongs to another server, and one of these is true: the server did not execute the
    /// operation in time or sent no valid reply, the group has no leader, or the key is too long
    /// for a forwarded request.
    Unreachable,
    /// Too many large values are being sent already.
    Busy,
}

/// The outcome of a forwarded request.
enum RemoteOutcome {
    /// The whole reply.
    Reply(Bytes),
    /// The reply has a large value, and too many large values are being sent already.
    Busy,
    /// The request was not executed and can be repeated.
    Retry,
    /// The request may have been executed, but there is no valid reply.
    ConnectionLost,
    /// The group currently has no leader, or too many requests to the group are waiting.
    NoLeader,
}

/// Returns the bytes after the command line: the pieces of the value, then the line end. Returns no
/// bytes without a value.
fn value_pieces(value: Option<&[u8]>) -> VecDeque<&[u8]> {
    let Some(value) = value else { return VecDeque::new() };
    value.chunks(PIECE_LEN).chain([VALUE_END]).collect()
}

/// Aborts the current request. Never returns: the caller of the handler drops this future.
pub(super) async fn abort_request<R>(reason: Abort) -> R {
    let is_abortable = abort::mark(reason);
    debug_assert!(is_abortable, "every handler runs in `run_abortable`, which drops this future");
    pending().await
}

/// A waker for one request. Different tasks may poll the request, and the waker wakes the task that
/// registered last.
#[derive(Default)]
struct Relay(AtomicWaker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl CacheItems {
    /// Executes an operation at the owner of its item, which is this server or another one. If the
    /// owner is this server, `run` executes the operation. `run` returns `None` while the operation
    /// must wait for slower storage.
    ///
    /// If `allows_replica` is true, this server may also answer a lookup as a replica of the owner.
    /// `received` is the value to store, if `op` does not contain it. If there is a `class` and the
    /// operation has an outcome, records its latency in this class.
    ///
    /// If a change may have been executed but is not confirmed, aborts the request.
    pub(super) async fn try_at_owner<O: RemoteOperation>(
        &self,
        (class, allows_replica): (Option<CommandClass>, bool),
        key: &[u8],
        (op, received): (&O, Option<&[u8]>),
        mut run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<O::Outcome>
        + Send,
    ) -> Result<O::Outcome, OwnerError> {
        let started = Instant::now();
        let _active = CountGuard::new(&self.active, 1);
        let is_local = || self.is_local(Some(key), O::IS_LOOKUP && allows_replica);
        // The time at which the first attempt at another server ended; `None` before that.
        let mut waits_since = None;
        let outcome = loop {
            if is_local() {
                match self.run_locally(Some(key), O::IS_LOOKUP, is_local, &mut run).await {
                    Some(outcome) => break outcome,
                    None => continue,
                }
            }
            let wire_key = MetaKey::new(key).map_err(|_| OwnerError::Unreachable)?;
            let mut head = Vec::new();
            op.write(wire_key, received.map(<[u8]>::len), self.view.now(), &mut head);
            let group = self.view.group_of(key);
            let remote_outcome = self.forward(group, &head, received).await;
            let waited = waits_since.get_or_insert_with(Instant::now).elapsed();
            let may_repeat = waited < self.view.retry_time(group);
            let remote_outcome = match remote_outcome {
                RemoteOutcome::Reply(reply) => match remote::interpret(op, &reply) {
                    ReplyOutcome::Outcome(outcome) => break outcome,
                    ReplyOutcome::NoLeader => {
                        sleep(RETRY_PAUSE).await;
                        RemoteOutcome::Retry
                    }
                    ReplyOutcome::Unknown => RemoteOutcome::ConnectionLost,
                },
                other => other,
            };
            match remote_outcome {
                RemoteOutcome::Retry if may_repeat => (),
                RemoteOutcome::ConnectionLost if O::IS_LOOKUP && may_repeat => (),
                RemoteOutcome::ConnectionLost if !O::IS_LOOKUP => {
                    return abort_request(Abort::Unconfirmed).await;
                }
                RemoteOutcome::Busy => return Err(OwnerError::Busy),
                RemoteOutcome::Retry
                | RemoteOutcome::ConnectionLost
                | RemoteOutcome::NoLeader
                | RemoteOutcome::Reply(_) => {
                    return Err(OwnerError::Unreachable);
                }
            }
        };
        self.record(class, started);
        Ok(outcome)
    }

    /// Executes an operation as [`Self::try_at_owner`] does, with replicas allowed. Aborts the
    /// request instead of returning an error.
    pub(super) async fn run_at_owner<O: RemoteOperation>(
        &self,
        class: Option<CommandClass>,
        key: &[u8],
        op: (&O, Option<&[u8]>),
        run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<O::Outcome> + Send,
    ) -> O::Outcome {
        match self.try_at_owner((class, true), key, op, run).await {
            Ok(outcome) => outcome,
            Err(_) => abort_request(Abort::OwnerUnreachable).await,
        }
    }

    /// Sends `head`, and then `value` if there is one, to the leader of a group. Waits for the
    /// reply.
    async fn forward(&self, group: Group, head: &[u8], value: Option<&[u8]>) -> RemoteOutcome {
        let forwarding = {
            let mut forwarding = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(FORWARDED_MAX));
            Arc::clone(forwarding.entry(group.0).or_insert_with(new))
        };
        // Limit the number of requests in flight, which also limits the memory for their replies on
        // both servers: the leader holds a reply until this server reads it, and this server holds
        // the reply until it is complete.
        let Ok(Ok(_permit)) = timeout(QUEUE_MAX, forwarding.acquire()).await else {
            return RemoteOutcome::NoLeader;
        };
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let (mut route, mut reply, mut held) = (self.view.open_route(group), Vec::new(), None);
        let mut unsent = value_pieces(value);
        // Send the first bytes at once, even if the route's send buffer is full. If this server
        // becomes the leader, only tasks that have sent a part of their request are woken. Any
        // other task would wait forever.
        route.send(head, value.is_some(), &waker);
        loop {
            let next = poll_fn(|task| {
                relay.0.register(task.waker());
                match route.take(&mut reply) {
                    RemoteState::Waiting if unsent.is_empty() => Poll::Pending,
                    RemoteState::Waiting if route.has_room(&waker) => {
                        Poll::Ready(RemoteState::Waiting)
                    }
                    RemoteState::Waiting => Poll::Pending,
                    state => Poll::Ready(state),
                }
            });
            match next.await {
                RemoteState::Waiting => {
                    if let Some(piece) = unsent.pop_front() {
                        route.send(piece, !unsent.is_empty(), &waker);
                    }
                }
                RemoteState::Partial => {
                    let len = remote::reply_len(&reply);
                    if held.is_none() {
                        held = self.hold(&self.leased, len);
                        if held.is_none() {
                            return RemoteOutcome::Busy;
                        }
                        reply.reserve_exact(len.saturating_sub(reply.len()));
                    }
                    route.request_rest();
                }
                RemoteState::Complete => {
                    if held.is_none() && reply.len() >= self.upload_len_min() {
                        held = self.hold(&self.leased, reply.len());
                        if held.is_none() {
                            return RemoteOutcome::Busy;
                        }
                    }
                    return RemoteOutcome::Reply(Bytes::from_owner(Reply {
                        bytes: reply,
                        _held: held,
                    }));
                }
                RemoteState::Retry => return RemoteOutcome::Retry,
                // The receiver does not execute a request whose value is incomplete, so a retry is
                // safe.
                RemoteState::ConnectionLost if !unsent.is_empty() => return RemoteOutcome::Retry,
                RemoteState::ConnectionLost => return RemoteOutcome::ConnectionLost,
                RemoteState::NoLeader => return RemoteOutcome::NoLeader,
            }
        }
    }

    /// Flushes all items of a group at `at`.
    ///
    /// # Errors
    /// [`Abort::Unconfirmed`] if the flush may have been executed, else
    /// [`Abort::OwnerUnreachable`].
    pub(super) async fn flush_group(&self, group: Group, at: Expiry) -> Result<(), Abort> {
        let (started, mut is_unknown) = (Instant::now(), false);
        loop {
            let is_local = || group == Group::OWN && self.is_local(None, false);
            if is_local() {
                let flush = |cx: &mut OpContext<'_, erased::Handle>, _: HashedKey<'_>| {
                    cx.flush(at);
                    Some(())
                };
                match self.run_locally(None, false, is_local, flush).await {
                    Some(()) => return Ok(()),
                    None => continue,
                }
            }
            let request = remote::flush(at, self.view.now());
            let outcome = self.forward(group, &request, None).await;
            match &outcome {
                RemoteOutcome::Reply(reply) if remote::has_flushed(reply) => return Ok(()),
                // A flush may be executed twice, so it is safe to retry.
                RemoteOutcome::Retry | RemoteOutcome::ConnectionLost
                    if started.elapsed() < self.view.retry_time(group) =>
                {
                    is_unknown |= matches!(outcome, RemoteOutcome::ConnectionLost);
                }
                RemoteOutcome::ConnectionLost => return Err(Abort::Unconfirmed),
                _ if is_unknown => return Err(Abort::Unconfirmed),
                RemoteOutcome::Reply(_)
                | RemoteOutcome::Retry
                | RemoteOutcome::NoLeader
                | RemoteOutcome::Busy => {
                    return Err(Abort::OwnerUnreachable);
                }
            }
        }
    }
}
