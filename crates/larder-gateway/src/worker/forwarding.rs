//! Operations where their items are: on this server, or on another one of the cluster.

use super::CacheItems;
use super::memory::{Held, PIECE_LEN, Reply};
use crate::abort::{self, Ended};
use crate::items::Items;
use crate::remote::{self, Meaning, Remote};
use crate::server_view::{Asked, Group};
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

/// How long a request waits until fewer than [`ASKED_MAX`] are under way to its group.
const QUEUE_MAX: Duration = Duration::from_secs(5);

/// How many requests are under way to a group at the same time.
const ASKED_MAX: usize = 64;

/// How soon a request is sent again to a server that did not answer for its item.
const AGAIN: Duration = Duration::from_millis(20);

/// Why an operation was not done.
pub(super) enum NotDone {
    /// Another server has the item, and does not answer, or can't be asked for such a key.
    Elsewhere,
    /// Too many large values are being sent already.
    Busy,
}

/// What has become of a request to another server.
enum Told {
    /// Its whole reply.
    Reply(Bytes),
    /// The reply is so long that it is not taken while others are being sent.
    Busy,
    Again,
    Lost,
    Nobody,
}

/// A value as it is sent to another server, behind its line.
fn value_pieces(value: Option<&[u8]>) -> VecDeque<&[u8]> {
    let Some(value) = value else { return VecDeque::new() };
    value.chunks(PIECE_LEN).chain([VALUE_END]).collect()
}

