//! Sessions of a server whose items another one has: whatever the requests are and however they are cut, the answers
//! are those of the other one, also if it changes while they are under way.

use crate::common::{Kit, Peer, TestEngine, new_kit, pattern, set, store, text};
use crate::splits::{Delivery, SAMPLER, any_delivery, any_stream, check, garbled_stream};
use larder_protocol::reply::Servers;
use larder_session::{Passed, Route, Routed, Session};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::task::Waker;

for_each_engine! { answers_are_those_of_the_leader nonsense_is_answered_in_its_place redis_is_forwarded
nothing_is_lost_while_the_leader_changes without_a_leader_there_is_an_error a_lost_change_ends_the_connection
what_is_not_about_items_is_answered_here a_long_value_is_refused_in_the_end
a_half_answered_request_ends_the_connection look_ups_are_answered_from_a_copy
a_copy_answers_as_its_leader every_member_lists_the_servers without_a_cluster_there_is_no_list
binary_clients_are_told_of_the_servers }

/// What becomes of requests, in turn.
type Fates = Arc<Mutex<Vec<Routed>>>;

/// A kit that several have.
type Shared<E> = Arc<Mutex<Kit<E>>>;

/// The leader of a group, in this process. Its answers come in parts of a few bytes.
struct Leader<E: TestEngine> {
    kit: Shared<E>,
    peer: Peer<E>,
    /// Requests in order, those of each [`Route::pass`] for themselves.
    passed: Vec<Requests>,
    passes: u64,
    looks: usize,
    is_stopped: bool,
    fates: Fates,
    part_len: usize,
}

struct Requests {
    number: Passed,
    request: Vec<u8>,
    is_complete: bool,
    answer: Option<Vec<u8>>,
    fate: Routed,
    /// Turns in which nothing has come yet.
    delay: usize,
}

impl<E: TestEngine + Send + 'static> Route for Leader<E> {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> Passed {
        assert!(self.passed.last().is_none_or(|last| last.is_complete), "one after the other");
        let failed = self.passed.iter().find(|before| before.fate != Routed::Done);
        let fate = failed.map_or_else(|| self.next_fate(more), |failed| failed.fate);
        let number = Passed(self.passes);
        let request = bytes.to_vec();
        let (is_complete, answer, delay) = (!more, None, 2);
        self.passed.push(Requests { number, request, is_complete, answer, fate, delay });
        self.passes += 1;
        waker.wake_by_ref();
        number
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        let last = self.passed.last_mut().expect("it has begun");
        assert!(!last.is_complete, "it has not ended");
        last.request.extend_from_slice(bytes);
        last.is_complete = !more;
        waker.wake_by_ref();
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        waker.wake_by_ref();
        self.looks += 1;
        !self.looks.is_multiple_of(3)
    }

    fn take(&mut self, of: Passed, into: &mut Vec<u8>) -> Routed {
        let at = self.passed.iter().position(|one| one.number == of).expect("it was passed");
        let before = self.passed[..at].iter().filter(|one| one.answer.is_none()).count();
        if before == 0 || self.passed[at].fate == Routed::Done {
            // Those before it are carried out first.
            (0..=at).for_each(|at| self.carry_out(at));
        }
        let one = &mut self.passed[at];
        one.delay = one.delay.saturating_sub(1);
        if one.fate != Routed::Done {
            let is_over = one.is_complete || matches!(one.fate, Routed::Again | Routed::Nobody);
            if one.delay > 0 || !is_over {
                return Routed::Waiting;
            }
            let fate = one.fate;
            self.passed.remove(at);
            return fate;
        }
        let Some(answer) = &mut one.answer else { return Routed::Waiting };
        if one.delay > 0 || self.is_stopped {
            return Routed::Waiting;
        }
        into.extend(answer.drain(..self.part_len.min(answer.len())));
        if !answer.is_empty() {
            self.is_stopped = true;
            return Routed::More;
        }
        self.passed.remove(at);
        if self.peer.is_closed { Routed::Close } else { Routed::Done }
    }

    fn go_on(&mut self) {
        assert!(self.is_stopped, "only when there is more");
        self.is_stopped = false;
    }

    fn forget(&mut self) {
        assert!(!self.passed.iter().any(|one| one.answer.is_some()), "all is taken that is there");
        self.passed.clear();
    }
}

