//! Tests sessions that send requests to several groups. For all requests, and however the input is
//! split, the replies equal those of one server with all items.

use super::leader::{is_of_one_server, member, shows_cas};
use crate::common::{TestClient, TestEngine, new_server, pattern, set, store, text};
use crate::splits::{Delivery, SAMPLER, any_delivery, any_stream, check, garbled_stream};
use larder_session::{
    AnsweredPart, ForwardId, ForwardOutcome, GroupIndex, GroupMap, Route, Session,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

for_each_engine! { many_groups_reply_like_one_server malformed_requests_are_answered_in_order_by_many_groups requests_follow_moved_keys
resp_commands_are_scattered random_resp_commands_are_scattered a_command_on_keys_of_two_groups_is_refused a_transaction_ends_within_a_batch a_multi_key_command_fails_with_one_of_its_parts a_lookup_shows_no_later_change_of_its_pipeline a_connection_closes_after_the_changes_of_all_groups a_part_with_a_result_is_not_sent_again a_request_that_is_sent_again_does_not_pass_a_flush a_replica_answers_no_lookup_behind_a_change_of_its_transaction an_error_ends_the_reply_to_a_line_of_keys requests_for_a_group_without_a_leader_get_errors
only_the_owner_answers_forwarded_requests }

/// A shard map that assigns keys to groups by their last byte.
struct ByLastByte {
    groups: u16,
    /// The number of calls to `version`; stays 0 unless `is_moving`.
    moves: Cell<u64>,
    is_moving: bool,
}

impl GroupMap for ByLastByte {
    fn group_of(&self, key: &[u8]) -> GroupIndex {
        GroupIndex(u16::from(key.last().copied().unwrap_or_default()) % self.groups)
    }

    fn groups(&self) -> Vec<GroupIndex> {
        (0..self.groups).map(GroupIndex).collect()
    }

    fn version(&self) -> u64 {
        // The version changes on every third call.
        if self.is_moving {
            self.moves.set(self.moves.get() + 1);
        }
        self.moves.get() / 3
    }
}

pub(super) fn by_last_byte(groups: u16) -> Option<Box<dyn GroupMap + Send>> {
    Some(Box::new(ByLastByte { groups, moves: Cell::new(0), is_moving: groups % 2 == 1 }))
}

/// Checks that the replies of `groups` groups equal those of one server. If `leads`, this server
/// leads one of the groups.
fn same(
    engine: TestEngine,
    stream: &[u8],
    delivery: &Delivery,
    outcomes: &[ForwardOutcome],
    (groups, leads, part_len): (u16, bool, usize),
) -> Result<(), TestCaseError> {
    if is_of_one_server(stream) {
        return Ok(());
    }
    let direct = Delivery::at_once().run(engine, stream);
    let shows_cas = shows_cas(stream);
    if shows_cas && leads && groups > 1 {
        return Ok(());
    }
    // Each group has its own CAS values. If replies contain CAS values, a single server leads all
    // groups.
    let (mut server, _) = member(engine, groups.into(), shows_cas, outcomes, part_len);
    server.host.leads = leads;
    server.host.shard_map = by_last_byte(groups);
    let scattered = delivery.run_in(server, TestClient::new(), stream);
    prop_assert_eq!(
        text(&scattered.0),
        text(&direct.0),
        "{:?} {:?} {}",
        delivery,
        outcomes,
        groups
    );
    prop_assert_eq!(scattered.1, direct.1);
    Ok(())
}

fn many_groups_reply_like_one_server(engine: TestEngine) {
    for (pieces, part_len) in [(vec![usize::MAX], usize::MAX), (vec![1], 1), (vec![7, 40], 3)] {
        let delivery = Delivery { pieces, ..Delivery::at_once() };
        for leads in [false, true] {
            same(engine, SAMPLER, &delivery, &[], (3, leads, part_len)).unwrap();
        }
    }
    let parts = prop_oneof![1..100_usize, Just(usize::MAX), Just(100_000)];
    let shape = (1..5_u16, any::<bool>(), parts);
    check(200, (any_stream(200_000), any_delivery(), shape), |(stream, delivery, shape)| {
        same(engine, &stream.0, &delivery, &[], shape)
    });
}

fn malformed_requests_are_answered_in_order_by_many_groups(engine: TestEngine) {
    let shape = (1..5_u16, any::<bool>(), Just(usize::MAX));
    check(200, (garbled_stream(1000), any_delivery(), shape), |(stream, delivery, shape)| {
        same(engine, &stream.0, &delivery, &[], shape)
    });
}

/// Sessions send a request again to the new owner of its key.
fn requests_follow_moved_keys(engine: TestEngine) {
    let outcomes = prop::collection::vec(
        prop_oneof![Just(ForwardOutcome::Done), Just(ForwardOutcome::Retry)],
        0..40,
    );
    let shape = (1..5_u16, any::<bool>(), Just(usize::MAX));
    let all = (any_stream(1000), any_delivery(), outcomes, shape);
    check(200, all, |(stream, delivery, outcomes, shape)| {
        same(engine, &stream.0, &delivery, &outcomes, shape)
    });
}

/// The session splits multi-key commands among the owners of their keys.
fn resp_commands_are_scattered(engine: TestEngine) {
    // `a`, `d` and `g` belong to one group; `b` and `c` each belong to another group.
    let stream = b"set a 5\r\nset b 6\r\nset c 7\r\nget a\r\nget b\r\nget c\r\nincr a\r\nping\r\n\
        mget a d g a\r\nmset a 1 d 2 g 3\r\nmget g d a\r\ndel a d\r\nexists a d g g\r\n\
        hello 3\r\nget none\r\nset b 1\r\nmulti\r\nincr b\r\necho hi\r\nget c\r\nexec\r\n\
        *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nsetx\r\nget\r\n\
        mset a 1 b 2 c 3 d 4 e 5 a 6\r\nmget a b c d e f a b\r\nexists a b c x a\r\ntouch a b x\r\n\
        del a b x c\r\nmget a b\r\nmulti\r\nmset a 1 b 2\r\nmget b a\r\nunlink a b c\r\nexec\r\nmset a\r\nmset a 1 b\r\n\
        touch a d g\r\nunlink b\r\nset b 5\r\nset c 5\r\n\
        evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 b 6\r\n\
        evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 b 5\r\nget b\r\n\
        multi\r\nevalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 c 5\r\nget c\r\nexec\r\n\
        set d 1\r\nset e 2\r\nflushall\r\nget d\r\nget e\r\nquit\r\n";
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let direct = Delivery::at_once().run_in(new_server(engine), client(), stream);
    assert!(direct.0.len() > 200 && direct.1, "{}", text(&direct.0));
    for (pieces, part_len) in [(vec![usize::MAX], usize::MAX), (vec![1], 1), (vec![3, 50], 2)] {
        for (outcomes, leads) in [(0, false), (0, true), (8, false), (8, true)] {
            let (mut server, _) =
                member(engine, 3, false, &vec![ForwardOutcome::Retry; outcomes], part_len);
            server.host.leads = leads;
            server.host.shard_map = by_last_byte(3);
            let delivery = Delivery { pieces: pieces.clone(), ..Delivery::at_once() };
            let scattered = delivery.run_in(server, client(), stream);
            assert_eq!(
                text(&scattered.0),
                text(&direct.0),
                "{pieces:?} {part_len} {outcomes} {leads}"
            );
        }
    }
}

fn any_redis_command() -> impl Strategy<Value = Vec<u8>> {
    let key = || {
        let short = prop::sample::select(&b"abcdefgh"[..]).prop_map(|byte| vec![byte]);
        prop_oneof![20 => short, 1 => Just(vec![b'k'; 1025]), 1 => Just(Vec::new())]
    };
    let value = prop_oneof![
        (0..40_usize).prop_map(pattern),
        (0..99_u32).prop_map(|number| number.to_string().into_bytes()),
        (20_000..30_000_usize).prop_map(pattern),
    ];
    let names = prop::sample::select(&["MGET", "DEL", "EXISTS", "TOUCH", "UNLINK"][..]);
    let of_keys = (names, prop::collection::vec(key(), 1..90))
        .prop_map(|(name, keys)| [vec![name.as_bytes().to_vec()], keys].concat());
    let pairs = prop::collection::vec((key(), value), 1..40);
    let of_pairs = (prop::sample::select(&["MSET", "SET"][..]), pairs).prop_map(|(name, pairs)| {
        let count = if name == "SET" { 1 } else { pairs.len() };
        let pairs = pairs.into_iter().take(count).flat_map(|(key, value)| [key, value]);
        std::iter::once(name.as_bytes().to_vec()).chain(pairs).collect()
    });
    let names = prop::sample::select(&["GET", "INCR", "PING", "MSET", "MULTI", "EXEC"][..]);
    let other = (names, key()).prop_map(|(name, key)| {
        let has_key = !["PING", "MULTI", "EXEC"].contains(&name);
        let words = std::iter::once(name.as_bytes().to_vec());
        words.chain(has_key.then_some(key)).collect::<Vec<_>>()
    });
    // Both keys end in the same byte, so one group owns both.
    let names = prop::sample::select(&["RENAME", "RENAMENX", "COPY", "MSETNX"][..]);
    let of_one_group = (names, key(), key()).prop_map(|(name, key, other)| {
        let other = [&other[..], key.last().map_or(&[][..], std::slice::from_ref)].concat();
        let mut words = vec![name.as_bytes().to_vec(), key, other];
        if name == "MSETNX" {
            words.insert(2, b"1".to_vec());
            words.push(b"2".to_vec());
        }
        words
    });
    prop_oneof![4 => of_keys, 2 => of_pairs, 1 => of_one_group, 3 => other].prop_map(
        |words: Vec<Vec<u8>>| {
            let mut out = Vec::new();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            larder_protocol::encode::resp::command(&words, &mut out);
            out
        },
    )
}

/// Tests random commands, with several numbers of groups, and with keys that move between requests.
fn random_resp_commands_are_scattered(engine: TestEngine) {
    let outcomes = prop::collection::vec(
        prop_oneof![Just(ForwardOutcome::Done), Just(ForwardOutcome::Retry)],
        0..40,
    );
    let commands = prop::collection::vec(any_redis_command(), 1..12);
    let parts = prop_oneof![1..100_usize, Just(usize::MAX)];
    let all = (commands, any_delivery(), outcomes, (1..5_u16, any::<bool>(), parts));
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    check(300, all, |(commands, delivery, outcomes, (groups, leads, part_len))| {
        let stream = commands.concat();
        let direct = Delivery::at_once().run_in(new_server(engine), client(), &stream);
        let (mut server, _) = member(engine, groups.into(), false, &outcomes, part_len);
        server.host.leads = leads;
        server.host.shard_map = by_last_byte(groups);
        let scattered = delivery.run_in(server, client(), &stream);
        prop_assert_eq!(text(&scattered.0), text(&direct.0), "{:?} {:?}", delivery, outcomes);
        prop_assert_eq!(scattered.1, direct.1);
        Ok(())
    });
}

/// Checks that a command that cannot be split is refused if two groups own its keys.
fn a_command_on_keys_of_two_groups_is_refused(engine: TestEngine) {
    let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
    server.host.shard_map = by_last_byte(2);
    let client = TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let stream = b"set a 1\r\nrename a b\r\ncopy a b\r\nmsetnx b 1 c 2\r\nmget a b c\r\nrename a c\r\nget c\r\n";
    let (replies, _) = Delivery::at_once().run_in(server, client, stream);
    let refused = "-CROSSSLOT Keys in request don't hash to the same slot\r\n".repeat(3);
    let expected = format!("+OK\r\n{refused}*3\r\n$1\r\n1\r\n$-1\r\n$-1\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(String::from_utf8_lossy(&replies), expected);
}

/// Checks requests that follow a transaction in the same batch: the owners of their keys must
/// answer them.
fn a_transaction_ends_within_a_batch(engine: TestEngine) {
    let command = |words: &[&[u8]]| {
        let mut out = Vec::new();
        larder_protocol::encode::resp::command(words, &mut out);
        out
    };
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let multi = command(&[b"SET", b"a", b"5"]).into_iter().chain(command(&[b"MULTI"]));
    let stream: Vec<u8> = multi
        .chain([command(&[b"MSET", b"a"]), command(&[b"EXEC"]), command(&[b"GET", b"a"])].concat())
        .chain([command(&[b"MULTI"]), command(&[b"INCR", b"a"]), command(&[b"DISCARD"])].concat())
        .chain([command(&[b"INCR", b"a"]), command(&[b"GET", b"a"])].concat())
        .collect();
    let direct = Delivery::at_once().run_in(new_server(engine), client(), &stream);
    for piece in 1..=stream.len() {
        let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
        server.host.shard_map = by_last_byte(2);
        let delivery = Delivery { pieces: vec![piece], ..Delivery::at_once() };
        let scattered = delivery.run_in(server, client(), &stream);
        assert_eq!(text(&scattered.0), text(&direct.0), "{piece}");
    }
}

/// Checks that a multi-key command fails if the connection to the owner of some keys is lost, or if
/// their group has no leader.
fn a_multi_key_command_fails_with_one_of_its_parts(engine: TestEngine) {
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let no_leader = "-MASTERDOWN this group of servers has no leader\r\n";
    let nothing = String::new;
    let found = || "*3\r\n$-1\r\n$-1\r\n$-1\r\n+PONG\r\n".to_owned();
    for (request, outcome, replies, is_closed) in [
        ("mget a b c", ForwardOutcome::ConnectionLost, found(), false),
        ("exists a b c", ForwardOutcome::ConnectionLost, ":0\r\n+PONG\r\n".to_owned(), false),
        ("del a b c", ForwardOutcome::ConnectionLost, nothing(), true),
        ("mset a 1 b 2 c 3", ForwardOutcome::ConnectionLost, nothing(), true),
        // The session has already written a part of the array. An error within the array would look
        // like a value, so the session closes the connection.
        ("mget a b c", ForwardOutcome::NoLeader, "*3\r\n$-1\r\n".to_owned(), true),
        ("exists a b c", ForwardOutcome::NoLeader, format!("{no_leader}+PONG\r\n"), false),
        ("del a b c", ForwardOutcome::NoLeader, format!("{no_leader}+PONG\r\n"), false),
        ("mset a 1 b 2 c 3", ForwardOutcome::NoLeader, format!("{no_leader}+PONG\r\n"), false),
    ] {
        let (mut server, _) =
            member(engine, 3, false, &[ForwardOutcome::Done, outcome], usize::MAX);
        server.host.shard_map = by_last_byte(3);
        let stream = format!("{request}\r\nping\r\n");
        let answered = Delivery::at_once().run_in(server, client(), stream.as_bytes());
        let expected = (text(replies.as_bytes()), is_closed);
        assert_eq!((text(&answered.0), answered.1), expected, "{request} {outcome:?}");
    }
}

/// Checks that a lookup whose connection was lost is not repeated if a change followed it on the
/// same connection. The leader may have executed the change, which the repeated lookup would show.
fn a_lookup_shows_no_later_change_of_its_pipeline(engine: TestEngine) {
    use ForwardOutcome::{ConnectionLost, Done};
    for (stream, outcomes, replies, is_closed) in [
        ("get a\r\nincr a 1\r\n", vec![ConnectionLost, ConnectionLost], "", true),
        (
            "get b\r\nget a\r\nincr a 1\r\n",
            vec![Done, ConnectionLost, ConnectionLost],
            "END\r\n",
            true,
        ),
        // The change goes to another group.
        ("get a\r\nincr b 1\r\n", vec![ConnectionLost], "END\r\nNOT_FOUND\r\n", false),
        ("get a\r\nget a\r\n", vec![ConnectionLost, ConnectionLost], "END\r\nEND\r\n", false),
    ] {
        let (mut server, _) = member(engine, 2, false, &outcomes, usize::MAX);
        server.host.shard_map = by_last_byte(2);
        let answered = Delivery::at_once().run_in(server, TestClient::new(), stream.as_bytes());
        let expected = (text(replies.as_bytes()), is_closed);
        assert_eq!((text(&answered.0), answered.1), expected, "{stream}");
    }
}

/// Checks that the session closes the connection only after the changes at other groups have
/// results. The client treats all changes without a reply as failed when the connection closes.
fn a_connection_closes_after_the_changes_of_all_groups(engine: TestEngine) {
    let outcomes = [ForwardOutcome::ConnectionLost];
    let (mut server, leaders) = member(engine, 2, false, &outcomes, usize::MAX);
    server.host.shard_map = by_last_byte(2);
    let stream = [&b"incr a 1\r\n"[..], &set("b", b"5"), b"get d\r\n"].concat();
    let answered = Delivery::at_once().run_in(server, TestClient::new(), &stream);
    assert_eq!((text(&answered.0), answered.1), (text(b""), true));
    // The test's leader executes requests only when the session takes their replies.
    let found = leaders[0].lock().unwrap().replies_to(b"get b\r\n");
    assert_eq!(text(&found), text(b"VALUE b 0 1\r\n5\r\nEND\r\n"));
    // The reply to a lookup before the change arrives in parts.
    let outcomes = [ForwardOutcome::ConnectionLost];
    let (mut server, leaders) = member(engine, 2, false, &outcomes, 10);
    server.host.shard_map = by_last_byte(2);
    leaders[0].lock().unwrap().replies_to(&set("d", &pattern(100)));
    let stream = [&b"incr a 1\r\nget d\r\n"[..], &set("b", b"6")].concat();
    let answered = Delivery::at_once().run_in(server, TestClient::new(), &stream);
    assert_eq!((text(&answered.0), answered.1), (text(b""), true));
    let stored = leaders[0].lock().unwrap().replies_to(b"get b\r\n");
    assert_eq!(text(&stored), text(b"VALUE b 0 1\r\n6\r\nEND\r\n"));
}

/// Checks that the session does not send a part again if the result of the part has arrived. In
/// this test, an earlier part moves to the same group after this part was sent, and has to be sent
/// once more.
fn a_part_with_a_result_is_not_sent_again(engine: TestEngine) {
    /// A shard map in which all keys move to group 0.
    struct Moving(Arc<AtomicBool>);
    impl GroupMap for Moving {
        fn group_of(&self, key: &[u8]) -> GroupIndex {
            GroupIndex(u16::from(key == b"a" && !self.0.load(Ordering::Relaxed)))
        }
        fn groups(&self) -> Vec<GroupIndex> {
            vec![GroupIndex(0), GroupIndex(1)]
        }
        fn version(&self) -> u64 {
            self.0.load(Ordering::Relaxed).into()
        }
    }
    /// A route to a group. The first request to group 1 and the second request to group 0 must be
    /// sent again.
    struct Scripted {
        group: GroupIndex,
        has_moved: Arc<AtomicBool>,
        first: ForwardOutcome,
        passes: u64,
        requests: Arc<Mutex<Vec<u8>>>,
    }
    impl Route for Scripted {
        fn pass(&mut self, bytes: &[u8], _: bool, _: &Waker) -> ForwardId {
            self.requests.lock().unwrap().extend_from_slice(bytes);
            self.passes += 1;
            assert!(self.passes <= 3, "no request is sent again twice");
            ForwardId(self.passes)
        }
        fn pass_rest(&mut self, _: &[u8], _: bool, _: &Waker) {}
        fn has_room(&mut self, _: &Waker) -> bool {
            true
        }
        fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
            let (reply, outcome) = match (self.group, of.0) {
                (GroupIndex::OWN, 1) => ("7\r\n", self.first),
                (GroupIndex::OWN, 3) => ("6\r\n", ForwardOutcome::Done),
                _ => ("", ForwardOutcome::Retry),
            };
            into.extend_from_slice(reply.as_bytes());
            self.has_moved.fetch_or(self.group != GroupIndex::OWN, Ordering::Relaxed);
            outcome
        }
        fn resume(&mut self) {}
        fn forget(&mut self) {}
    }
    let rest = ForwardOutcome::RetryRest(AnsweredPart { len: 0, keys: 1, found: 0 });
    for (first, replies, is_closed) in [
        (ForwardOutcome::Done, "6\r\n7\r\n", false),
        (ForwardOutcome::Close, "6\r\n", true),
        (rest, "6\r\n", true),
    ] {
        let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
        let (has_moved, requests) = (Arc::new(AtomicBool::new(false)), Arc::default());
        server.host.shard_map = Some(Box::new(Moving(Arc::clone(&has_moved))));
        let of_routes = Arc::clone(&requests);
        server.host.leader = Some(Box::new(move |group, _| {
            let (has_moved, requests) = (Arc::clone(&has_moved), Arc::clone(&of_routes));
            Box::new(Scripted { group, has_moved, first, passes: 0, requests })
        }));
        let stream = b"incr a 1\r\nincr b 1\r\n";
        let answered = Delivery::at_once().run_in(server, TestClient::new(), stream);
        assert_eq!((text(&answered.0), answered.1), (text(replies.as_bytes()), is_closed));
        let requests = text(&requests.lock().unwrap());
        assert_eq!(requests, text(&[&stream[..], b"incr a 1\r\nincr a 1\r\n"].concat()));
    }
}

/// Checks that a flush is sent only after the replies to all earlier requests, and later requests
/// only after the replies to the flush. Otherwise, when a key moves, the session could send a
/// change again after a later flush, or a flush again after a later change.
fn a_request_that_is_sent_again_does_not_pass_a_flush(engine: TestEngine) {
    /// A route to a group. The group refuses its first request and its first flush.
    #[derive(Default)]
    struct Refusing {
        requests: Vec<(Vec<u8>, bool)>,
        has_refused: [bool; 2],
        sent: Arc<Mutex<Vec<&'static str>>>,
    }
    impl Route for Refusing {
        fn pass(&mut self, bytes: &[u8], _: bool, _: &Waker) -> ForwardId {
            let name = String::from_utf8_lossy(bytes).to_lowercase();
            let is_flush = name.contains("flush");
            let refuses = !std::mem::replace(&mut self.has_refused[usize::from(is_flush)], true);
            self.sent.lock().unwrap().push(if is_flush { "flush" } else { "set" });
            self.requests.push((bytes.to_vec(), refuses));
            ForwardId(self.requests.len() as u64)
        }
        fn pass_rest(&mut self, _: &[u8], _: bool, _: &Waker) {}
        fn has_room(&mut self, _: &Waker) -> bool {
            true
        }
        fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
            let (bytes, refuses) = &self.requests[usize::try_from(of.0).unwrap() - 1];
            if *refuses {
                return ForwardOutcome::Retry;
            }
            into.extend_from_slice(match bytes.first() {
                Some(b's') => b"STORED\r\n",
                Some(b'f') => b"OK\r\n",
                _ => b"+OK\r\n",
            });
            ForwardOutcome::Done
        }
        fn resume(&mut self) {}
        fn forget(&mut self) {}
    }
    let of_redis = |words: &[&[u8]]| {
        let mut out = Vec::new();
        larder_protocol::encode::resp::command(words, &mut out);
        out
    };
    let memcached = [set("a", b"1"), b"flush_all\r\n".to_vec(), set("c", b"1")].concat();
    let redis = [
        of_redis(&[b"SET", b"a", b"1"]),
        of_redis(&[b"FLUSHALL"]),
        of_redis(&[b"SET", b"c", b"1"]),
    ]
    .concat();
    let resp = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    for (client, stream, replies) in [
        (TestClient::new(), memcached, "STORED\r\nOK\r\nSTORED\r\n"),
        (resp(), redis, "+OK\r\n+OK\r\n+OK\r\n"),
    ] {
        let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
        server.host.shard_map = by_last_byte(2);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let of_routes = Arc::clone(&sent);
        server.host.leader = Some(Box::new(move |_, _| {
            Box::new(Refusing { sent: Arc::clone(&of_routes), ..Refusing::default() })
        }));
        let answered = Delivery::at_once().run_in(server, client, &stream);
        assert_eq!((text(&answered.0), answered.1), (text(replies.as_bytes()), false));
        // Both groups refuse the first flush.
        let expected = [&["set"; 2][..], &["flush"; 4], &["set"]].concat();
        assert_eq!(*sent.lock().unwrap(), expected);
    }
}

