//! Reading and discarding bodies of requests.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::timeout;

/// The maximum length in bytes of a refused body's rest that is received.
const REFUSED_MAX: usize = 64 << 20;
/// The time limit for receiving the rest of a refused body.
const REFUSED_TIME: Duration = Duration::from_secs(5);

/// Receives and drops the rest of a refused body, within limits. Many clients read no answer before they have sent the
/// whole body.
pub(crate) async fn discard(body: &mut Body) {
    let mut len = 0;
    let received = async {
        while let (true, Ok(Some(data))) = (len < REFUSED_MAX, next(body).await) {
            len += data.len();
        }
    };
    // If a limit is reached, `server.rs` closes an HTTP/1 connection after the answer, unless little is left.
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
