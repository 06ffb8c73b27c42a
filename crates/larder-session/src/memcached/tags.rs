//! Tags in memcached's text protocol: the meta flag `G` and the command `mt`.

use crate::Host;
use crate::context::Context;
use larder_operations::Tags;
use larder_protocol::reply;
use larder_protocol::{DropTag, KEY_LEN_MAX, MetaFlags, Request};
use larder_store::{Engine, Refusal};

/// Returns the meta flags of a request, if they include tags.
#[inline]
fn flags<'r>(request: &'r Request<'_>) -> Option<&'r MetaFlags<'r>> {
    let format = match request {
        Request::Get(get) => &get.format,
        Request::Store(store) => &store.format,
        Request::Arithmetic(arithmetic) => &arithmetic.format,
        _ => return None,
    };
    format.meta().filter(|flags| flags.has(b'G'))
}

/// Returns whether a request sets tags on the item that it stores.
#[inline]
pub(crate) fn has_tags(request: &Request<'_>) -> bool {
    flags(request).is_some()
}

/// Returns the tags that a request sets on the item that it stores.
///
/// # Errors
/// The engine's [`Refusal`].
pub(crate) fn of_request<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    request: &Request<'_>,
) -> Result<Tags, Refusal> {
    match flags(request) {
        Some(flags) => cx.operations.tags(flags.tags()),
        None => Ok(Tags::new()),
    }
}

/// Answers `mt`, which drops a tag.
pub(crate) fn drop_tag<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    drop: &DropTag<'_>,
    output: &mut Vec<u8>,
) {
    if !cx.operations.engine.has_tags() {
        return reply::tags_refused(false, output);
    }
    let mut scratch = [0; KEY_LEN_MAX];
    let found = cx.operations.drop_tag(drop.tag.decode(&mut scratch));
    reply::tag_dropped(drop, found, output);
}
