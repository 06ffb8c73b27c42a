//! Requests that changed something of which nobody knows whether it will last: a follower had to acknowledge the
//! change, and none could. Such a request is not answered as if it was done.

use std::cell::Cell;
use std::future::Future;

tokio::task_local! {
    static LOST: Cell<bool>;
}

/// Notes that a change of the request that is answered may be lost.
pub(crate) fn note() {
    // Outside of a request there is nobody to tell.
    let _ = LOST.try_with(|lost| lost.set(true));
}

/// Answers a request; `None` if a change of it may be lost.
pub(crate) async fn watched<R>(answer: impl Future<Output = R>) -> Option<R> {
    LOST.scope(Cell::new(false), async {
        let answer = answer.await;
        (!LOST.with(Cell::get)).then_some(answer)
    })
    .await
}