impl<E: TestEngine> Leader<E> {
    fn carry_out(&mut self, at: usize) {
        let one = &mut self.passed[at];
        if one.is_complete && one.answer.is_none() && one.fate == Routed::Done {
            self.peer.send(&mut self.kit.lock().unwrap(), &one.request);
            assert!(self.peer.unread.is_empty(), "whole requests are forwarded");
            one.answer = Some(std::mem::take(&mut self.peer.received));
        }
    }

    fn next_fate(&self, is_long: bool) -> Routed {
        let fates = &mut self.fates.lock().unwrap();
        match fates.first() {
            // What is dropped while it comes is not sent again.
            Some(Routed::Again) if is_long => Routed::Done,
            Some(_) => fates.remove(0),
            None => Routed::Done,
        }
    }
}

/// A kit whose items are at a leader, and that leader.
fn follower<E: TestEngine + Send + 'static>(
    fates: &[Routed],
    part_len: usize,
) -> (Kit<E>, Shared<E>) {
    let (kit, mut leaders) = member(1, false, fates, part_len);
    (kit, leaders.remove(0))
}

/// A kit whose requests go to the leaders of this many groups, and these leaders. `are_one`: all have the same items.
pub(super) fn member<E: TestEngine + Send + 'static>(
    groups: usize,
    are_one: bool,
    fates: &[Routed],
    part_len: usize,
) -> (Kit<E>, Vec<Shared<E>>) {
    let mut kit = new_kit::<E>();
    let new = || Arc::new(Mutex::new(new_kit::<E>()));
    let leaders: Vec<_> =
        if are_one { vec![new(); groups] } else { (0..groups).map(|_| new()).collect() };
    let at = leaders.clone();
    let fates: Fates = Arc::new(Mutex::new(fates.to_vec()));
    kit.settings.forwards = true;
    // What it waits for comes by itself.
    kit.complete = Some(|_| ());
    kit.host.leader = Some(Box::new(move |group, conversation| {
        let peer = Peer { session: Session::forwarded(conversation), ..Peer::new() };
        Box::new(Leader {
            kit: Arc::clone(&at[usize::from(group.0)]),
            peer,
            passed: Vec::new(),
            passes: 0,
            looks: 0,
            is_stopped: false,
            fates: Arc::clone(&fates),
            part_len,
        })
    }));
    (kit, leaders)
}

fn same<E: TestEngine + Send + 'static>(
    stream: &[u8],
    delivery: &Delivery,
    fates: &[Routed],
    part_len: usize,
) -> Result<(), TestCaseError> {
    // A walk over items shows those that are here.
    if [&b"metadump"[..], b"mgdump"].iter().any(|what| holds(stream, what)) {
        return Ok(());
    }
    let direct = Delivery::at_once().run::<E>(stream);
    let (kit, _) = follower::<E>(fates, part_len);
    let forwarded = delivery.run_in(kit, Peer::new(), stream);
    prop_assert_eq!(text(&forwarded.0), text(&direct.0), "{:?} {:?}", delivery, fates);
    prop_assert_eq!(forwarded.1, direct.1);
    Ok(())
}

pub(super) fn holds(stream: &[u8], what: &[u8]) -> bool {
    stream.windows(what.len()).any(|bytes| bytes == what)
}

fn answers_are_those_of_the_leader<E: TestEngine + Send + 'static>() {
    for (pieces, part_len) in [(vec![usize::MAX], usize::MAX), (vec![1], 1), (vec![7, 40], 3)] {
        let delivery = Delivery { pieces, ..Delivery::at_once() };
        same::<E>(SAMPLER, &delivery, &[], part_len).unwrap();
    }
    let parts = prop_oneof![1..100_usize, Just(usize::MAX), Just(100_000)];
    check(100, (any_stream(200_000), any_delivery(), parts), |(stream, delivery, part_len)| {
        same::<E>(&stream.0, &delivery, &[], part_len)
    });
}

fn nonsense_is_answered_in_its_place<E: TestEngine + Send + 'static>() {
    check(150, (garbled_stream(1000), any_delivery()), |(stream, delivery)| {
        same::<E>(&stream.0, &delivery, &[], usize::MAX)
    });
}

/// Requests that the first leader has not answered go to the next one.
fn nothing_is_lost_while_the_leader_changes<E: TestEngine + Send + 'static>() {
    let fates = prop::collection::vec(prop_oneof![Just(Routed::Done), Just(Routed::Again)], 0..30);
    check(100, (any_stream(1000), any_delivery(), fates), |(stream, delivery, fates)| {
        same::<E>(&stream.0, &delivery, &fates, usize::MAX)
    });
}

