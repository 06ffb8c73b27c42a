//! The interface between a connection and its protocol.

use crate::server::Server;
use larder_session::{Context, Progress, Session, State};
use larder_store::Engine;

/// One client's protocol state, independent of its socket. Each call takes input and returns output
/// and the next step.
///
/// Connections are generic over this trait, so that a poll makes no indirect call.
pub trait Conversation {
    /// The worker's state, which the driver lends to each call.
    type Context<'a>;

    /// Answers the complete requests in `input`, and appends the replies to `output`. Stops when
    /// the limit of one poll is reached. `input` starts with the bytes that the previous call did
    /// not consume.
    fn receive(
        &mut self,
        cx: &mut Self::Context<'_>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress;

    /// Returns the state for `stats conns` and for timeouts.
    fn state(&self) -> State;

    /// Returns whether the client is sending a value. This is the case if the unconsumed input
    /// `unread` contains the complete head of a request, but not all of its value. The idle timeout
    /// does not apply to such a client.
    fn awaits_value(&self, unread: &[u8]) -> bool;

    /// Returns the number of cache-memory bytes pinned by a value that is being sent.
    fn leased_bytes(&self) -> usize;

    /// Returns the number of cache-memory bytes that an incomplete value occupies.
    fn uploaded_bytes(&self) -> usize;

    /// Returns whether the conversation has unsolicited output for its client, such as
    /// invalidations of tracked items.
    fn has_messages(&self) -> bool;

    /// Returns whether the client waits for unsolicited output, such as the messages of a
    /// subscription. Such a client may send no requests for any length of time.
    fn awaits_messages(&self) -> bool;

    /// Returns whether the conversation ended because the peer violated the protocol.
    fn has_failed(&self) -> bool;

    /// Releases the memory of the server that the conversation holds. The driver calls this
    /// function once, when the connection closes.
    fn close(&mut self, server: &Server);
}

/// The header length in memcached's binary protocol, in bytes.
const BINARY_HEAD_LEN: usize = 24;
/// The first byte of a request in memcached's binary protocol.
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

    fn has_messages(&self) -> bool {
        Self::has_messages(self)
    }

    fn awaits_messages(&self) -> bool {
        Self::awaits_messages(self)
    }

    fn has_failed(&self) -> bool {
        Self::has_failed(self)
    }

    fn close(&mut self, server: &Server) {
        Self::close(self, server);
    }
}
