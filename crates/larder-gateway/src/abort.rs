//! Aborted requests. A request is aborted when a change may be lost, or when the server that owns
//! the item is unreachable. The code that detects either condition runs deep inside a handler, so
//! it only marks the request as aborted. [`run_abortable`] then drops the handler, and the client
//! receives an error. In a batch, only the aborted operation fails.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// The reason for aborting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// A change may be lost: no other server has acknowledged it, or the server that owns the item
    /// sent no valid reply to the forwarded request.
    Unconfirmed,
    /// The server that owns the item is unreachable. The request, or a part of it, was not
    /// executed.
    OwnerUnreachable,
}

tokio::task_local! {
    static ABORT: Cell<Option<Abort>>;
}

/// Marks the request of the current task as aborted. Later calls keep the first reason. Returns
/// false outside of a request.
pub(crate) fn mark(abort: Abort) -> bool {
    ABORT.try_with(|noted| noted.set(noted.get().or(Some(abort)))).is_ok()
}

/// Runs the handler of a request, or one operation of a batch, until it finishes or is aborted.
///
/// # Errors
/// The reason for the abort. The handler is dropped after the poll that marked the request.
pub(crate) async fn run_abortable<R>(answer: impl Future<Output = R>) -> Result<R, Abort> {
    let watch = async {
        let mut answer = pin!(answer);
        std::future::poll_fn(|task| {
            let polled = answer.as_mut().poll(task);
            ABORT.with(Cell::get).map_or_else(|| polled.map(Ok), |abort| Poll::Ready(Err(abort)))
        })
        .await
    };
    ABORT.scope(Cell::new(None), watch).await
}