/// Checks that a replica forwards a lookup after a change of its transaction, even if a flush
/// divides the transaction into several batches.
fn a_replica_answers_no_lookup_behind_a_change_of_its_transaction(engine: TestEngine) {
    let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
    server.host.leads = true;
    assert_eq!(text(&server.replies_to(&set("b", b"old"))), text(b"STORED\r\n"));
    (server.host.leads, server.host.serves_reads) = (false, true);
    server.host.shard_map = by_last_byte(2);
    let client = TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let stream = b"*2\r\n$3\r\nGET\r\n$1\r\nb\r\nmulti\r\nset d 1\r\nflushall\r\nget b\r\nexec\r\n";
    let (replies, _) = Delivery::at_once().run_in(server, client, stream);
    let queued = "+QUEUED\r\n".repeat(3);
    let expected = format!("$3\r\nold\r\n+OK\r\n{queued}*3\r\n+OK\r\n+OK\r\n$-1\r\n");
    assert_eq!(String::from_utf8_lossy(&replies), expected);
}

/// Checks that the reply to a line of keys ends with an error if the group of some keys has no
/// leader. Clients treat this error as the end of the reply.
fn an_error_ends_the_reply_to_a_line_of_keys(engine: TestEngine) {
    let (mut server, leaders) =
        member(engine, 2, false, &[ForwardOutcome::Done, ForwardOutcome::NoLeader], usize::MAX);
    server.host.shard_map = by_last_byte(2);
    leaders[1].lock().unwrap().replies_to(&set("a", b"5"));
    let keys = " a".repeat(60);
    let stream = format!("get a b{keys}\r\nversion\r\nget a\r\nget b\r\n");
    let (replies, is_closed) =
        Delivery::at_once().run_in(server, TestClient::new(), stream.as_bytes());
    let expected = "VALUE a 0 1\r\n5\r\nSERVER_ERROR no leader\r\nVERSION 1.6.45\r\nVALUE a 0 1\r\n5\r\nEND\r\n\
         END\r\n";
    assert_eq!(String::from_utf8_lossy(&replies), expected);
    assert!(!is_closed);
}

