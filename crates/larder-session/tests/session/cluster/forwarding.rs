//! Tests sessions that forward requests to a leader. For all requests, and however the input is
//! split, the replies equal the leader's replies, even if the leader changes between requests.

use super::leader::{follower, is_of_one_server};
use crate::common::{TestClient, TestEngine, new_server, pattern, set, store, text};
use crate::splits::{Delivery, SAMPLER, any_delivery, any_stream, check, garbled_stream};
use larder_session::{ForwardId, ForwardOutcome, Host, Route, Session};
use proptest::prelude::*;
use std::task::Waker;

for_each_engine! { replies_equal_those_of_the_leader malformed_requests_are_answered_in_order resp_requests_are_forwarded
requests_are_sent_again_after_a_leader_change requests_without_a_leader_get_errors a_change_with_unknown_outcome_closes_the_connection
requests_without_items_are_answered_locally a_long_value_is_refused_after_it_was_sent
a_partly_answered_request_continues_at_the_next_leader }

fn same(
    engine: TestEngine,
    stream: &[u8],
    delivery: &Delivery,
    outcomes: &[ForwardOutcome],
    part_len: usize,
) -> Result<(), TestCaseError> {
    if is_of_one_server(stream) {
        return Ok(());
    }
    let direct = Delivery::at_once().run(engine, stream);
    let (server, _) = follower(engine, outcomes, part_len);
    let forwarded = delivery.run_in(server, TestClient::new(), stream);
    prop_assert_eq!(text(&forwarded.0), text(&direct.0), "{:?} {:?}", delivery, outcomes);
    prop_assert_eq!(forwarded.1, direct.1);
    Ok(())
}

fn replies_equal_those_of_the_leader(engine: TestEngine) {
    for (pieces, part_len) in [(vec![usize::MAX], usize::MAX), (vec![1], 1), (vec![7, 40], 3)] {
        let delivery = Delivery { pieces, ..Delivery::at_once() };
        same(engine, SAMPLER, &delivery, &[], part_len).unwrap();
    }
    let parts = prop_oneof![1..100_usize, Just(usize::MAX), Just(100_000)];
    check(100, (any_stream(200_000), any_delivery(), parts), |(stream, delivery, part_len)| {
        same(engine, &stream.0, &delivery, &[], part_len)
    });
}

fn malformed_requests_are_answered_in_order(engine: TestEngine) {
    check(150, (garbled_stream(1000), any_delivery()), |(stream, delivery)| {
        same(engine, &stream.0, &delivery, &[], usize::MAX)
    });
}

/// Sessions send requests again if the first leader has not executed them.
fn requests_are_sent_again_after_a_leader_change(engine: TestEngine) {
    let outcomes = prop::collection::vec(
        prop_oneof![Just(ForwardOutcome::Done), Just(ForwardOutcome::Retry)],
        0..30,
    );
    check(100, (any_stream(1000), any_delivery(), outcomes), |(stream, delivery, outcomes)| {
        same(engine, &stream.0, &delivery, &outcomes, usize::MAX)
    });
}

fn requests_without_a_leader_get_errors(engine: TestEngine) {
    let requests: [(&[u8], &str); 12] = [
        (b"get a\r\n", "SERVER_ERROR no leader\r\n"),
        (b"get a b c\r\n", "SERVER_ERROR no leader\r\n"),
        (b"set a 0 0 1\r\n1\r\n", "SERVER_ERROR no leader\r\n"),
        (b"set a 0 0 1 noreply\r\n1\r\n", ""),
        (b"ms a 1 q\r\n1\r\n", "SERVER_ERROR no leader\r\n"),
        (b"mg a v\r\n", "SERVER_ERROR no leader\r\n"),
        (b"delete a\r\n", "SERVER_ERROR no leader\r\n"),
        (b"incr a 1\r\n", "SERVER_ERROR no leader\r\n"),
        (b"touch a 1\r\n", "SERVER_ERROR no leader\r\n"),
        (b"flush_all\r\n", "SERVER_ERROR no leader\r\n"),
        (b"me a\r\n", "SERVER_ERROR no leader\r\n"),
        (b"bogus\r\n", "ERROR\r\n"),
    ];
    for (request, answer) in requests {
        let stream = [request, b"version\r\n", request, b"mn\r\n"].concat();
        for pieces in [vec![usize::MAX], vec![1]] {
            let (server, _) = follower(engine, &[ForwardOutcome::NoLeader; 200], 1);
            let delivery = Delivery { pieces, ..Delivery::at_once() };
            let (replies, is_closed) = delivery.run_in(server, TestClient::new(), &stream);
            let expected = format!("{answer}VERSION 1.6.45\r\n{answer}MN\r\n");
            assert_eq!(String::from_utf8_lossy(&replies), expected, "{}", text(request));
            assert!(!is_closed);
        }
    }
    // The session discards a long value as it arrives.
    let stream = [store("set a 0 0 250000", &pattern(250_000)), b"mn\r\n".to_vec()].concat();
    let (server, _) = follower(engine, &[ForwardOutcome::NoLeader; 200], 1);
    let (replies, _) = Delivery { pieces: vec![5000], ..Delivery::at_once() }.run_in(
        server,
        TestClient::new(),
        &stream,
    );
    assert_eq!(String::from_utf8_lossy(&replies), "SERVER_ERROR no leader\r\nMN\r\n");
}

