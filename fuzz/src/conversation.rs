//! Sessions over an engine.

use larder_protocol::Parser;
use larder_session::test_util::{START, TestServer};
use larder_store::{Engine, SizeClasses};

/// memcached's overhead per item with a CAS value, in bytes: the header (48), the terminator of the
/// key (1), the CRLF after the value (2) and the CAS value (8).
const OVERHEAD: usize = 48 + 1 + 2 + 8;
const ITEM_SIZE_MAX: usize = 64 << 10;

/// The replies of a session, and whether it closed the connection.
pub type Answers = (Vec<u8>, bool);

/// Returns the size classes of items.
#[must_use]
pub fn classes() -> SizeClasses {
    SizeClasses::new(vec![96, 512, 4096, 1 << 20], OVERHEAD)
}

/// Sends `pieces` to a new session over `engine`, and returns the replies.
///
/// # Panics
/// The session consumes more bytes than it has received, or does not release its memory.
pub fn run_session<'s, E: Engine>(
    engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_poll: usize,
) -> Answers {
    run_session_from(Parser::default(), engine, pieces, requests_per_poll)
}

/// Sends `pieces` to a new session whose parser starts in the state `opening`, and returns the
/// replies. Valid credentials are user `u` and password `p`.
///
/// # Panics
/// As [`run_session`], and if the session executes a request before the required login.
pub fn run_session_from<'s, E: Engine>(
    opening: Parser,
    engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_poll: usize,
) -> Answers {
    let mut server = TestServer::new(engine, ITEM_SIZE_MAX, classes());
    server.host.users = vec![(b"u", b"p")];
    (server.opening, server.settings.requests_per_poll) = (opening, requests_per_poll);
    server.settings.output_max = 4096;
    let mut peer = server.client();
    for piece in pieces {
        peer.send(&mut server, piece);
        if peer.is_closed {
            break;
        }
        server.engine.maintain(START);
    }
    peer.session.close(&server.host);
    assert_eq!(server.host.reserved(), 0, "the session releases all memory");
    let begins_with_login = [Parser::TEXT_LOGIN, Parser::BINARY_LOGIN].contains(&opening);
    if begins_with_login && !server.host.has_authenticated() {
        let of_items = server.counters.classes.iter().flat_map(|class| class.each());
        let of_all = server.counters.thread.each().filter(|(name, _)| !name.starts_with("auth_"));
        assert!(
            of_items.chain(of_all).all(|(_, count)| count.get() == 0),
            "executed a request before the login"
        );
    }
    (peer.received, peer.is_closed)
}
