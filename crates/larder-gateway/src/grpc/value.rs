//! Values sent and received in pieces.

use super::fields::{NewItem, key, out_of_memory, too_large, ttl};
use super::memory::RequestMemory;
use super::pb;
use super::pb::{read_response, write_request};
use crate::items::StoredItem;
use crate::web::app::App;
use crate::web::memory::Busy;
use crate::web::upload::{UploadError, receive};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tonic::{Status, Streaming};

/// The maximum length, in bytes, of a piece that is sent.
const PIECE_LEN: usize = 64 << 10;

/// Returns the messages of the reply to a lookup: a head, then the pieces of the value if there is
/// an item. The memory of a piece stays reserved until the piece is sent.
pub(super) fn parts(
    found: Option<StoredItem>,
) -> impl Iterator<Item = Result<pb::ReadResponse, Status>> + Send {
    let head = match &found {
        Some(found) => pb::ReadHead {
            found: true,
            length: found.len() as u64,
            cas: found.cas,
            flags: found.client_flags,
            ttl: ttl(found),
        },
        None => pb::ReadHead::default(),
    };
    let pieces = found.map(|found| found.value).unwrap_or_default();
    let pieces = pieces.into_iter().flat_map(|mut rest| {
        std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| rest.split_to(rest.len().min(PIECE_LEN)))
        })
    });
    let parts = pieces.map(read_response::Part::Data);
    let parts = std::iter::once(read_response::Part::Head(head)).chain(parts);
    parts.map(|part| Ok(pb::ReadResponse { part: Some(part) }))
}

/// Stores an item whose value arrives in pieces.
///
/// # Errors
/// The head is missing or invalid. The value is too long, arrives too slowly, or is longer or
/// shorter than announced. Receiving the value would exceed a memory limit.
pub(super) async fn write(
    app: &App,
    memory: &RequestMemory,
    mut messages: Streaming<pb::WriteRequest>,
) -> Result<pb::SetResponse, Status> {
    let no_head = || Status::invalid_argument("The first message must be a head with an item.");
    let first = messages.message().await?.ok_or_else(no_head)?;
    let Some(write_request::Part::Head(head)) = first.part else { return Err(no_head()) };
    let (item, len) = (head.item.ok_or_else(no_head)?, head.length);
    if !item.value.is_empty() {
        return Err(Status::invalid_argument("The item in the head must not have a value."));
    }
    let new = NewItem::of(app, &item)?;
    let max = app.view.limits().item_size_max;
    let len = usize::try_from(len).ok().filter(|len| *len <= max).ok_or_else(too_large)?;
    let mut pieces = messages.map(|message| match message?.part {
        Some(write_request::Part::Data(data)) => Ok(data),
        Some(write_request::Part::Head(_)) => {
            Err(Status::invalid_argument("Only the first message may be a head."))
        }
        None => Ok(Bytes::new()),
    });
    let name = key(&item.key)?;
    if len < app.items.upload_len_min() {
        memory.require(app, len).await?;
        let value = collect(&mut pieces, len).await?;
        return new.store(app, name, &value, None).await;
    }
    let upload = receive(app, &mut pieces, (name, len)).await.map_err(|refused| match refused {
        UploadError::Full | UploadError::Stalled => Busy.into(),
        UploadError::TooLarge => too_large(),
        UploadError::OutOfMemory => out_of_memory(),
        UploadError::WrongLength => wrong_length(),
        UploadError::Peer(status) => status,
    })?;
    new.store(app, name, &[], Some((upload, len))).await
}

/// Receives a value of `len` bytes into memory that the caller has reserved.
async fn collect(
    pieces: &mut (impl Stream<Item = Result<Bytes, Status>> + Unpin),
    len: usize,
) -> Result<Bytes, Status> {
    let mut value = BytesMut::with_capacity(len);
    while let Some(piece) = pieces.next().await {
        value.extend_from_slice(&piece?);
        if value.len() > len {
            return Err(wrong_length());
        }
    }
    if value.len() == len { Ok(value.freeze()) } else { Err(wrong_length()) }
}

fn wrong_length() -> Status {
    Status::invalid_argument("The length of the pieces differs from the length in the head.")
}
