//! Deadlines of clients (`grpc-timeout`).

use super::memory::RequestMemory;
use crate::web::memory::with_guard;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::HeaderMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;

/// A request whose timeout is at least this long has no deadline.
const TIMEOUT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The time by which the reply must be complete; `None` without a deadline.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// Reads the deadline of a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: the timeout is malformed.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let Some(text) = headers.get("grpc-timeout") else { return Ok(Self(None)) };
        let time = text.to_str().ok().and_then(parse);
        let time = time.ok_or_else(|| {
            Status::invalid_argument(
                "grpc-timeout must be up to 8 digits and one of H, M, S, m, u, n.",
            )
        })?;
        Ok(Self((time < TIMEOUT_MAX).then(|| Instant::now() + time)))
    }

    /// Waits for a result until the deadline.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED`: the deadline passed before the result was available.
    pub(super) async fn bound<R>(self, work: impl Future<Output = R>) -> Result<R, Status> {
        match self.0 {
            Some(at) => timeout_at(at, work).await.map_err(|_| exceeded()),
            None => Ok(work.await),
        }
    }

    /// Wraps the body of a reply. If there is a deadline and the body has not ended at the
    /// deadline, the wrapped body ends with the status `DEADLINE_EXCEEDED`. The wrapper and each of
    /// its chunks hold `memory` until they are dropped.
    pub(super) fn wrap_body(self, body: Body, memory: RequestMemory) -> DeadlineBody {
        let end = self.0.map(|at| Box::pin(sleep_until(at)));
        DeadlineBody { body: Some(body), end, memory }
    }
}

fn exceeded() -> Status {
    Status::deadline_exceeded("The request took longer than its deadline allows.")
}

/// Parses a time in the format of gRPC's protocol. Returns `None` if it is malformed.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// The body of a reply. It ends at the deadline at the latest. Each chunk holds the memory that the
/// request has reserved.
pub(super) struct DeadlineBody {
    /// The body; `None` after the deadline.
    body: Option<Body>,
    end: Option<Pin<Box<Sleep>>>,
    memory: RequestMemory,
}

impl http_body::Body for DeadlineBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let is_over = self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready());
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if !is_over {
            let polled = Pin::new(body).poll_frame(cx);
            // Each chunk holds the request's memory, because the connection may keep a chunk for a
            // slow peer long after the handler has finished.
            let keep = |data| with_guard(data, self.memory.clone());
            return polled.map_ok(|frame| frame.map_data(keep));
        }
        self.body = None;
        let mut trailers = HeaderMap::new();
        // Encoding a status without details cannot fail.
        let _ = exceeded().add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("1S", Some(Duration::from_secs(1))),
            ("00000100m", Some(Duration::from_millis(100))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("5u", Some(Duration::from_micros(5))),
            ("7n", Some(Duration::from_nanos(7))),
            ("2M", Some(Duration::from_secs(120))),
            ("", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("1.5S", None),
            ("123456789S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