fn requests_for_a_group_without_a_leader_get_errors(engine: TestEngine) {
    let (mut server, _) = member(engine, 2, false, &[ForwardOutcome::NoLeader; 20], usize::MAX);
    server.host.leads = true;
    server.host.shard_map = by_last_byte(2);
    // `a` belongs to the other group, `b` to this server.
    let stream = [
        &b"set b 0 0 1\r\n5\r\nset a 0 0 1\r\n5\r\nget b\r\nget a\r\nmg a v\r\nget b a b\r\nmn\r\n"
            [..],
        &store("set a 0 0 250000", &pattern(250_000)),
        b"flush_all\r\ntouch a 0\r\nversion\r\n",
    ]
    .concat();
    let (replies, is_closed) = Delivery::at_once().run_in(server, TestClient::new(), &stream);
    let no = "SERVER_ERROR no leader\r\n";
    let b = "VALUE b 0 1\r\n5\r\n";
    let expected =
        format!("STORED\r\n{no}{b}END\r\n{no}{no}{b}{no}MN\r\n{no}{no}{no}VERSION 1.6.45\r\n");
    assert_eq!(String::from_utf8_lossy(&replies), expected);
    assert!(!is_closed);
}

/// A server does not execute forwarded requests for keys of another group.
fn only_the_owner_answers_forwarded_requests(engine: TestEngine) {
    for (request, is_own) in [("set b 0 0 1\r\n5\r\n", true), ("set a 0 0 1\r\n5\r\n", false)] {
        let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
        server.host.leads = true;
        server.host.shard_map = by_last_byte(2);
        let session = Session::forwarded(larder_session::Conversation::Memcached, None);
        let mut client = TestClient { session, ..TestClient::new() };
        client.send(&mut server, request.as_bytes());
        assert_eq!(client.is_closed, !is_own);
        assert_eq!(text(&client.received), if is_own { "STORED\\r\\n" } else { "" });
    }
}
