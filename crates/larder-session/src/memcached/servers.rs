//! The server list as an item, for clients that look up the list under a key. Only members of a
//! cluster have this item.

use crate::Host;
use crate::context::{Context, PollState, Step};
use crate::memcached::batch::{Batch, BatchRequest, RequestKind, class_of};
use crate::route::Owner;
use crate::session::Session;
use larder_operations::CommandClass;
use larder_protocol::{Get, Parser, Request, reply};
use larder_store::Engine;

/// Returns the index of the first lookup of the server list in a batch, if this server may answer
/// this lookup. `parser` is the parser state before the batch.
///
/// The same server has to answer all keys of a line. If another node answers lookups of items
/// ([`Owner::Remote`]), this server answers only if the key is alone on its line.
pub(crate) fn next_list_lookup(batch: &Batch<'_>, parser: Parser, owner: Owner) -> Option<usize> {
    let mut before = parser;
    batch.requests.iter().position(|ready| {
        let after = match ready.kind {
            RequestKind::Other(index) => {
                batch.others.get(index).map_or(before, |other| other.parser)
            }
            RequestKind::Get(_) | RequestKind::Set(_) => before,
        };
        let is_whole_line = before.is_between_lines() && after.is_between_lines();
        before = after;
        is_list_lookup(batch, ready) && (is_whole_line || owner != Owner::Remote)
    })
}

/// Returns whether a request looks up the server list and changes nothing.
fn is_list_lookup(batch: &Batch<'_>, ready: &BatchRequest<'_>) -> bool {
    match ready.kind {
        RequestKind::Get(get) => get.key == reply::SERVERS_KEY,
        RequestKind::Set(_) => false,
        RequestKind::Other(index) => match batch.others.get(index).map(|other| &other.request) {
            Some(Request::Get(get)) => names_servers(get),
            _ => false,
        },
    }
}

fn names_servers(get: &Get<'_>) -> bool {
    let is_key = !get.key.base64 && get.key.wire == reply::SERVERS_KEY;
    is_key && !get.changes_item()
}

impl<E: Engine> Session<E> {
    /// Answers the first request of a batch, which must be a lookup, with the server list. Returns
    /// `None` if the host has no cluster.
    #[cold]
    pub(crate) fn answer_servers<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        batch: &Batch<'_>,
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Option<Step> {
        let servers = cx.host.servers()?;
        let ready = batch.requests.first()?;
        let class = match ready.kind {
            RequestKind::Get(get) => {
                reply::servers_item(&get.get(), &servers, output);
                Some(CommandClass::Get)
            }
            RequestKind::Set(_) => return None,
            RequestKind::Other(index) => {
                let other = batch.others.get(index)?;
                let Request::Get(get) = &other.request else { return None };
                reply::servers_item(get, &servers, output);
                self.parser = other.parser;
                class_of(&other.request)
            }
        };
        poll.left -= 1;
        poll.answered.add(class.unwrap_or(CommandClass::Get), 1);
        Some(Step::advance(ready.end))
    }
}
