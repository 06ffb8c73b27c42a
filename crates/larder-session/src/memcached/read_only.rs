//! The requests that a read-only replica refuses.

use larder_protocol::{ReplyFormat, Request};

/// Returns the reply format of a request that changes or creates items, or `None` for other
/// requests. A lookup of a stale item is not a change, although it takes the right to recompute the
/// item, because each replica grants that right for its own items.
#[cold]
pub(crate) fn change<'r, 'b>(request: &'r Request<'b>) -> Option<&'r ReplyFormat<'b>> {
    match request {
        Request::Get(get) => (get.touch.is_some() || get.vivify.is_some()).then_some(&get.format),
        Request::Store(store) => Some(&store.format),
        Request::Delete(delete) => Some(&delete.format),
        Request::Arithmetic(arithmetic) => Some(&arithmetic.format),
        Request::DropTag(drop) => Some(&drop.format),
        Request::FlushAll { format, .. } => Some(format),
        _ => None,
    }
}