fn without_a_leader_there_is_an_error<E: TestEngine + Send + 'static>() {
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
            let (kit, _) = follower::<E>(&[Routed::Nobody; 200], 1);
            let delivery = Delivery { pieces, ..Delivery::at_once() };
            let (said, is_closed) = delivery.run_in(kit, Peer::new(), &stream);
            let expected = format!("{answer}VERSION 1.6.45\r\n{answer}MN\r\n");
            assert_eq!(String::from_utf8_lossy(&said), expected, "{}", text(request));
            assert!(!is_closed);
        }
    }
    // A long value is dropped as it comes.
    let stream = [store("set a 0 0 250000", &pattern(250_000)), b"mn\r\n".to_vec()].concat();
    let (kit, _) = follower::<E>(&[Routed::Nobody; 200], 1);
    let (said, _) =
        Delivery { pieces: vec![5000], ..Delivery::at_once() }.run_in(kit, Peer::new(), &stream);
    assert_eq!(String::from_utf8_lossy(&said), "SERVER_ERROR no leader\r\nMN\r\n");
}

/// Reads are repeated; of a change nobody knows whether it was made, so the client is told nothing.
fn a_lost_change_ends_the_connection<E: TestEngine + Send + 'static>() {
    let run = |stream: &[u8], fates: &[Routed]| {
        let (kit, leader) = follower::<E>(fates, usize::MAX);
        leader.lock().unwrap().ask(&set("a", b"5"));
        Delivery::at_once().run_in(kit, Peer::new(), stream)
    };
    let (said, is_closed) = run(b"get a\r\nmg a v\r\n", &[Routed::Lost, Routed::Lost]);
    assert_eq!(String::from_utf8_lossy(&said), "VALUE a 0 1\r\n5\r\nEND\r\nVA 1\r\n5\r\n");
    assert!(!is_closed);
    for change in ["incr a 1\r\n", "delete a\r\n", "touch a 0\r\n", "get a\r\nincr a 1\r\n"] {
        let (said, is_closed) = run(change.as_bytes(), &[Routed::Lost]);
        assert!(said.is_empty() && is_closed, "{change}: {}", text(&said));
    }
}

fn what_is_not_about_items_is_answered_here<E: TestEngine + Send + 'static>() {
    let (mut kit, leader) = follower::<E>(&[], usize::MAX);
    leader.lock().unwrap().host.memory_limit = 0;
    let said = kit.ask(b"version\r\nmn\r\nstats\r\nverbosity 1\r\nget a\r\n");
    let expected = "VERSION 1.6.45\r\nMN\r\nSTAT pid 1\r\nSTAT uptime 2\r\nEND\r\nOK\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&said), expected);
    assert_eq!(leader.lock().unwrap().counters.thread.cmd_touch.get(), 0);
}

fn redis_is_forwarded<E: TestEngine + Send + 'static>() {
    let stream =
        b"set a 5\r\nget a\r\nincr a\r\nmget a b\r\nping\r\nhello 3\r\nget none\r\nmulti\r\n\
        incr a\r\necho hi\r\nget a\r\nexec\r\ndel a b\r\ndbsize\r\nflushall\r\nget a\r\nsetx\r\n\
        *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nreset\r\nget b\r\n\
        multi\r\nset b 1\r\nget b\r\nexec\r\nquit\r\n";
    let peer = || Peer { session: Session::<E>::resp(0, false), ..Peer::new() };
    // The number of items is that of the server itself.
    let stream = String::from_utf8_lossy(stream).replace("dbsize\r\n", "");
    let direct = Delivery::at_once().run_in(new_kit::<E>(), peer(), stream.as_bytes());
    assert!(direct.0.len() > 200 && direct.1, "{}", text(&direct.0));
    for pieces in [vec![usize::MAX], vec![1], vec![3, 50]] {
        for part_len in [1, usize::MAX] {
            for fates in [vec![], vec![Routed::Again; 8]] {
                let (kit, _) = follower::<E>(&fates, part_len);
                let delivery = Delivery { pieces: pieces.clone(), ..Delivery::at_once() };
                let forwarded = delivery.run_in(kit, peer(), stream.as_bytes());
                assert_eq!(text(&forwarded.0), text(&direct.0), "{pieces:?} {part_len} {fates:?}");
            }
        }
    }
    let (kit, _) = follower::<E>(&[Routed::Nobody; 50], 1);
    let said = Delivery::at_once().run_in(kit, peer(), b"get a\r\nping\r\nset a 1\r\n").0;
    let error = "-MASTERDOWN this group of servers has no leader\r\n";
    assert_eq!(String::from_utf8_lossy(&said), format!("{error}+PONG\r\n{error}"));
}

