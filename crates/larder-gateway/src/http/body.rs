//! Bodies of requests and answers.

use super::problem::Problem;
use crate::items::{Items, Upload};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_LENGTH, EXPECT};
use hyper::{HeaderMap, StatusCode};
use larder_store::Refusal;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// The longest body of unknown length, in bytes.
pub(super) const UNANNOUNCED_MAX: usize = 64 << 10;
/// How long a body may take, and how much longer for each [`SLOWEST`] bytes of it.
const BODY_TIME: Duration = Duration::from_secs(30);
const SLOWEST: usize = 16 << 10;
/// How much of a body that is refused is received all the same, and for how long: many clients read no answer
/// before they have sent everything.
const REFUSED_MAX: usize = 64 << 20;
const REFUSED_TIME: Duration = Duration::from_secs(5);

/// A value on its way out, in pieces that are not copied.
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

/// A value that has arrived.
pub(super) enum Arrived {
    /// As a whole.
    Whole(Bytes),
    /// In the engine already; its length in bytes.
    Uploaded(Upload, usize),
}

impl Arrived {
    /// The value, unless it was uploaded.
    pub(super) fn bytes(&self) -> &[u8] {
        if let Self::Whole(bytes) = self { bytes } else { &[] }
    }

    /// The length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Uploaded(_, len) => *len,
        }
    }

    pub(super) fn into_upload(self) -> Option<Upload> {
        if let Self::Uploaded(upload, _) = self { Some(upload) } else { None }
    }
}

/// Reads a value of at most `max` bytes.
///
/// # Errors
/// A [`Problem`]: it is too long, too slow, or there is no memory for it.
pub(super) async fn read_value(
    items: &dyn Items,
    mut body: Body,
    headers: &HeaderMap,
    max: usize,
) -> Result<Arrived, Problem> {
    let len = announced_len(headers).map(|len| usize::try_from(len).unwrap_or(usize::MAX));
    if len.is_some_and(|len| len > max) {
        // A client that asks before it sends the body does not send it.
        if !headers.contains_key(EXPECT) {
            discard(&mut body).await;
        }
        return Err(Problem::too_large());
    }
    let time = BODY_TIME * (1 + u32::try_from(len.unwrap_or(0) / SLOWEST / 30).unwrap_or(0));
    let read = async {
        match len {
            Some(len) if len >= items.upload_len_min() => upload(items, body, len).await,
            Some(_) => collect(body, max).await.map(Arrived::Whole),
            None => collect(body, UNANNOUNCED_MAX.min(max)).await.map(Arrived::Whole),
        }
    };
    timeout(time, read).await.map_err(|_| {
        Problem::new(StatusCode::REQUEST_TIMEOUT, "The body of the request takes too long.")
    })?
}

/// Reads a body of at most `max` bytes.
///
/// # Errors
/// A [`Problem`].
pub(super) async fn collect(mut body: Body, max: usize) -> Result<Bytes, Problem> {
    let mut whole = BytesMut::new();
    while let Some(data) = next(&mut body).await? {
        if whole.len() + data.len() > max {
            drop((whole, data));
            discard(&mut body).await;
            return Err(if max == UNANNOUNCED_MAX {
                let detail = "A body of more than 64 KiB needs a Content-Length.";
                Problem::new(StatusCode::LENGTH_REQUIRED, detail)
            } else {
                Problem::too_large()
            });
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// The length of the body, as announced.
fn announced_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn upload(items: &dyn Items, mut body: Body, len: usize) -> Result<Arrived, Problem> {
    let refused = |refusal| match refusal {
        Refusal::TooLarge => Problem::too_large(),
        _ => Problem::out_of_memory(),
    };
    let mut upload = items.begin_upload(len).map_err(refused)?;
    let mut arrived = 0;
    while let Some(data) = next(&mut body).await? {
        arrived += data.len();
        items.extend(&mut upload, &data).map_err(refused)?;
    }
    if arrived != len {
        return Err(Problem::bad_request("The body is shorter than its Content-Length."));
    }
    Ok(Arrived::Uploaded(upload, len))
}

/// Receives the rest of a body that is refused, without keeping it.
async fn discard(body: &mut Body) {
    let mut len = 0;
    let received = async {
        while let (true, Ok(Some(data))) = (len < REFUSED_MAX, next(body).await) {
            len += data.len();
        }
    };
    // The rest of it is refused by the connection.
    let _ = timeout(REFUSED_TIME, received).await;
}

/// The next data of a body. What follows it, as trailers, is not used.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => {
                return Err(Problem::bad_request("The body of the request was not received."));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}