/// After a lost connection, the session sends lookups again. The outcome of a change is unknown, so
/// the session closes its connection without a reply.
fn a_change_with_unknown_outcome_closes_the_connection(engine: TestEngine) {
    let run = |stream: &[u8], outcomes: &[ForwardOutcome]| {
        let (server, leader) = follower(engine, outcomes, usize::MAX);
        leader.lock().unwrap().replies_to(&set("a", b"5"));
        Delivery::at_once().run_in(server, TestClient::new(), stream)
    };
    let (replies, is_closed) = run(
        b"get a\r\nmg a v\r\n",
        &[ForwardOutcome::ConnectionLost, ForwardOutcome::ConnectionLost],
    );
    assert_eq!(String::from_utf8_lossy(&replies), "VALUE a 0 1\r\n5\r\nEND\r\nVA 1\r\n5\r\n");
    assert!(!is_closed);
    for change in ["incr a 1\r\n", "delete a\r\n", "touch a 0\r\n", "get a\r\nincr a 1\r\n"] {
        let (replies, is_closed) = run(change.as_bytes(), &[ForwardOutcome::ConnectionLost]);
        assert!(replies.is_empty() && is_closed, "{change}: {}", text(&replies));
    }
}

fn requests_without_items_are_answered_locally(engine: TestEngine) {
    let (mut server, leader) = follower(engine, &[], usize::MAX);
    leader.lock().unwrap().host.memory_limit = 0;
    let replies = server.replies_to(b"version\r\nmn\r\nstats\r\nverbosity 1\r\nget a\r\n");
    let expected = "VERSION 1.6.45\r\nMN\r\nSTAT pid 1\r\nSTAT uptime 2\r\nEND\r\nOK\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&replies), expected);
    assert_eq!(leader.lock().unwrap().counters.thread.cmd_touch.get(), 0);
}

fn resp_requests_are_forwarded(engine: TestEngine) {
    let stream =
        b"set a 5\r\nget a\r\nincr a\r\nmget a b\r\nping\r\nhello 3\r\nget none\r\nmulti\r\n\
        incr a\r\necho hi\r\nget a\r\nexec\r\ndel a b\r\ndbsize\r\nflushall\r\nget a\r\nsetx\r\n\
        *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nreset\r\nget b\r\n\
        multi\r\nset b 1\r\nget b\r\nexec\r\nquit\r\n";
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    // `dbsize` counts the items of the server that receives the request. The forwarding server has
    // no items, so its reply would differ.
    let stream = String::from_utf8_lossy(stream).replace("dbsize\r\n", "");
    let direct = Delivery::at_once().run_in(new_server(engine), client(), stream.as_bytes());
    assert!(direct.0.len() > 200 && direct.1, "{}", text(&direct.0));
    for pieces in [vec![usize::MAX], vec![1], vec![3, 50]] {
        for part_len in [1, usize::MAX] {
            for outcomes in [vec![], vec![ForwardOutcome::Retry; 8]] {
                let (server, _) = follower(engine, &outcomes, part_len);
                let delivery = Delivery { pieces: pieces.clone(), ..Delivery::at_once() };
                let forwarded = delivery.run_in(server, client(), stream.as_bytes());
                assert_eq!(
                    text(&forwarded.0),
                    text(&direct.0),
                    "{pieces:?} {part_len} {outcomes:?}"
                );
            }
        }
    }
    let (server, _) = follower(engine, &[ForwardOutcome::NoLeader; 50], 1);
    let replies = Delivery::at_once().run_in(server, client(), b"get a\r\nping\r\nset a 1\r\n").0;
    let error = "-MASTERDOWN this group of servers has no leader\r\n";
    assert_eq!(String::from_utf8_lossy(&replies), format!("{error}+PONG\r\n{error}"));
}

