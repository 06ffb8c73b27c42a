//! Tests changes of the leader while sessions answer and forward requests. Regardless of the time
//! of the change, the replies equal those of one server, and each request is executed once.

use super::leader::{Shared, follower, is_of_one_server, member, share_items, shows_cas};
use crate::common::{TestClient, TestEngine, new_server, pattern, set, store, text};
use crate::splits::{Delivery, any_delivery, any_stream, check};
use larder_session::{
    AnsweredPart, Conversation, ForwardId, ForwardOutcome, GroupIndex, GroupMap, Host, Next, Route,
    Session,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

for_each_engine! { replies_do_not_depend_on_the_time_of_a_move resp_replies_do_not_depend_on_the_time_of_a_move
a_long_value_reaches_the_next_leader a_value_that_a_leader_receives_reaches_the_next_leader
a_value_that_moves_twice_is_stored a_former_follower_stores_the_sent_bytes_itself a_part_of_a_request_closes_the_connection
a_command_that_one_server_has_to_finish_is_not_repeated }

/// The number of polls of the leader's session before each move.
type Moves = Arc<Mutex<VecDeque<usize>>>;

/// A route to a leader in this process. The leader loses its leadership and immediately leads
/// again, with the same items, so a request that is executed twice changes the replies.
struct MovingLeader {
    server: Shared,
    conversation: Conversation,
    session: Session<larder_store::erased::Handle>,
    moves: Moves,
    polls: usize,
    batches: VecDeque<Batch>,
    next: u64,
    /// The number of calls to [`Route::has_room`].
    room_checks: usize,
    /// Whether the last call to [`Route::has_room`] returned true, and the session has sent no
    /// piece since.
    has_room: bool,
}

/// The maximum length of a piece that a session passes to a route, in bytes.
const PIECE_LEN: usize = 64 << 10;

struct Batch {
    id: ForwardId,
    unread: Vec<u8>,
    is_complete: bool,
    consumed: usize,
    answer: Vec<u8>,
    outcome: Option<ForwardOutcome>,
}

impl MovingLeader {
    fn new(server: &Shared, conversation: Conversation, moves: &Moves) -> Self {
        let mut leader = Self {
            server: Arc::clone(server),
            conversation,
            session: Session::forwarded(conversation, None),
            moves: Arc::clone(moves),
            polls: 0,
            batches: VecDeque::new(),
            next: 0,
            room_checks: 0,
            has_room: false,
        };
        leader.polls = leader.next_move();
        leader
    }

    fn next_move(&self) -> usize {
        self.moves.lock().unwrap().pop_front().unwrap_or(usize::MAX)
    }

    /// Executes the requests that have arrived.
    fn drive(&mut self) {
        let at = self.batches.iter().position(|batch| batch.outcome.is_none());
        let Some(at) = at else { return };
        let server = &mut *self.server.lock().unwrap();
        loop {
            server.host.leads = self.polls > 0;
            self.polls = self.polls.saturating_sub(1);
            let batch = &mut self.batches[at];
            let mut output = Vec::new();
            let progress = server.poll(&mut self.session, &batch.unread, &mut output);
            batch.answer.append(&mut output);
            batch.unread.drain(..progress.consumed);
            batch.consumed += progress.consumed;
            let waits = progress.hold || progress.next == Next::Wait;
            if waits {
                server.complete.as_ref().expect("only slower storage and replicas wait")();
            }
            batch.outcome = match progress.next {
                _ if waits => None,
                Next::Yield | Next::Write | Next::Wait => None,
                Next::Read { .. } if batch.is_complete => Some(ForwardOutcome::Done),
                Next::Read { .. } => return,
                Next::Close => Some(ForwardOutcome::Close),
                Next::Abandon => panic!("no change waits for acknowledgements"),
                Next::NotOwner => {
                    let part = self.session.answered_part(batch.consumed);
                    let outcome = match part {
                        None => ForwardOutcome::Close,
                        Some(part) if part == AnsweredPart::default() => ForwardOutcome::Retry,
                        Some(part) => ForwardOutcome::RetryRest(part),
                    };
                    batch.outcome = Some(outcome);
                    let later = self.batches.iter_mut().skip(at + 1);
                    later.for_each(|batch| batch.outcome = Some(ForwardOutcome::Retry));
                    self.session.close(&server.host);
                    self.session = Session::forwarded(self.conversation, None);
                    self.polls = self.next_move();
                    return;
                }
            };
            if self.batches[at].outcome.is_some() {
                return;
            }
        }
    }
}

impl Route for MovingLeader {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId {
        assert!(!more || std::mem::take(&mut self.has_room) && bytes.len() <= PIECE_LEN);
        let id = ForwardId(self.next);
        self.next += 1;
        let has_moved = self.batches.iter().any(|batch| {
            matches!(batch.outcome, Some(ForwardOutcome::Retry | ForwardOutcome::RetryRest(_)))
        });
        self.batches.push_back(Batch {
            id,
            unread: bytes.to_vec(),
            is_complete: !more,
            consumed: 0,
            answer: Vec::new(),
            outcome: has_moved.then_some(ForwardOutcome::Retry),
        });
        waker.wake_by_ref();
        id
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, _: &Waker) {
        assert!(std::mem::take(&mut self.has_room) && bytes.len() <= PIECE_LEN);
        let last = self.batches.back_mut().expect("a request was passed");
        assert!(!last.is_complete, "the request is incomplete");
        last.unread.extend_from_slice(bytes);
        last.is_complete = !more;
    }

    fn has_room(&mut self, _: &Waker) -> bool {
        self.room_checks += 1;
        self.has_room = !self.room_checks.is_multiple_of(3);
        self.has_room
    }

    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
        self.drive();
        let at = self.batches.iter().position(|batch| batch.id == of).expect("it was passed");
        let Some(outcome) = self.batches[at].outcome else { return ForwardOutcome::Pending };
        let batch = self.batches.remove(at).unwrap();
        into.extend(batch.answer);
        outcome
    }

    fn resume(&mut self) {}

    fn forget(&mut self) {
        self.batches.clear();
    }
}

