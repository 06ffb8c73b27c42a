//! Operations of this server: they are repeated while they wait for slower storage.

use super::CacheItems;
use super::forwarding::end;
use crate::abort::Abort;
use larder_operations::OpContext;
use larder_store::erased;
use larder_store::{
    AckState, Acknowledge, Delivery, HashedKey, Lookups, ReadRequest, ReadStart, SlowStorage,
};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// What an attempt came to.
enum Attempt<R> {
    /// The result, and the position of the change, which has to be acknowledged.
    Done(R, Option<erased::Position>),
    /// It can be repeated at once.
    Retry,
    /// It can be repeated when the waker is called.
    Waiting,
    /// Another server answers it.
    Remote,
}

/// Attempts an operation, which is about the item of a key if there is one.
fn attempt<R>(
    cx: &mut OpContext<'_, erased::Handle>,
    bytes: Option<&[u8]>,
    waker: &Waker,
    fetches: &mut Vec<erased::PendingRead>,
    run: &mut impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<R>,
) -> Attempt<R> {
    let key = bytes.unwrap_or_default();
    let key = HashedKey { bytes: key, hash: cx.engine.hash(key) };
    let mut waits = false;
    fetches.retain(|fetch| {
        let delivery = cx.engine.deliver(fetch);
        waits |= delivery == Delivery::UnderWay;
        delivery != Delivery::Gone
    });
    if waits {
        return Attempt::Waiting;
    }
    if let Some(result) = run(cx, key) {
        if bytes.is_some() {
            cx.sample(key);
        }
        return Attempt::Done(result, cx.engine.ack_position());
    }
    let wanted = ReadRequest { hash: key.hash, is_read_ahead: false };
    let started = cx.engine.start_read(wanted, waker, fetches);
    cx.engine.submit();
    if started == ReadStart::NotNeeded { Attempt::Retry } else { Attempt::Waiting }
}

impl CacheItems {
    /// Repeats an operation of this server's until it does not wait for slower storage, and then waits until its change
    /// is acknowledged where it has to be. `None` if it `is_local` no more. What a lookup has found is right also if it
    /// has removed an expired item and nobody acknowledges that.
    pub(super) async fn run_locally<R: Send>(
        &self,
        key: Option<&[u8]>,
        is_lookup: bool,
        is_local: impl Fn() -> bool + Send,
        mut run: impl FnMut(&mut OpContext<'_, erased::Handle>, HashedKey<'_>) -> Option<R> + Send,
    ) -> Option<R> {
        let mut fetches = Vec::new();
        let attempted = poll_fn(|task| {
            loop {
                let attempt = |cx: &mut OpContext<'_, erased::Handle>| {
                    if !is_local() {
                        return Attempt::Remote;
                    }
                    attempt(cx, key, task.waker(), &mut fetches, &mut run)
                };
                match self.with_context(attempt) {
                    Attempt::Done(result, position) => {
                        return Poll::Ready(Some((result, position)));
                    }
                    Attempt::Retry => (),
                    Attempt::Waiting => return Poll::Pending,
                    Attempt::Remote => return Poll::Ready(None),
                }
            }
        });
        let (result, position) = attempted.await?;
        if let Some(position) = position {
            let acknowledged = poll_fn(move |task| {
                let ack_state =
                    |engine: &mut erased::Handle| engine.ack_state(&position, task.waker());
                match self.with_engine(ack_state) {
                    AckState::Pending => Poll::Pending,
                    state => Poll::Ready(state),
                }
            });
            if acknowledged.await == AckState::Lost && !is_lookup {
                return end(Abort::Unconfirmed).await;
            }
        }
        Some(result)
    }
}
