//! Bodies of requests and replies that record the progress of their connection.

use super::connections::{ActiveRequest, Activity};
use super::memory::{Reservation, with_guard};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// If a handler leaves at most this many bytes of a body unread, the server reads them, so that the
/// connection can stay open.
const UNREAD_MAX: u64 = 64 << 10;

/// Resources of a request, held until its reply is sent: its activity and its memory.
pub(crate) struct RequestResources {
    /// The activity of the request; `None` if the reply is a
    /// [`super::connections::LongLivedResponse`].
    pub(crate) _active: Option<ActiveRequest>,
    pub(crate) _reserved: Reservation,
}

/// The body of a request. Received bytes count as progress. If a handler drops the body before its
/// end, the rest moves to `unread`.
pub(crate) struct RequestBody {
    body: Option<Incoming>,
    activity: Arc<Activity>,
    unread: UnreadBody,
}

/// The part of a body that was unread when the handler dropped the body.
#[derive(Clone, Default)]
pub(crate) struct UnreadBody(Arc<Mutex<Option<Incoming>>>);

impl RequestBody {
    pub(crate) fn new(body: Incoming, activity: Arc<Activity>, unread: UnreadBody) -> Self {
        Self { body: Some(body), activity, unread }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl UnreadBody {
    /// Returns whether the handler has left a part of the body unread.
    pub(crate) fn is_left(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Reads the rest of the body, so that its connection can serve another request. Returns false
    /// if more than [`UNREAD_MAX`] bytes are left, or if receiving fails.
    pub(crate) async fn drain(&self) -> bool {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = body else { return true };
        let mut left = UNREAD_MAX;
        if body.size_hint().lower() > left {
            return false;
        }
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let Ok(frame) = frame else { return false };
            let len = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(rest) = left.checked_sub(len) else { return false };
            left = rest;
        }
        true
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.activity.note_moved(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

/// The body of a reply. Each chunk holds the request's resources until it is dropped.
pub(crate) struct ResponseBody {
    pub(crate) body: Body,
    pub(crate) lasting: Arc<RequestResources>,
    pub(crate) activity: Arc<Activity>,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map_ok(|frame| {
            frame.map_data(|data| {
                self.activity.note_moved(data.len());
                with_guard(data, Arc::clone(&self.lasting))
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