/// A shard map that assigns all keys to other groups after each move of a leader.
struct MovingKeys {
    moves: Moves,
    groups: u64,
}

impl GroupMap for MovingKeys {
    fn group_of(&self, key: &[u8]) -> GroupIndex {
        let number = u64::from(key.last().copied().unwrap_or_default()) + self.version() % 1000;
        GroupIndex(u16::try_from(number % self.groups).unwrap())
    }

    fn groups(&self) -> Vec<GroupIndex> {
        (0..self.groups).map(|group| GroupIndex(u16::try_from(group).unwrap())).collect()
    }

    fn version(&self) -> u64 {
        u64::MAX - self.moves.lock().unwrap().len() as u64
    }
}

/// Returns the replies of a forwarding server whose leaders change, and whether the server closed
/// the connection. The leaders of all groups share their items.
fn forwarded(
    engine: TestEngine,
    stream: &[u8],
    client: TestClient,
    delivery: &Delivery,
    (groups, moves): (u64, &[usize]),
) -> (Vec<u8>, bool) {
    let (mut server, leader) = follower(engine, &[], usize::MAX);
    {
        let leader = &mut *leader.lock().unwrap();
        leader.settings.forwards = true;
        leader.settings.requests_per_poll = 2;
        leader.settings.output_max = 2000;
        leader.host.leader = Some(Box::new(|_, _| panic!("a leader forwards nothing")));
    }
    let moves: Moves = Arc::new(Mutex::new(moves.iter().copied().collect()));
    if groups > 1 {
        server.host.shard_map = Some(Box::new(MovingKeys { moves: Arc::clone(&moves), groups }));
    }
    server.host.leader = Some(Box::new(move |_, conversation| {
        Box::new(MovingLeader::new(&leader, conversation, &moves))
    }));
    delivery.run_in(server, client, stream)
}