/// Checks that a store with a long value is refused if the group loses its leader. The same applies
/// if the leader changes and the host has refused memory for the sent bytes. The test causes each
/// failure twice: while the session forwards the value, and after the session has forwarded the
/// whole value.
fn a_long_value_is_refused_after_it_was_sent(engine: TestEngine) {
    let stream = [store("set a 0 0 250000", &pattern(250_000)), b"version\r\n".to_vec()].concat();
    for outcome in [ForwardOutcome::NoLeader, ForwardOutcome::Retry] {
        for late in [false, true] {
            let (mut server, _) = follower(engine, &[], usize::MAX);
            // The host applies its limit on sent bytes only if another store has a reservation.
            assert!(server.host.reserve_sent(0, 1));
            server.host.sent_limit = if outcome == ForwardOutcome::Retry { 0 } else { usize::MAX };
            let open = server.host.leader.take().unwrap();
            server.host.leader = Some(Box::new(move |group, conversation| {
                let inner = open(group, conversation);
                Box::new(FixedOutcome { inner, outcome, late, is_complete: false })
            }));
            let delivery = Delivery { pieces: vec![100_000], ..Delivery::at_once() };
            let (replies, is_closed) = delivery.run_in(server, TestClient::new(), &stream);
            let expected = "SERVER_ERROR no leader\r\nVERSION 1.6.45\r\n";
            assert_eq!(String::from_utf8_lossy(&replies), expected, "{outcome:?} {late}");
            assert!(!is_closed);
        }
    }
}

/// A route on which every request has the same outcome. If `late`, the outcome arrives when the
/// request is complete, and otherwise immediately.
struct FixedOutcome {
    inner: Box<dyn Route>,
    outcome: ForwardOutcome,
    late: bool,
    is_complete: bool,
}

impl Route for FixedOutcome {
    fn pass(&mut self, _: &[u8], more: bool, waker: &Waker) -> ForwardId {
        self.is_complete = !more;
        waker.wake_by_ref();
        ForwardId(0)
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        let _ = self.pass(bytes, more, waker);
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        self.inner.has_room(waker)
    }

    fn take(&mut self, _: ForwardId, _: &mut Vec<u8>) -> ForwardOutcome {
        if self.late && !self.is_complete { ForwardOutcome::Pending } else { self.outcome }
    }

    fn resume(&mut self) {}

    fn forget(&mut self) {}
}

/// Checks that the next leader answers the rest of a request for many keys if this server loses the
/// leadership after it has answered some of the keys.
fn a_partly_answered_request_continues_at_the_next_leader(engine: TestEngine) {
    let keys = " k".repeat(8);
    let serves_reads = [false, true];
    let requests = ["mget", "get", "gat 0"].into_iter();
    for (request, serves_reads) in requests.flat_map(|request| serves_reads.map(|is| (request, is)))
    {
        let request = format!("{request}{keys}\r\n");
        let is_resp = request.starts_with('m');
        let session = || if is_resp { Session::resp(0, false) } else { Session::new() };
        let (mut server, leader) = follower(engine, &[], usize::MAX);
        let open = server.host.leader.take();
        leader.lock().unwrap().replies_to(&set("k", &pattern(3000)));
        server.replies_to(&set("k", &pattern(3000)));
        let direct = TestClient { session: session(), ..TestClient::new() };
        let stream = [request.as_bytes(), if is_resp { b"ping\r\n" } else { b"mn\r\n" }].concat();
        let (expected, _) = {
            let mut alone = new_server(engine);
            alone.replies_to(&set("k", &pattern(3000)));
            Delivery::at_once().run_in(alone, direct, &stream)
        };
        server.settings.output_max = 4000;
        let mut client = TestClient { session: session(), ..TestClient::new() };
        client.unread = stream;
        let progress = client.poll(&mut server);
        assert_eq!(progress.next, larder_session::Next::Write);
        client.received.append(&mut client.unsent);
        assert!(client.received.len() > 3000, "{}", client.received.len());
        // Another node becomes leader.
        server.host.leader = open;
        server.host.serves_reads = serves_reads;
        client.send(&mut server, b"");
        assert_eq!(text(&client.received), text(&expected), "{request} {serves_reads}");
        assert!(!client.is_closed);
    }
}
