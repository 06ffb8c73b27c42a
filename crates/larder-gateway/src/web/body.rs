//! Reads and discards request bodies.

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// After refusing a request, the server still receives at most this many bytes of its body.
const REFUSED_MAX: usize = 64 << 20;
/// After refusing a request, the server receives the rest of its body for at most this time.
const REFUSED_TIME: Duration = Duration::from_secs(5);

/// The body of a request. The server can receive the rest of the body after the handler has dropped
/// it.
#[derive(Clone)]
pub(crate) struct SharedBody(Arc<Mutex<Shared>>);

struct Shared {
    body: Body,
    is_polled: bool,
}

impl SharedBody {
    pub(crate) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Shared { body, is_polled: false })))
    }

    /// Returns whether the body was polled. The first poll makes hyper send `100 Continue` to a
    /// client that waits for it.
    pub(crate) fn is_polled(&self) -> bool {
        self.lock().is_polled
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut shared = self.lock();
        shared.is_polled = true;
        Pin::new(&mut shared.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

/// Receives and drops the rest of a refused body, within limits. Many clients read no reply before
/// they have sent the complete body.
pub(crate) async fn discard(body: &mut Body) {
    let mut len = 0;
    let received = async {
        while let (true, Ok(Some(data))) = (len < REFUSED_MAX, next(body).await) {
            len += data.len();
        }
    };
    // If a limit is reached, `server.rs` closes an HTTP/1 connection after the reply, unless little
    // of the body is left.
    let _ = timeout(REFUSED_TIME, received).await;
}

/// Receives the next data of a body, and skips trailers. Returns `None` at the end of the body.
///
/// # Errors
/// The connection failed, or the peer violated the protocol.
pub(crate) async fn next(body: &mut Body) -> Result<Option<Bytes>, axum::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