fn replies_do_not_depend_on_the_time_of_a_move(engine: TestEngine) {
    let lines = [
        set("a", &pattern(1500)),
        set("b", &pattern(1800)),
        b"get a b c a b\r\ngat 0 a b a\r\nincr n 1\r\nset n 0 0 1\r\n5\r\nincr n 1\r\n".to_vec(),
        store("append a 0 0 4", b"more"),
        b"get a b\r\nincr n 1\r\nget n\r\ndelete a\r\ndelete a\r\nmn\r\n".to_vec(),
        store("set long 0 0 100000", &pattern(100_000)),
        b"incr n 1\r\nget long n\r\n".to_vec(),
    ];
    let stream = lines.concat();
    let direct = Delivery::at_once().run(engine, &stream);
    for (polls, groups) in (0..40).flat_map(|polls| [(polls, 1), (polls, 2), (polls, 3)]) {
        for pieces in [vec![usize::MAX], vec![70_000], vec![3000, 7]] {
            let delivery = Delivery { pieces, ..Delivery::at_once() };
            let moves = [polls, 3, 1, polls / 2];
            let moves = (groups, &moves[..]);
            let moved = forwarded(engine, &stream, TestClient::new(), &delivery, moves);
            assert_eq!(text(&moved.0), text(&direct.0), "{delivery:?} {moves:?}");
            assert_eq!(moved.1, direct.1);
        }
    }
    let moves = (1..4_u64, prop::collection::vec(0..12_usize, 0..20));
    check(300, (any_stream(100_000), any_delivery(), moves), |(stream, delivery, moves)| {
        // With several groups, a move can change the order in which requests are executed, and CAS
        // values depend on this order.
        if is_of_one_server(&stream.0) || moves.0 > 1 && shows_cas(&stream.0) {
            return Ok(());
        }
        let direct = Delivery::at_once().run(engine, &stream.0);
        let moves = (moves.0, &moves.1[..]);
        let moved = forwarded(engine, &stream.0, TestClient::new(), &delivery, moves);
        prop_assert_eq!(text(&moved.0), text(&direct.0), "{:?} {:?}", delivery, moves);
        prop_assert_eq!(moved.1, direct.1);
        Ok(())
    });
}

fn resp_replies_do_not_depend_on_the_time_of_a_move(engine: TestEngine) {
    let keys: String = (0..60).map(|n| format!(" k{n}")).collect();
    let pairs: String = (0..60).map(|n| format!(" k{n} {}", "v".repeat(100 + n))).collect();
    let stream = format!(
        "set n 1\r\nincr n\r\nmset{pairs}\r\nmget{keys} none\r\nincr n\r\nexists{keys} none\r\n\
         multi\r\nincr n\r\nmget{keys}\r\ndel k1 k2\r\nexec\r\ntouch{keys}\r\ndel{keys}\r\nget n\r\n"
    );
    let client = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    let direct = Delivery::at_once().run_in(new_server(engine), client(), stream.as_bytes());
    for (polls, groups) in (0..60).flat_map(|polls| [(polls, 1), (polls, 2), (polls, 3)]) {
        let delivery = Delivery::at_once();
        let moves = [polls, 2, 0, polls / 3, 1];
        let moves = (groups, &moves[..]);
        let moved = forwarded(engine, stream.as_bytes(), client(), &delivery, moves);
        assert_eq!(text(&moved.0), text(&direct.0), "{moves:?}");
        assert_eq!(moved.1, direct.1);
    }
}

