//! Tests that a store leaves no valid item if a client drops one of its tags after the store has
//! started, even if the store waits in between.

use crate::common::conversation::Conversation;
use larder_session::{Next, Session};
use larder_store::Updates;

/// Polls until a request waits. Returns false if no request waits before the session has answered
/// all requests.
fn poll_until_waiting(conversation: &mut Conversation) -> bool {
    loop {
        let progress = conversation.poll();
        match progress.next {
            _ if progress.hold => conversation.complete_all(),
            Next::Wait => return true,
            Next::Yield => (),
            Next::Read { .. } | Next::Write | Next::Close | Next::Abandon | Next::NotOwner => {
                return false;
            }
        }
    }
}

fn check(request: &[u8], answer: &[u8], is_resp: bool) {
    let mut waited = 0;
    for seed in 1..60 {
        let mut conversation = Conversation::new(seed, request);
        if is_resp {
            conversation.session = Session::resp(0, false);
        }
        if !poll_until_waiting(&mut conversation) {
            assert_eq!(conversation.output, answer, "{}", request.escape_ascii());
            continue;
        }
        waited += 1;
        assert!(
            conversation.server.engine.drop_tag(b"x"),
            "the waiting request has defined the tag"
        );
        loop {
            conversation.complete_all();
            if !poll_until_waiting(&mut conversation) {
                break;
            }
        }
        assert_eq!(conversation.output, answer, "{}", request.escape_ascii());
        conversation.session = Session::new();
        (conversation.unread, conversation.output) = (b"mg k v\r\nmn\r\n".to_vec(), Vec::new());
        while poll_until_waiting(&mut conversation) {
            conversation.complete_all();
        }
        assert_eq!(conversation.output, b"EN\r\nMN\r\n", "{}", request.escape_ascii());
    }
    assert!(waited > 10, "{waited} of 59 waited: {}", request.escape_ascii());
}

#[test]
fn a_waiting_request_keeps_its_first_tags() {
    for (request, answer) in [
        (&b"ms k 1 ME Gx\r\n1\r\n"[..], &b"HD\r\n"[..]),
        (b"ms k 1 MA N0 Gy,x\r\n1\r\n", b"HD\r\n"),
        (b"ma k N0 Gx\r\n", b"HD\r\n"),
        (b"mg k N0 Gx\r\n", b"HD W\r\n"),
    ] {
        check(request, answer, false);
    }
    for (request, answer) in [
        (&b"*7\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nNX\r\n$4\r\nTAGS\r\n$1\r\n1\r\n$1\r\nx\r\n"[..], &b"+OK\r\n"[..]),
        (b"*7\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$4\r\nTAGS\r\n$1\r\n1\r\n$1\r\nx\r\n$3\r\nGET\r\n", b"$-1\r\n"),
    ] {
        check(request, answer, true);
    }
}

#[test]
fn a_value_that_arrives_after_a_drop_of_its_tag_is_invalid() {
    for len in [1, 100, 10_000, 100_000] {
        let value = vec![b'v'; len];
        let head = format!("ms k {len} Gx\r\n");
        let mut conversation = Conversation::new(1, head.as_bytes());
        assert!(
            matches!(conversation.poll().next, Next::Read { .. }) && conversation.unread.is_empty(),
            "{len}"
        );
        assert!(conversation.server.engine.drop_tag(b"x"), "{len}");
        conversation.unread = [&value[..], b"\r\nmg k v\r\nmn\r\n"].concat();
        while poll_until_waiting(&mut conversation) {
            conversation.complete_all();
        }
        assert_eq!(conversation.output, b"HD\r\nEN\r\nMN\r\n", "{len}");
    }
}
