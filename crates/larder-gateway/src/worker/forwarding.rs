//! Operations where their items are: on this server, or on another one of the cluster.

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

/// For how long a request is sent again that was not carried out where its item was thought to be.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a request waits until fewer than [`FORWARDED_MAX`] are under way to its group.
const QUEUE_MAX: Duration = Duration::from_secs(5);

/// How many requests are under way to a group at the same time.
const FORWARDED_MAX: usize = 64;

/// How soon a request is sent again to a server that did not answer for its item.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Why an operation was not done.
pub(super) enum OwnerError {
    /// Another server has the item, and does not answer, or can't be asked for such a key.
    Unreachable,
    /// Too many large values are being sent already.
    Busy,
}

/// What has become of a request to another server.
enum RemoteOutcome {
    /// Its whole reply.
    Reply(Bytes),
    /// The reply is so long that it is not taken while others are being sent.
    Busy,
    Retry,
    ConnectionLost,
    NoLeader,
}

/// A value as it is sent to another server, behind its line.
fn value_pieces(value: Option<&[u8]>) -> VecDeque<&[u8]> {
    let Some(value) = value else { return VecDeque::new() };
    value.chunks(PIECE_LEN).chain([VALUE_END]).collect()
}

/// Ends the request that is answered.
pub(super) async fn end<R>(ended: Abort) -> R {
    let is_watched = abort::request_abort(ended);
    debug_assert!(is_watched, "who watches the request drops this");
    pending().await
}

/// Wakes the task that waits now, whichever that is.
#[derive(Default)]
struct Relay(AtomicWaker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl CacheItems {
    /// Does an operation where its item is: here by `run`, which returns `None` for an outcome that is pending.
    /// `allows_replica`: a copy of this server's is good enough for a lookup. `received`: the value of a store, if it is not
    /// in `op`. A request of a `class` is timed.
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
        // Since when nobody has answered.
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
            let asked = self.forward(self.view.group_of(key), &head, received).await;
            let may_repeat = waits_since.get_or_insert_with(Instant::now).elapsed() < WAIT_MAX;
            let asked = match asked {
                RemoteOutcome::Reply(reply) => match remote::interpret(op, &reply) {
                    ReplyOutcome::Outcome(outcome) => break outcome,
                    ReplyOutcome::NoLeader => {
                        sleep(RETRY_PAUSE).await;
                        RemoteOutcome::Retry
                    }
                    ReplyOutcome::Unknown => RemoteOutcome::ConnectionLost,
                },
                asked => asked,
            };
            match asked {
                RemoteOutcome::Retry if may_repeat => (),
                RemoteOutcome::ConnectionLost if O::IS_LOOKUP && may_repeat => (),
                RemoteOutcome::ConnectionLost if !O::IS_LOOKUP => {
                    return end(Abort::Unconfirmed).await;
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

    /// The same; the request ends if nobody answers.
    pub(super) async fn run_at_owner<O: RemoteOperation>(
        &self,
        class: Option<CommandClass>,
        key: &[u8],
        what: (&O, Option<&[u8]>),
        run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<O::Outcome> + Send,
    ) -> O::Outcome {
        match self.try_at_owner((class, true), key, what, run).await {
            Ok(outcome) => outcome,
            Err(_) => end(Abort::OwnerUnreachable).await,
        }
    }

    /// Sends a request to the server that answers for a group, with the value behind it if there is one, and waits for
    /// the reply.
    async fn forward(&self, group: Group, head: &[u8], value: Option<&[u8]>) -> RemoteOutcome {
        let forwarding = {
            let mut forwarding = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(FORWARDED_MAX));
            Arc::clone(forwarding.entry(group.0).or_insert_with(new))
        };
        // That server keeps answers until they are taken, and this one the replies until they are whole.
        let Ok(Ok(_permit)) = timeout(QUEUE_MAX, forwarding.acquire()).await else {
            return RemoteOutcome::NoLeader;
        };
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let (mut way, mut reply, mut held) = (self.view.open_route(group), Vec::new(), None);
        let mut unsent = value_pieces(value);
        // Whoever has sent something is told if this server leads from here on; whoever waits for room is not.
        way.send(head, value.is_some(), &waker);
        loop {
            let next = poll_fn(|task| {
                relay.0.register(task.waker());
                match way.take(&mut reply) {
                    RemoteState::Waiting if unsent.is_empty() => Poll::Pending,
                    RemoteState::Waiting if way.has_room(&waker) => {
                        Poll::Ready(RemoteState::Waiting)
                    }
                    RemoteState::Waiting => Poll::Pending,
                    asked => Poll::Ready(asked),
                }
            });
            match next.await {
                RemoteState::Waiting => {
                    if let Some(piece) = unsent.pop_front() {
                        way.send(piece, !unsent.is_empty(), &waker);
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
                    way.request_rest();
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
                // Nothing is done with a part of a value.
                RemoteState::ConnectionLost if !unsent.is_empty() => return RemoteOutcome::Retry,
                RemoteState::ConnectionLost => return RemoteOutcome::ConnectionLost,
                RemoteState::NoLeader => return RemoteOutcome::NoLeader,
            }
        }
    }

    /// Has the servers of a group remove all items.
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
            let asked = self.forward(group, &request, None).await;
            match &asked {
                RemoteOutcome::Reply(reply) if remote::has_flushed(reply) => return Ok(()),
                // It may be carried out twice.
                RemoteOutcome::Retry | RemoteOutcome::ConnectionLost
                    if started.elapsed() < WAIT_MAX =>
                {
                    is_unknown |= matches!(asked, RemoteOutcome::ConnectionLost);
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
