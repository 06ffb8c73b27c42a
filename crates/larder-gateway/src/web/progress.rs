//! Bodies of requests and answers that record the progress of their connection.

use super::connections::{ActiveRequest, Activity};
use super::memory::{Reservation, with_guard};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Resources of a request, held until its answer is sent: its activity and its memory.
pub(crate) struct RequestResources {
    pub(crate) _active: Option<ActiveRequest>,
    pub(crate) _reserved: Reservation,
}

/// The body of a request. Received bytes count as progress.
pub(crate) struct RequestBody {
    pub(crate) body: Incoming,
    pub(crate) activity: Arc<Activity>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.activity.note_moved(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. Each chunk holds the request's resources until it is dropped.
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