/// A long value that came as a whole before it was known that nobody takes it.
fn a_long_value_is_refused_in_the_end<E: TestEngine + Send + 'static>() {
    let stream = [store("set a 0 0 250000", &pattern(250_000)), b"version\r\n".to_vec()].concat();
    for fate in [Routed::Nobody, Routed::Again] {
        for late in [false, true] {
            let (mut kit, _) = follower::<E>(&[], usize::MAX);
            let open = kit.host.leader.take().unwrap();
            kit.host.leader = Some(Box::new(move |group, conversation| {
                let inner = open(group, conversation);
                Box::new(Late { inner, fate, late, is_complete: false })
            }));
            let delivery = Delivery { pieces: vec![100_000], ..Delivery::at_once() };
            let (said, is_closed) = delivery.run_in(kit, Peer::new(), &stream);
            let expected = "SERVER_ERROR no leader\r\nVERSION 1.6.45\r\n";
            assert_eq!(String::from_utf8_lossy(&said), expected, "{fate:?} {late}");
            assert!(!is_closed);
        }
    }
}

/// Says what has become of requests at once, or when they are complete.
struct Late {
    inner: Box<dyn Route>,
    fate: Routed,
    late: bool,
    is_complete: bool,
}

impl Route for Late {
    fn pass(&mut self, _: &[u8], more: bool, waker: &Waker) -> Passed {
        self.is_complete = !more;
        waker.wake_by_ref();
        Passed(0)
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        let _ = self.pass(bytes, more, waker);
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        self.inner.has_room(waker)
    }

    fn take(&mut self, _: Passed, _: &mut Vec<u8>) -> Routed {
        if self.late && !self.is_complete { Routed::Waiting } else { self.fate }
    }

    fn go_on(&mut self) {}

    fn forget(&mut self) {}
}

/// A request for many keys is half answered when another node begins to lead: it would answer from the beginning.
fn a_half_answered_request_ends_the_connection<E: TestEngine + Send + 'static>() {
    let keys = " k".repeat(8);
    let reads_copy = [false, true];
    let requests = ["mget", "get", "gat 0"].into_iter();
    for (request, reads_copy) in requests.flat_map(|request| reads_copy.map(|is| (request, is))) {
        let request = format!("{request}{keys}\r\n");
        let is_resp = request.starts_with('m');
        let session = if is_resp { Session::<E>::resp(0, false) } else { Session::new() };
        let (mut kit, _) = follower::<E>(&[], usize::MAX);
        let open = kit.host.leader.take();
        kit.complete = E::WAITS.then_some(E::complete_read);
        kit.ask(&set("k", &pattern(3000)));
        kit.settings.output_max = 4000;
        let (mut peer, mut first) = (Peer { session, ..Peer::new() }, Vec::new());
        peer.unread = request.as_bytes().to_vec();
        let progress = peer.turn(&mut kit);
        assert_eq!(progress.next, larder_session::Next::Write);
        std::mem::swap(&mut first, &mut peer.unsent);
        assert!(first.len() > 3000, "{}", first.len());
        // From here on another node leads.
        kit.host.leader = open;
        kit.host.reads_copy = reads_copy;
        kit.complete = kit.complete.or(Some(|_| ()));
        peer.send(&mut kit, b"version\r\n");
        let said = String::from_utf8_lossy(&peer.received);
        if reads_copy && !request.starts_with("gat") {
            // It has a copy that is new enough, and goes on with it.
            assert!(!peer.is_closed && first.len() + said.len() > 8 * 3000, "{request}");
        } else if is_resp {
            assert!(peer.is_closed && said.is_empty(), "{said}");
        } else {
            // The client takes the error for the end of the answer.
            assert_eq!(said, "SERVER_ERROR no leader\r\nVERSION 1.6.45\r\n");
        }
    }
}

