//! Tests followers that answer lookups from their own items.

use super::leader::{follower, is_of_one_server, share_items};
use crate::common::{TestClient, TestEngine, set, text};
use crate::splits::{Delivery, any_delivery, any_stream, check};
use larder_session::Session;
use proptest::prelude::*;

for_each_engine! { a_replica_answers_lookups a_recent_replica_replies_like_its_leader }

/// A follower answers lookups from its own items. In this test, its items differ from the leader's,
/// so the replies show which server has answered.
fn a_replica_answers_lookups(engine: TestEngine) {
    let resp = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let cases = [
        ("get a\r\n", "VALUE a 0 4\r\ncopy\r\nEND\r\n", false),
        ("get none a none a\r\n", "VALUE a 0 4\r\ncopy\r\nVALUE a 0 4\r\ncopy\r\nEND\r\n", false),
        ("mg a v\r\nmn\r\n", "VA 4\r\ncopy\r\nMN\r\n", false),
        // The follower forwards lookups that change an item, and lookups after a forwarded change.
        ("gat 0 a\r\n", "VALUE a 0 6\r\nleader\r\nEND\r\n", false),
        ("mg a v T0\r\n", "VA 6\r\nleader\r\n", false),
        ("append a 0 0 1\r\n!\r\nget a\r\n", "STORED\r\nVALUE a 0 7\r\nleader!\r\nEND\r\n", false),
        (
            "get a\r\ndelete a\r\nget a\r\n",
            "VALUE a 0 4\r\ncopy\r\nEND\r\nDELETED\r\nEND\r\n",
            false,
        ),
        ("get a\r\n", "$4\r\ncopy\r\n", true),
        ("mget a none\r\nexists a\r\n", "*2\r\n$4\r\ncopy\r\n$-1\r\n:1\r\n", true),
        ("strlen a\r\nappend a !\r\n", ":4\r\n:7\r\n", true),
        (
            "multi\r\nappend a !\r\nping\r\nget a\r\nexec\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:7\r\n+PONG\r\n$7\r\nleader!\r\n",
            true,
        ),
        ("ping\r\nget a\r\nping\r\n", "+PONG\r\n$4\r\ncopy\r\n+PONG\r\n", true),
    ];
    for (requests, answers, is_resp) in cases {
        let (mut server, leader) = follower(engine, &[], usize::MAX);
        leader.lock().unwrap().replies_to(&set("a", b"leader"));
        let open = server.host.leader.take();
        server.replies_to(&set("a", b"copy"));
        server.host.leader = open;
        server.host.serves_reads = true;
        let client = if is_resp { resp() } else { TestClient::new() };
        let (replies, is_closed) = Delivery::at_once().run_in(server, client, requests.as_bytes());
        assert_eq!(String::from_utf8_lossy(&replies), answers, "{requests}");
        assert!(!is_closed);
    }
}

/// A follower with the same items as its leader gives the same replies, however the input is split.
fn a_recent_replica_replies_like_its_leader(engine: TestEngine) {
    check(100, (any_stream(1000), any_delivery()), |(stream, delivery)| {
        if is_of_one_server(&stream.0) {
            return Ok(());
        }
        let direct = Delivery::at_once().run(engine, &stream.0);
        let (mut server, leader) = follower(engine, &[], usize::MAX);
        share_items(engine, &mut server, &mut leader.lock().unwrap());
        server.host.serves_reads = true;
        let forwarded = delivery.run_in(server, TestClient::new(), &stream.0);
        prop_assert_eq!(text(&forwarded.0), text(&direct.0), "{:?}", delivery);
        prop_assert_eq!(forwarded.1, direct.1);
        Ok(())
    });
}
