//! Local operations. An operation that waits for slower storage is repeated when the read has
//! completed.

use super::CacheItems;
use super::forwarding::abort_request;
use crate::abort::Abort;
use larder_operations::OpContext;
use larder_store::erased;
use larder_store::{
    AckState, Acknowledge, Delivery, HashedKey, Lookups, ReadRequest, ReadStart, SlowStorage,
};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The outcome of one attempt at an operation.
enum Attempt<R> {
    /// The operation was executed. The fields are its result, and the position in the journal that
    /// followers must acknowledge before the reply is sent. The position is `None` if no
    /// acknowledgement is required.
    Done(R, Option<erased::Position>),
    /// The operation can be repeated immediately.
    Retry,
    /// The operation can be repeated when the waker is called.
    Waiting,
    /// This server does not serve the item now, so another server has to execute the operation.
    Remote,
}

/// Attempts an operation on the item with the key `bytes`, or on all items if `bytes` is `None`.
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
        waits |= delivery == Delivery::InProgress;
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
    /// Executes an operation on this server. Repeats it while it has to wait for slower storage. If
    /// its change must be acknowledged, also waits for the acknowledgement. Returns `None` if
    /// `is_local` returns false before an attempt: this server no longer serves the item.
    ///
    /// If the change can no longer be acknowledged, aborts the request, unless the operation is a
    /// lookup. A lookup can also cause a change, because it may remove an expired item. Its result
    /// is valid even if this removal is never acknowledged.
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
                return abort_request(Abort::Unconfirmed).await;
            }
        }
        Some(result)
    }
}
