//! Bodies of requests.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::timeout;

/// How much of a body that is refused is received all the same, and for how long: many clients read no answer
/// before they have sent everything.
const REFUSED_MAX: usize = 64 << 20;
const REFUSED_TIME: Duration = Duration::from_secs(5);

/// Receives the rest of a body that is refused, without keeping it.
pub(crate) async fn discard(body: &mut Body) {
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
///
/// # Errors
/// The connection failed, or what came is not as the protocol says.
pub(crate) async fn next(body: &mut Body) -> Result<Option<Bytes>, axum::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
