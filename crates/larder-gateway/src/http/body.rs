//! Bodies of requests and replies.

use super::problem::Problem;
use crate::items::Upload;
use crate::web::app::App;
use crate::web::body::{discard, next};
use crate::web::memory::Reservation;
use crate::web::upload::{UploadError, receive};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use hyper::header::CONTENT_LENGTH;
use hyper::{HeaderMap, StatusCode};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// The maximum length, in bytes, of a body without a `Content-Length`.
pub(super) const UNANNOUNCED_MAX: usize = 64 << 10;
/// The time limit for receiving a short body. For a long body, the limit rises by this time for
/// each full 30 seconds that the announced length needs at [`SLOWEST`] bytes per second.
const BODY_TIME: Duration = Duration::from_secs(30);
/// The lowest allowed transfer rate of a long body, in bytes per second.
const SLOWEST: usize = 16 << 10;
/// The body of a reply with a value. It sends the pieces of the value without copying them.
pub(super) struct Pieces(pub(super) VecDeque<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// A received value.
pub(super) enum ReceivedValue {
    /// The whole value, and the reservation of its memory, which is `None` if the memory is
    /// reserved elsewhere.
    Whole { bytes: Bytes, _reserved: Option<Reservation> },
    /// An upload in the engine, and its length in bytes.
    Uploaded(Upload, usize),
}

impl ReceivedValue {
    /// Returns the bytes of the value. Returns an empty slice if the value is an upload.
    pub(super) fn bytes(&self) -> &[u8] {
        if let Self::Whole { bytes, .. } = self { bytes } else { &[] }
    }

    /// Returns the length of the value in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole { bytes, .. } => bytes.len(),
            Self::Uploaded(_, len) => *len,
        }
    }

    pub(super) fn into_upload(self) -> Option<Upload> {
        if let Self::Uploaded(upload, _) = self { Some(upload) } else { None }
    }
}

/// Reads a value of at most `max` bytes for a key. Without a `Content-Length`, the value must also
/// have at most [`UNANNOUNCED_MAX`] bytes.
///
/// # Errors
/// A [`Problem`]: the value is too long, arrives too slowly, or differs from the announced length;
/// receiving it fails; or it would exceed a memory limit.
pub(super) async fn read_value(
    app: &App,
    key: &[u8],
    body: Body,
    headers: &HeaderMap,
    max: usize,
) -> Result<ReceivedValue, Problem> {
    let len = announced_len(headers);
    if len.is_some_and(|len| len > max) {
        return Err(Problem::too_large());
    }
    let whole = |(bytes, reserved)| ReceivedValue::Whole { bytes, _reserved: Some(reserved) };
    match len {
        Some(len) if len >= app.items.upload_len_min() => {
            in_time(Some(len), upload(app, key, body, len)).await
        }
        Some(_) => collect(app, body, len, max).await.map(whole),
        None => collect(app, body, None, UNANNOUNCED_MAX.min(max)).await.map(whole),
    }
}

/// Receives a body within the time limit for its length.
async fn in_time<T>(
    announced: Option<usize>,
    receive: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let time = BODY_TIME * (1 + u32::try_from(announced.unwrap_or(0) / SLOWEST / 30).unwrap_or(0));
    timeout(time, receive).await.map_err(|_| {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "Receiving the body of the request took too long.",
        )
    })?
}

/// Reads a body of at most `max` bytes, and reserves its memory.
///
/// # Errors
/// A [`Problem`]: the body is too long or arrives too slowly, receiving it fails, or it would
/// exceed the memory limit.
pub(super) async fn collect(
    app: &App,
    body: Body,
    announced: Option<usize>,
    max: usize,
) -> Result<(Bytes, Reservation), Problem> {
    in_time(announced, collect_slowly(app, body, announced, max)).await
}

async fn collect_slowly(
    app: &App,
    mut body: Body,
    announced: Option<usize>,
    max: usize,
) -> Result<(Bytes, Reservation), Problem> {
    // The capacity may exceed the reserved memory, because the system allocates a page of the
    // buffer only when the page is first written.
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(0).min(max));
    let mut reserved = Reservation::empty(&app.view);
    while let Some(data) = next(&mut body).await.map_err(|_| not_received())? {
        if whole.len() + data.len() > max {
            return Err(if max == UNANNOUNCED_MAX {
                let detail = "A body of more than 64 KiB needs a Content-Length.";
                Problem::new(StatusCode::LENGTH_REQUIRED, detail)
            } else {
                Problem::too_large()
            });
        }
        reserved.require(app, whole.len() + data.len()).await?;
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), reserved))
}

/// Returns the body's length in bytes according to `Content-Length`, or `None` if the header is
/// missing or invalid.
pub(super) fn announced_len(headers: &HeaderMap) -> Option<usize> {
    let len: u64 = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
    Some(usize::try_from(len).unwrap_or(usize::MAX))
}

/// Receives a large value for a key into the engine.
async fn upload(app: &App, key: &[u8], body: Body, len: usize) -> Result<ReceivedValue, Problem> {
    let mut data = body.into_data_stream();
    match receive(app, &mut data, (key, len)).await {
        Ok(upload) => Ok(ReceivedValue::Uploaded(upload, len)),
        Err(UploadError::Full) => {
            discard(&mut Body::new(data)).await;
            Err(Problem::busy())
        }
        Err(UploadError::Stalled) => Err(Problem::busy()),
        Err(UploadError::TooLarge) => Err(Problem::too_large()),
        Err(UploadError::OutOfMemory) => Err(Problem::out_of_memory()),
        Err(UploadError::WrongLength) => {
            Err(Problem::bad_request("The length of the body differs from its Content-Length."))
        }
        Err(UploadError::Peer(_)) => Err(not_received()),
    }
}

fn not_received() -> Problem {
    Problem::bad_request("Receiving the body of the request failed.")
}
