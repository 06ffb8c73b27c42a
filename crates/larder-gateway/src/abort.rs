//! Requests that end without their own answer, whatever their handlers would say: their changes may be lost, or the
//! server that has the item does not answer.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Why a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has changed something of which nobody knows whether it will last: another server had to confirm the change,
    /// and none has.
    Lost,
    /// Another server has the item, and could not be asked: the request, or a part of it, was not carried out.
    Moved,
}

tokio::task_local! {
    static ENDED: Cell<Option<Ended>>;
}

/// Notes that the request that is answered ends; whether there is one.
pub(crate) fn note(ended: Ended) -> bool {
    ENDED.try_with(|noted| noted.set(noted.get().or(Some(ended)))).is_ok()
}

/// Answers a request.
///
/// # Errors
/// [`Ended`]; what is left to do of the request is not done.
pub(crate) async fn watched<R>(answer: impl Future<Output = R>) -> Result<R, Ended> {
    let watch = async {
        let mut answer = pin!(answer);
        std::future::poll_fn(|task| {
            let polled = answer.as_mut().poll(task);
            ENDED.with(Cell::get).map_or_else(|| polled.map(Ok), |ended| Poll::Ready(Err(ended)))
        })
        .await
    };
    ENDED.scope(Cell::new(None), watch).await
}
