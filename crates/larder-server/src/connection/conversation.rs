//! What a connection needs of the conversation that is held on it, whatever its wire format.

use crate::server::Server;
use larder_session::{Context, Progress, Session, State};
use larder_store::Engine;

/// One client's conversation without its socket: input goes in, output and what to do next come out.
///
/// Connections are generic over it, so a turn costs no indirect call.
pub trait Conversation {
    /// What a driver lends it for one turn.
    type Context<'a>;

    /// Answers what is whole in `input`, into `output`, for one turn. `input` begins with what the
    /// turn before did not consume.
    fn receive(
        &mut self,
        cx: &mut Self::Context<'_>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress;

    /// Its state, for `stats conns` and for timeouts.
    fn state(&self) -> State;

    /// Whether `unread`, which was not consumed, contains all of a request but its value: then a slow
    /// client is not idle.
    fn awaits_value(&self, unread: &[u8]) -> bool;

    /// Bytes of the cache's memory that a value which is being sent keeps in use.
    fn leased_bytes(&self) -> usize;

    /// Bytes of the cache's memory that a value which is being received has taken.
    fn uploaded_bytes(&self) -> usize;

    /// Whether it ended because its peer violated the protocol.
    fn has_failed(&self) -> bool;

    /// Releases the server's memory that it holds. Called once, at the connection's end.
    fn close(&mut self, server: &Server);
}

/// The length of the head of a request in memcached's binary protocol, in bytes.
const BINARY_HEAD_LEN: usize = 24;
/// What each of them begins with.
const BINARY_MAGIC: u8 = 0x80;

impl<E: Engine + 'static> Conversation for Session<E> {
    type Context<'a> = Context<'a, E, Server>;

    #[inline]
    fn receive(
        &mut self,
        cx: &mut Self::Context<'_>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        Self::receive(self, cx, input, output)
    }

    fn state(&self) -> State {
        Self::state(self)
    }

    fn awaits_value(&self, unread: &[u8]) -> bool {
        match unread.first() {
            Some(&BINARY_MAGIC) => unread.len() >= BINARY_HEAD_LEN,
            _ => unread.contains(&b'\n'),
        }
    }

    fn leased_bytes(&self) -> usize {
        Self::leased_bytes(self)
    }

    fn uploaded_bytes(&self) -> usize {
        Self::uploaded_bytes(self)
    }

    fn has_failed(&self) -> bool {
        Self::has_failed(self)
    }

    fn close(&mut self, server: &Server) {
        Self::close(self, server);
    }
}