/// Ends the request that is answered.
pub(super) async fn end<R>(ended: Ended) -> R {
    let is_watched = abort::note(ended);
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
    /// `may_be_old`: a copy of this server's is good enough for a lookup. `received`: the value of a store, if it is not
    /// in `op`. A request of a `class` is timed.
    pub(super) async fn try_wherever<O: Remote>(
        &self,
        (class, may_be_old): (Option<CommandClass>, bool),
        key: &[u8],
        (op, received): (&O, Option<&[u8]>),
        mut run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<O::Outcome>
        + Send,
    ) -> Result<O::Outcome, NotDone> {
        let begun = Instant::now();
        let _active = Held::new(&self.active, 1);
        let is_here = || self.is_here(Some(key), O::LOOKS_UP && may_be_old);
        // Since when nobody has answered.
        let mut waits_since = None;
        let outcome = loop {
            if is_here() {
                match self.until_done(Some(key), O::LOOKS_UP, is_here, &mut run).await {
                    Some(outcome) => break outcome,
                    None => continue,
                }
            }
            let wire_key = MetaKey::new(key).map_err(|_| NotDone::Elsewhere)?;
            let mut head = Vec::new();
            op.write(wire_key, received.map(<[u8]>::len), self.view.now(), &mut head);
            let asked = self.ask(self.view.group_of(key), &head, received).await;
            let may_repeat = waits_since.get_or_insert_with(Instant::now).elapsed() < WAIT_MAX;
            let asked = match asked {
                Told::Reply(reply) => match remote::meaning(op, &reply) {
                    Meaning::Outcome(outcome) => break outcome,
                    Meaning::NoLeader => {
                        sleep(AGAIN).await;
                        Told::Again
                    }
                    Meaning::Unknown => Told::Lost,
                },
                asked => asked,
            };
            match asked {
                Told::Again if may_repeat => (),
                Told::Lost if O::LOOKS_UP && may_repeat => (),
                Told::Lost if !O::LOOKS_UP => return end(Ended::Lost).await,
                Told::Busy => return Err(NotDone::Busy),
                Told::Again | Told::Lost | Told::Nobody | Told::Reply(_) => {
                    return Err(NotDone::Elsewhere);
                }
            }
        };
        self.record(class, begun);
        Ok(outcome)
    }

    /// The same; the request ends if nobody answers.
    pub(super) async fn wherever<O: Remote>(
        &self,
        class: Option<CommandClass>,
        key: &[u8],
        what: (&O, Option<&[u8]>),
        run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<O::Outcome> + Send,
    ) -> O::Outcome {
        match self.try_wherever((class, true), key, what, run).await {
            Ok(outcome) => outcome,
            Err(_) => end(Ended::Moved).await,
        }
    }

    /// Sends a request to the server that answers for a group, with the value behind it if there is one, and waits for
    /// the reply.
    async fn ask(&self, group: Group, head: &[u8], value: Option<&[u8]>) -> Told {
        let asking = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(ASKED_MAX));
            Arc::clone(asking.entry(group.0).or_insert_with(new))
        };
        // That server keeps answers until they are taken, and this one the replies until they are whole.
        let Ok(Ok(_permit)) = timeout(QUEUE_MAX, asking.acquire()).await else {
            return Told::Nobody;
        };
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let (mut way, mut reply, mut held) = (self.view.open(group), Vec::new(), None);
        let mut unsent = value_pieces(value);
        // Whoever has sent something is told if this server leads from here on; whoever waits for room is not.
        way.send(head, value.is_some(), &waker);
        loop {
            let next = poll_fn(|task| {
                relay.0.register(task.waker());
                match way.take(&mut reply) {
                    Asked::Waiting if unsent.is_empty() => Poll::Pending,
                    Asked::Waiting if way.has_room(&waker) => Poll::Ready(Asked::Waiting),
                    Asked::Waiting => Poll::Pending,
                    asked => Poll::Ready(asked),
                }
            });
            match next.await {
                Asked::Waiting => {
                    if let Some(piece) = unsent.pop_front() {
                        way.send(piece, !unsent.is_empty(), &waker);
                    }
                }
                Asked::More => {
                    let len = remote::reply_len(&reply);
                    if held.is_none() {
                        held = self.hold(&self.leased, len);
                        if held.is_none() {
                            return Told::Busy;
                        }
                        reply.reserve_exact(len.saturating_sub(reply.len()));
                    }
                    way.go_on();
                }
                Asked::Answered => {
                    if held.is_none() && reply.len() >= self.upload_len_min() {
                        held = self.hold(&self.leased, reply.len());
                        if held.is_none() {
                            return Told::Busy;
                        }
                    }
                    return Told::Reply(Bytes::from_owner(Reply { bytes: reply, _held: held }));
                }
                Asked::Again => return Told::Again,
                // Nothing is done with a part of a value.
                Asked::Lost if !unsent.is_empty() => return Told::Again,
                Asked::Lost => return Told::Lost,
                Asked::Nobody => return Told::Nobody,
            }
        }
    }

    /// Has the servers of a group remove all items.
    pub(super) async fn flush_group(&self, group: Group, at: Expiry) -> Result<(), Ended> {
        let (begun, mut is_unknown) = (Instant::now(), false);
        loop {
            let is_here = || group == Group::OWN && self.is_here(None, false);
            if is_here() {
                let flush = |cx: &mut OpContext<'_, erased::Handle>, _: HashedKey<'_>| {
                    cx.flush(at);
                    Some(())
                };
                match self.until_done(None, false, is_here, flush).await {
                    Some(()) => return Ok(()),
                    None => continue,
                }
            }
            let request = remote::flush(at, self.view.now());
            let asked = self.ask(group, &request, None).await;
            match &asked {
                Told::Reply(reply) if remote::has_flushed(reply) => return Ok(()),
                // It may be carried out twice.
                Told::Again | Told::Lost if begun.elapsed() < WAIT_MAX => {
                    is_unknown |= matches!(asked, Told::Lost);
                }
                Told::Lost => return Err(Ended::Lost),
                _ if is_unknown => return Err(Ended::Lost),
                Told::Reply(_) | Told::Again | Told::Nobody | Told::Busy => {
                    return Err(Ended::Moved);
                }
            }
        }
    }
}