/// A store reaches the next leader if the leader changes while the value arrives, or after the last
/// byte of the value has arrived. If the host refuses memory for the sent bytes, the store fails.
fn a_long_value_reaches_the_next_leader(engine: TestEngine) {
    let value = pattern(250_000);
    let stream = [store("set a 0 0 250000", &value), b"version\r\nget a\r\n".to_vec()].concat();
    for polls in 0..8 {
        for is_kept in [true, false] {
            let (mut server, leader) = follower(engine, &[], usize::MAX);
            {
                let leader = &mut *leader.lock().unwrap();
                leader.settings.forwards = true;
                leader.host.leader = Some(Box::new(|_, _| panic!("a leader forwards nothing")));
            }
            // Another store has reserved a byte, so the limit applies.
            assert!(server.host.reserve_sent(0, 1));
            server.host.sent_limit = if is_kept { usize::MAX } else { 1000 };
            let moves: Moves = Arc::new(Mutex::new([polls].into()));
            server.host.leader = Some(Box::new(move |_, conversation| {
                Box::new(MovingLeader::new(&leader, conversation, &moves))
            }));
            let mut client = TestClient::new();
            stream.chunks(60_000).for_each(|piece| client.send(&mut server, piece));
            let found = [&b"VALUE a 0 250000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
            let stored = [&b"STORED\r\nVERSION 1.6.45\r\n"[..], &found].concat();
            let refused = b"SERVER_ERROR no leader\r\nVERSION 1.6.45\r\nEND\r\n";
            let is_refused = !is_kept && client.received.starts_with(b"SERVER_ERROR");
            assert!(is_refused != is_kept || polls != 1, "the first piece of the value was sent");
            let expected = if is_refused { &refused[..] } else { &stored };
            assert_eq!(text(&client.received), text(expected), "{polls} {is_kept}");
            assert!(!client.is_closed);
            assert_eq!(server.host.reserved_sent(), 1, "the session releases its memory");
        }
    }
}

/// A value that a leader receives from its own client reaches the next leader if the leader loses
/// its leadership during the upload.
fn a_value_that_a_leader_receives_reaches_the_next_leader(engine: TestEngine) {
    let value = pattern(250_000);
    let stream = [store("set a 0 0 250000", &value), b"get a\r\n".to_vec()].concat();
    let found = [&b"VALUE a 0 250000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
    for (at, sent_limit) in [(1, usize::MAX), (3, usize::MAX), (4, usize::MAX), (3, 100_000)] {
        let (mut server, leader) = follower(engine, &[], usize::MAX);
        (server.host.leads, server.host.sent_limit) = (true, sent_limit);
        assert!(server.host.reserve_sent(0, 1));
        let mut client = TestClient::new();
        for (number, piece) in stream.chunks(62_504).enumerate() {
            server.host.leads = number < at;
            client.send(&mut server, piece);
        }
        let expected = match sent_limit {
            usize::MAX => [&b"STORED\r\n"[..], &found].concat(),
            _ => b"SERVER_ERROR no leader\r\nEND\r\n".to_vec(),
        };
        assert_eq!(text(&client.received), text(&expected), "{at} {sent_limit}");
        assert_eq!((server.host.reserved(), server.host.reserved_sent()), (0, 1));
        let has_value = leader.lock().unwrap().replies_to(b"get a\r\n") == found;
        assert_eq!(has_value, sent_limit == usize::MAX);
    }
}

/// A key moves to this server and immediately away again. This server starts to store the sent
/// bytes itself, and then sends them to the next leader.
fn a_value_that_moves_twice_is_stored(engine: TestEngine) {
    /// A shard map that assigns the keys to this group in only one call to `group_of`, after the
    /// last move.
    struct Twice(Moves, Cell<bool>);
    impl GroupMap for Twice {
        fn group_of(&self, _: &[u8]) -> GroupIndex {
            let has_moved = self.0.lock().unwrap().is_empty();
            if has_moved && !self.1.replace(true) { GroupIndex::OWN } else { GroupIndex(1) }
        }
        fn groups(&self) -> Vec<GroupIndex> {
            vec![GroupIndex(0), GroupIndex(1)]
        }
        fn version(&self) -> u64 {
            1
        }
    }
    let stream = store("set a 0 0 250000", &pattern(250_000));
    for polls in 0..12 {
        let (mut server, leader) = follower(engine, &[], usize::MAX);
        {
            let leader = &mut *leader.lock().unwrap();
            leader.settings.forwards = true;
            leader.host.leader = Some(Box::new(|_, _| panic!("a leader forwards nothing")));
        }
        let moves: Moves = Arc::new(Mutex::new([polls, usize::MAX].into()));
        (server.host.leads, server.host.sent_limit) = (true, 300_000);
        // Another store has reserved a byte, so the limit applies.
        assert!(server.host.reserve_sent(0, 1));
        server.host.shard_map = Some(Box::new(Twice(Arc::clone(&moves), Cell::default())));
        let shared = Arc::clone(&leader);
        server.host.leader = Some(Box::new(move |_, conversation| {
            Box::new(MovingLeader::new(&shared, conversation, &moves))
        }));
        let mut client = TestClient::new();
        stream.chunks(60_000).for_each(|piece| client.send(&mut server, piece));
        assert_eq!((text(&client.received), client.is_closed), (text(b"STORED\r\n"), false));
        assert_eq!((server.host.reserved(), server.host.reserved_sent()), (0, 1));
        let leader = &mut *leader.lock().unwrap();
        leader.host.leads = true;
        assert!(leader.replies_to(b"get a\r\n").len() > 250_000);
    }
}

/// A route on which all requests have the same outcome.
struct FixedOutcome(Arc<Mutex<ForwardOutcome>>);

impl Route for FixedOutcome {
    fn pass(&mut self, _: &[u8], _: bool, _: &Waker) -> ForwardId {
        ForwardId(0)
    }

    fn pass_rest(&mut self, _: &[u8], _: bool, _: &Waker) {}

    fn has_room(&mut self, _: &Waker) -> bool {
        true
    }

    fn take(&mut self, _: ForwardId, _: &mut Vec<u8>) -> ForwardOutcome {
        *self.0.lock().unwrap()
    }

    fn resume(&mut self) {}

    fn forget(&mut self) {}
}

fn a_former_follower_stores_the_sent_bytes_itself(engine: TestEngine) {
    let value = pattern(250_000);
    let too_large = store("set a 0 0 3000000", &pattern(3_000_000));
    let large = store("set a 0 0 250000", &value);
    for (request, reply) in [
        (large, "STORED\r\nVERSION 1.6.45\r\n"),
        (too_large, "SERVER_ERROR object too large for cache\r\nVERSION 1.6.45\r\n"),
    ] {
        let stream = [request, b"version\r\n".to_vec()].concat();
        for at in [1, 2, 4] {
            let mut server = new_server(engine);
            server.settings.forwards = true;
            server.complete = server.complete.or_else(|| Some(Arc::new(|| ())));
            let outcome = Arc::new(Mutex::new(ForwardOutcome::Pending));
            let of_route = Arc::clone(&outcome);
            server.host.leader =
                Some(Box::new(move |_, _| Box::new(FixedOutcome(Arc::clone(&of_route)))));
            let mut client = TestClient::new();
            // The session forwards some pieces before this server becomes the leader.
            for (number, piece) in stream.chunks(60_000).enumerate() {
                client.unread.extend_from_slice(piece);
                if number < at {
                    let (unread, unsent) = (&client.unread, &mut client.unsent);
                    let progress = server.poll(&mut client.session, unread, unsent);
                    client.unread.drain(..progress.consumed);
                } else {
                    server.host.leads = true;
                    *outcome.lock().unwrap() = ForwardOutcome::Retry;
                    client.send(&mut server, b"");
                }
            }
            assert_eq!(text(&client.received), text(reply.as_bytes()), "{at}");
            assert_eq!((server.host.reserved(), server.host.reserved_sent()), (0, 0));
        }
    }
}

/// The session closes the connection if a leader reports that it has answered only a part of a
/// request, because such a report violates the protocol.
fn a_part_of_a_request_closes_the_connection(engine: TestEngine) {
    let resp = || TestClient { session: Session::resp(0, false), ..TestClient::new() };
    for (client, stream, len, keys) in [
        (TestClient::new(), "delete a\r\nset k 0 0 1\r\n1\r\n", 4, 0),
        (TestClient::new(), "delete a\r\nset k 0 0 1\r\n1\r\n", 1000, 0),
        (resp(), "*2\r\n$3\r\nDEL\r\n$1\r\na\r\n", 4, 0),
        (resp(), "*3\r\n$6\r\nRENAME\r\n$1\r\na\r\n$1\r\nb\r\n", 0, 1),
    ] {
        let (mut server, _) = follower(engine, &[], usize::MAX);
        let part = ForwardOutcome::RetryRest(AnsweredPart { len, keys, found: 0 });
        let outcome = Arc::new(Mutex::new(part));
        server.host.leader =
            Some(Box::new(move |_, _| Box::new(FixedOutcome(Arc::clone(&outcome)))));
        let (replies, is_closed) = Delivery::at_once().run_in(server, client, stream.as_bytes());
        assert!(is_closed && replies.is_empty(), "{stream} {}", text(&replies));
    }
}

/// A multi-key command waits for slower storage after this server has executed a part of the
/// command, and its keys then move. The session does not forward the command, because another
/// server would execute it from the start.
fn a_command_that_one_server_has_to_finish_is_not_repeated(engine: TestEngine) {
    /// A shard map that assigns the keys `a` and `b` to these two groups after the move.
    struct Moving(Arc<AtomicBool>, [u16; 2]);
    impl GroupMap for Moving {
        fn group_of(&self, key: &[u8]) -> GroupIndex {
            let has_moved = self.0.load(Ordering::Relaxed);
            GroupIndex(if has_moved { self.1[usize::from(key == b"b")] } else { 0 })
        }
        fn groups(&self) -> Vec<GroupIndex> {
            (0..3).map(GroupIndex).collect()
        }
        fn version(&self) -> u64 {
            self.0.load(Ordering::Relaxed).into()
        }
    }
    let mut closed = 0;
    for (polls, groups) in (0..20).flat_map(|polls| [(polls, [1, 1]), (polls, [1, 2])]) {
        let (mut server, leaders) = member(engine, 3, false, &[], usize::MAX);
        let leader = Arc::clone(&leaders[1]);
        share_items(engine, &mut server, &mut leader.lock().unwrap());
        let has_moved = Arc::new(AtomicBool::new(false));
        server.host.leads = true;
        server.host.shard_map = Some(Box::new(Moving(Arc::clone(&has_moved), groups)));
        let mut client = TestClient { session: Session::resp(0, false), ..TestClient::new() };
        client.unread =
            b"*5\r\n$6\r\nMSETNX\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n".to_vec();
        for _ in 0..polls {
            let (unread, unsent) = (&client.unread, &mut client.unsent);
            let progress = server.poll(&mut client.session, unread, unsent);
            client.unread.drain(..progress.consumed);
            server.complete.as_ref().expect("sessions wait for leaders")();
        }
        has_moved.store(true, Ordering::Relaxed);
        client.send(&mut server, b"");
        let found = leader.lock().unwrap().replies_to(b"get a\r\nget b\r\n");
        let stored = found.split(|byte| *byte == b'V').count() - 1;
        match &*String::from_utf8_lossy(&client.received) {
            "" if client.is_closed => closed += 1,
            ":1\r\n" => assert_eq!(stored, 2),
            reply => assert_eq!((reply.get(..7), groups, stored), (Some("-CROSSS"), [1, 2], 0)),
        }
    }
    assert_eq!(closed > 0, engine.waits());
}
