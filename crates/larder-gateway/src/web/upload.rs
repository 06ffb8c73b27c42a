//! Uploads: large values that are received into the engine piece by piece.

use super::app::App;
use crate::items::Upload;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use larder_store::Refusal;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::timeout;

/// While uploads exceed their share of memory, the server abandons an upload that receives fewer
/// than [`STALLED_LEN`] bytes in this time.
const STALLED: Duration = Duration::from_secs(1);
/// While uploads exceed their share of memory, an upload must receive at least this many bytes in
/// each period of [`STALLED`].
const STALLED_LEN: usize = 64 << 10;

/// The reason why a value was not received.
#[derive(Debug)]
pub(crate) enum UploadError<P> {
    /// Another upload would exceed the memory limit, and no connection is slow enough to be closed.
    Full,
    /// The value arrived too slowly while uploads exceeded their share of memory.
    Stalled,
    /// The item would be larger than the server allows.
    TooLarge,
    /// The cache could not allocate memory for the value.
    OutOfMemory,
    /// The length of the value differs from the announced length.
    WrongLength,
    /// Receiving the next piece failed.
    Peer(P),
}

/// Receives a value of `len` bytes for a key.
///
/// # Errors
/// [`UploadError`]. The remaining pieces are not received.
pub(crate) async fn receive<P>(
    app: &App,
    pieces: &mut (impl Stream<Item = Result<Bytes, P>> + Unpin),
    (key, len): (&[u8], usize),
) -> Result<Upload, UploadError<P>> {
    let mut upload = loop {
        match app.items.start_upload(key, len) {
            Ok(upload) => break upload,
            Err(Refusal::OutOfMemory) if app.connections.close_slow() => yield_now().await,
            Err(Refusal::OutOfMemory) => return Err(UploadError::Full),
            Err(_) => return Err(UploadError::TooLarge),
        }
    };
    let (mut arrived, mut seen, mut checked) = (0, 0, Instant::now());
    loop {
        let piece = timeout(STALLED, pieces.next()).await;
        if checked.elapsed() >= STALLED {
            // A slow peer must not block the uploads of other clients, including clients of other
            // protocols.
            if arrived - seen < STALLED_LEN && app.items.lacks_memory() {
                return Err(UploadError::Stalled);
            }
            (seen, checked) = (arrived, Instant::now());
        }
        match piece {
            Err(_) => (),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(UploadError::Peer(error)),
            Ok(Some(Ok(bytes))) => {
                arrived += bytes.len();
                if arrived > len {
                    return Err(UploadError::WrongLength);
                }
                app.items.extend(&mut upload, &bytes).map_err(|refusal| match refusal {
                    Refusal::TooLarge => UploadError::TooLarge,
                    _ => UploadError::OutOfMemory,
                })?;
            }
        }
    }
    if arrived == len { Ok(upload) } else { Err(UploadError::WrongLength) }
}
