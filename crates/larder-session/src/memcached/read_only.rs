//! The requests that a read-only replica refuses.

use larder_protocol::{ReplyFormat, Request};

/// Returns the reply format of a request that may change or create items, or `None` for other
/// requests.
#[cold]
pub(crate) fn change<'r, 'b>(request: &'r Request<'b>) -> Option<&'r ReplyFormat<'b>> {
    match request {
        Request::Get(get) => get.changes_item().then_some(&get.format),
        Request::Store(store) => Some(&store.format),
        Request::Delete(delete) => Some(&delete.format),
        Request::Arithmetic(arithmetic) => Some(&arithmetic.format),
        Request::DropTag(drop) => Some(&drop.format),
        Request::FlushAll { format, .. } => Some(format),
        _ => None,
    }
}
