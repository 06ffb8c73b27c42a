//! A request's memory account: its received bytes and its reply's bytes.

use super::codec::MESSAGE_LEN_MAX;
use crate::server_view::ServerView;
use crate::web::app::App;
use crate::web::memory::{Busy, Reservation};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::task::yield_now;
use tonic::{Extensions, Status, body};

/// The reserved memory of a request and its reply, released when both are dropped.
#[derive(Clone)]
pub(super) struct RequestMemory(Arc<Mutex<Account>>);

struct Account {
    reserved: Reservation,
    received: usize,
    answer: usize,
}

impl RequestMemory {
    pub(super) fn new(view: &Arc<dyn ServerView>) -> Self {
        let reserved = Reservation::empty(view);
        Self(Arc::new(Mutex::new(Account { reserved, received: 0, answer: 0 })))
    }

    /// Returns the account that `guard` has added to the extensions of a request, or a new account
    /// if there is none.
    pub(super) fn of(extensions: &Extensions, app: &App) -> Self {
        extensions.get().cloned().unwrap_or_else(|| Self::new(&app.view))
    }

    fn change(&self, change: impl FnOnce(&mut Account)) -> bool {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut account);
        let len = account.received + account.answer;
        account.reserved.grow_to(len)
    }

    /// Counts `len` received bytes. Returns false if the counted bytes would exceed the memory
    /// limit. The count is capped at the maximum length of a message, because a handler takes each
    /// message before the next one arrives.
    fn count_received(&self, len: usize) -> bool {
        self.change(|account| account.received = (account.received + len).min(MESSAGE_LEN_MAX))
    }

    /// Reserves at least `len` bytes for the reply. Closes idle and slow connections if necessary.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the memory limit is reached, and no connection is idle or slow. The client
    /// has to retry.
    pub(super) async fn require(&self, app: &App, len: usize) -> Result<(), Status> {
        while !self.change(|account| account.answer = account.answer.max(len)) {
            if !app.connections.close_long_idle() {
                return Err(Busy.into());
            }
            // Yield, so that the task of the closed connection can finish and release its memory.
            yield_now().await;
        }
        Ok(())
    }
}

/// Returns the reply to a request that would exceed the memory limit.
pub(crate) fn refused(busy: Busy) -> Response {
    Status::from(busy).into_http::<body::Body>().map(Body::new)
}

impl From<Busy> for Status {
    fn from(_: Busy) -> Self {
        Self::unavailable(
            "The server has no memory for the request at the moment: retry in a second.",
        )
    }
}

/// The body of a request. It counts received bytes in `memory`.
pub(super) struct CountedBody {
    body: Body,
    app: App,
    memory: RequestMemory,
    /// Received data for which no memory is reserved yet.
    waiting: Option<Bytes>,
}

impl CountedBody {
    pub(super) fn new(body: Body, app: App, memory: RequestMemory) -> Self {
        Self { body, app, memory, waiting: None }
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let (data, more) = match self.waiting.take() {
            // An earlier poll has already counted this data.
            Some(data) => (data, 0),
            None => match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        let more = data.len();
                        (data, more)
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return other,
            },
        };
        if self.memory.count_received(more) {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.app.connections.close_long_idle() {
            // Wait until the task of the closed connection has terminated. It terminates before
            // this task is polled again, because the runtime has one thread and polls tasks in the
            // order of their wakes.
            self.waiting = Some(data);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(axum::Error::new(Status::from(Busy)))))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
