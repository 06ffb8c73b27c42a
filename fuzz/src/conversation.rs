//! A whole session over an engine.

use larder_protocol::Parser;
use larder_session::test_util::{START, TestServer};
use larder_store::{Engine, SizeClasses};

const OVERHEAD: usize = 59;
const ITEM_SIZE_MAX: usize = 64 << 10;

/// What came back, and whether the session hung up.
pub type Answers = (Vec<u8>, bool);

/// How items are counted.
#[must_use]
pub fn classes() -> SizeClasses {
    SizeClasses::new(vec![96, 512, 4096, 1 << 20], OVERHEAD)
}

/// Talks to a new session over `engine`.
///
/// # Panics
/// The session claims bytes that it was not given, or keeps memory.
pub fn converse<'s, E: Engine>(
    engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_poll: usize,
) -> Answers {
    converse_from(Parser::default(), engine, pieces, requests_per_poll)
}

/// The same, begun as `opening` says. `u` comes in with the password `p`.
///
/// # Panics
/// As [`converse`], or somebody was served who did not come in.
pub fn converse_from<'s, E: Engine>(
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
    assert_eq!(server.host.reserved(), 0, "memory is given back");
    let begins_with_login = [Parser::TEXT_LOGIN, Parser::BINARY_LOGIN].contains(&opening);
    if begins_with_login && !server.host.has_authenticated() {
        let of_items = server.counters.classes.iter().flat_map(|class| class.each());
        let of_all = server.counters.thread.each().filter(|(name, _)| !name.starts_with("auth_"));
        assert!(of_items.chain(of_all).all(|(_, count)| count.get() == 0), "served a stranger");
    }
    (peer.received, peer.is_closed)
}