/// A follower that answers look-ups itself, from items that are not those of the leader.
fn look_ups_are_answered_from_a_copy<E: TestEngine + Send + 'static>() {
    let resp = || Peer { session: Session::<E>::resp(0, false), ..Peer::new() };
    let cases = [
        ("get a\r\n", "VALUE a 0 4\r\ncopy\r\nEND\r\n", false),
        ("get none a none a\r\n", "VALUE a 0 4\r\ncopy\r\nVALUE a 0 4\r\ncopy\r\nEND\r\n", false),
        ("mg a v\r\nmn\r\n", "VA 4\r\ncopy\r\nMN\r\n", false),
        // Look-ups that change an item, and those behind a change that has to be made before them.
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
        let (mut kit, leader) = follower::<E>(&[], usize::MAX);
        leader.lock().unwrap().ask(&set("a", b"leader"));
        let open = kit.host.leader.take();
        kit.complete = E::WAITS.then_some(E::complete_read);
        kit.ask(&set("a", b"copy"));
        kit.host.leader = open;
        kit.complete = kit.complete.or(Some(|_| ()));
        kit.host.reads_copy = true;
        let peer = if is_resp { resp() } else { Peer::new() };
        let (said, is_closed) = Delivery::at_once().run_in(kit, peer, requests.as_bytes());
        assert_eq!(String::from_utf8_lossy(&said), answers, "{requests}");
        assert!(!is_closed);
    }
}

/// A follower whose items are always those of its leader gives the answers of its leader, however requests are cut.
fn a_copy_answers_as_its_leader<E: TestEngine + Send + 'static>() {
    check(100, (any_stream(1000), any_delivery()), |(stream, delivery)| {
        if [&b"metadump"[..], b"mgdump"].iter().any(|what| holds(&stream.0, what)) {
            return Ok(());
        }
        let direct = Delivery::at_once().run::<E>(&stream.0);
        let (mut kit, leader) = follower::<E>(&[], usize::MAX);
        let (here, there) = E::pair();
        kit.engine = here;
        leader.lock().unwrap().engine = there;
        kit.complete = E::WAITS.then_some(E::complete_read as fn(&mut E)).or(kit.complete);
        kit.host.reads_copy = true;
        let forwarded = delivery.run_in(kit, Peer::new(), &stream.0);
        prop_assert_eq!(text(&forwarded.0), text(&direct.0), "{:?}", delivery);
        prop_assert_eq!(forwarded.1, direct.1);
        Ok(())
    });
}

/// What clients that look for servers under a key send, and what they are told by a leader, by a member that forwards,
/// and by one that answers look-ups from its copy. The third value is the answer where nobody leads.
const LISTINGS: [(&str, &str, Option<&str>); 10] = [
    ("get LIST\r\n", "VALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    ("get LIST\n", "VALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    ("gets LIST\r\n", "VALUE LIST 0 LEN 3\r\nSERVERS\r\nEND\r\n", None),
    ("gets LIST\n", "VALUE LIST 0 LEN 3\r\nSERVERS\r\nEND\r\n", None),
    ("mg LIST v c\r\n", "VA LEN c3\r\nSERVERS\r\n", None),
    ("config get cluster\r\n", "CONFIG cluster 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    (
        "get a\r\nget LIST\r\nget b\r\n",
        "VALUE a 0 1\r\n1\r\nEND\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\nEND\r\n",
        Some("NONE\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\nNONE\r\n"),
    ),
    // All keys of a line are answered by one server.
    (
        "get a LIST b\r\n",
        "VALUE a 0 1\r\n1\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n",
        Some("NONE\r\n"),
    ),
    ("gat 0 LIST\r\n", "END\r\n", Some("NONE\r\n")),
    ("get LIST2\r\n", "END\r\n", Some("NONE\r\n")),
];

const LIST: &str = "3\na||1\n";

fn listed() -> Option<Servers> {
    Some(Servers { version: 3, addresses: vec!["a:1".to_owned()] })
}

fn in_full(short: &str) -> String {
    let full = short.replace("LIST", "AmazonElastiCache:cluster").replace("SERVERS", LIST);
    full.replace("LEN", &LIST.len().to_string()).replace("NONE", "SERVER_ERROR no leader")
}

fn every_member_lists_the_servers<E: TestEngine + Send + 'static>() {
    let pieces = [vec![usize::MAX], vec![1], vec![7]];
    for (pieces, (request, answer, alone)) in
        pieces.iter().flat_map(|pieces| LISTINGS.map(|listing| (pieces, listing)))
    {
        let (stream, answer) = (in_full(request) + "mn\r\n", in_full(answer) + "MN\r\n");
        let alone = alone.map_or(answer.clone(), |alone| in_full(alone) + "MN\r\n");
        let delivery = Delivery { pieces: pieces.clone(), ..Delivery::at_once() };
        let run = |kit| {
            let (said, is_closed) = delivery.run_in(kit, Peer::new(), stream.as_bytes());
            assert!(!is_closed);
            String::from_utf8(said).unwrap()
        };
        let leading = || {
            let mut kit = new_kit::<E>();
            (kit.settings.forwards, kit.host.servers) = (true, listed());
            kit.ask(&set("a", b"1"));
            kit
        };
        assert_eq!(run(leading()), answer, "it leads: {request}");
        let following = |fates: &[Routed], reads_copy| {
            let (mut kit, leader) = follower::<E>(fates, usize::MAX);
            let (here, there) = E::pair();
            kit.engine = here;
            kit.complete = E::WAITS.then_some(E::complete_read as fn(&mut E)).or(kit.complete);
            (kit.host.servers, kit.host.reads_copy) = (listed(), reads_copy);
            let mut at = leader.lock().unwrap();
            at.engine = there;
            (at.settings.forwards, at.host.servers) = (true, listed());
            at.ask(&set("a", b"1"));
            kit
        };
        assert_eq!(run(following(&[], false)), answer, "it forwards: {request}");
        assert_eq!(run(following(&[], true)), answer, "it has a copy: {request}");
        let nobody = [Routed::Nobody; 200];
        assert_eq!(run(following(&nobody, false)), alone, "nobody leads: {request}");
    }
}

