//! What clients may not ask of a server whose items are a copy of another server's.

use larder_protocol::{ReplyFormat, Request};

/// How a request is answered that changes items, or would create one. What a look-up of a stale item changes, the
/// right to recache it, is no change in this sense: each server gives it for its own copy.
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
