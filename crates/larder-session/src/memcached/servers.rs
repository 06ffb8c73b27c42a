//! The list of servers as an item, for clients that look for it under a key: on members of a group alone.

use crate::Host;
use crate::context::{Context, Step, Turn};
use crate::memcached::batch::{Batch, Ready, What, class_of};
use crate::route::Owner;
use crate::session::Session;
use larder_operations::CommandClass;
use larder_protocol::{Get, Parser, Request, reply};
use larder_store::Engine;

/// The first look-up of a batch that asks for the list of servers, and that this server may answer. `parser` is the
/// state before the batch.
///
/// The keys of a line are answered by the same server. Where another one answers requests about items, the key has to
/// be alone on its line.
pub(crate) fn next_look_up(batch: &Batch<'_>, parser: Parser, owner: Owner) -> Option<usize> {
    let mut before = parser;
    batch.ready.iter().position(|ready| {
        let after = match ready.what {
            What::Other(index) => batch.others.get(index).map_or(before, |other| other.parser),
            What::Get(_) | What::Set(_) => before,
        };
        let is_whole_line = before.is_between_lines() && after.is_between_lines();
        before = after;
        asks(batch, ready) && (is_whole_line || owner != Owner::Remote)
    })
}

/// Whether a request looks the list of servers up, and changes nothing.
fn asks(batch: &Batch<'_>, ready: &Ready<'_>) -> bool {
    match ready.what {
        What::Get(get) => get.key == reply::SERVERS_KEY,
        What::Set(_) => false,
        What::Other(index) => match batch.others.get(index).map(|other| &other.request) {
            Some(Request::Get(get)) => names_servers(get),
            _ => false,
        },
    }
}

fn names_servers(get: &Get<'_>) -> bool {
    let is_key = !get.key.base64 && get.key.wire == reply::SERVERS_KEY;
    is_key && get.touch.is_none() && get.vivify.is_none()
}

impl<E: Engine> Session<E> {
    /// Answers the first look-up of a batch with the list of servers; `None` if the host knows of no cluster.
    #[cold]
    pub(crate) fn answer_servers<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        batch: &Batch<'_>,
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Option<Step> {
        let servers = cx.host.servers()?;
        let ready = batch.ready.first()?;
        let class = match ready.what {
            What::Get(get) => {
                reply::servers_item(&get.get(), &servers, output);
                Some(CommandClass::Get)
            }
            What::Set(_) => return None,
            What::Other(index) => {
                let other = batch.others.get(index)?;
                let Request::Get(get) = &other.request else { return None };
                reply::servers_item(get, &servers, output);
                self.parser = other.parser;
                class_of(&other.request)
            }
        };
        turn.left -= 1;
        turn.answered.add(class.unwrap_or(CommandClass::Get), 1);
        Some(Step::go_on(ready.end))
    }
}