/// Everywhere else the key is one like others, and the binary opcode is unknown.
fn without_a_cluster_there_is_no_list<E: TestEngine + Send + 'static>() {
    let mut kit = new_kit::<E>();
    kit.host.servers = listed();
    let asked = in_full("get LIST\r\ngets LIST\n");
    assert_eq!(kit.ask(asked.as_bytes()), b"END\r\nEND\r\n");
    let stored = set(&in_full("LIST"), b"v");
    assert_eq!(kit.ask(&stored), b"STORED\r\n");
    let found = kit.ask(asked.as_bytes());
    let item = in_full("VALUE LIST 0 1\r\nv\r\nEND\r\nVALUE LIST 0 1 ");
    assert!(found.starts_with(item.as_bytes()), "{}", text(&found));
    kit.host.servers = None;
    assert_eq!(kit.ask(b"config get cluster\r\n"), b"ERROR\r\n");
    assert_eq!(kit.ask(&binary(0x60, b"cluster")), answered(0x60, 0x81, b"", b"Unknown command"));
}

/// A binary request with a key alone.
fn binary(opcode: u8, key: &[u8]) -> Vec<u8> {
    let len = u8::try_from(key.len()).unwrap();
    let head = [0x80, opcode, 0, len, 0, 0, 0, 0, 0, 0, 0, len, 1, 2, 3, 4];
    [&head[..], &[0; 8], key].concat()
}

/// The answer to it.
fn answered(opcode: u8, status: u8, extras: &[u8], value: &[u8]) -> Vec<u8> {
    let extras_len = u8::try_from(extras.len()).unwrap();
    let len = extras_len + u8::try_from(value.len()).unwrap();
    let head = [0x81, opcode, 0, 0, extras_len, 0, 0, status, 0, 0, 0, len, 1, 2, 3, 4];
    [&head[..], &[0; 8], extras, value].concat()
}

fn binary_clients_are_told_of_the_servers<E: TestEngine + Send + 'static>() {
    let (mut kit, _) = follower::<E>(&[Routed::Nobody; 9], usize::MAX);
    kit.host.servers = listed();
    let list = answered(0x60, 0, &[0; 4], LIST.as_bytes());
    assert_eq!(kit.ask(&binary(0x60, b"cluster")), list);
    // A service that is older than that has the list under a key, and its version as the CAS.
    let mut item = answered(0x00, 0, &[0; 4], LIST.as_bytes());
    item[23] = 3;
    assert_eq!(kit.ask(&binary(0x00, b"AmazonElastiCache:cluster")), item);
    // There is no other configuration, and connections go on.
    let unknown = answered(0x60, 0x81, b"", b"Unknown command");
    let asked = [binary(0x60, b"clusters"), binary(0x60, b""), binary(0x60, b"cluster")].concat();
    assert_eq!(kit.ask(&asked), [unknown.clone(), unknown, list].concat());
}
