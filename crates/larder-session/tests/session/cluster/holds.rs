//! Answers that confirm a change are held until the change is acknowledged; other answers are not.

use super::leader::member;
use super::scattering::divided;
use crate::common::conversation::Conversation;
use crate::common::{TestServer, classes};
use larder_session::{Next, Progress, Session, State};
use larder_store::cache::Cache;
use larder_store::journal::{AckMode, Journaled, JournaledCache, Journals};
use larder_store::{Updates, dashmap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many random orders of reads and acknowledgements are tried.
const SEEDS: std::ops::Range<u64> = 1..100;

#[test]
fn an_answer_that_tells_of_a_change_is_held_until_it_is_acknowledged() {
    let mut held = 0;
    for seed in SEEDS {
        let mut it = Conversation::new(seed, b"set k 0 0 1\r\n1\r\nmn\r\n");
        if it.run_until_held().is_none() {
            assert_eq!(it.output, b"STORED\r\nMN\r\n");
            continue;
        }
        held += 1;
        assert_eq!(it.session.state(), State::Fetching);
        let calls = it.calls.0.load(Ordering::Relaxed);
        let answers = it.output.clone();
        // Requests that arrive while answers are held are not answered, however often the driver calls.
        it.unread.extend_from_slice(b"version\r\n");
        for _ in 0..3 {
            let progress = it.poll();
            assert!(progress.hold);
            assert_eq!((progress.consumed, &it.output), (0, &answers));
        }
        it.complete_all();
        assert_eq!(it.calls.0.load(Ordering::Relaxed), calls + 1, "it is woken, once");
        let progress = it.poll();
        assert_eq!((progress.consumed, progress.hold, progress.next), (0, false, Next::Yield));
        assert_eq!(it.output, answers);
        while !matches!(it.poll().next, Next::Read { .. }) {}
        assert_eq!(it.output, b"STORED\r\nMN\r\nVERSION 1.6.45\r\n");
    }
    assert!(held > 10, "{held} were held");
}

#[test]
fn what_changes_nothing_is_never_held() {
    for seed in SEEDS {
        let asked = b"get k\r\nmg k v\r\nincr k 1\r\ntouch k 0\r\nmn\r\n";
        let mut it = Conversation::new(seed, asked);
        assert_eq!(it.run_until_held(), None);
        assert_eq!(it.output, b"END\r\nEN\r\nNOT_FOUND\r\nNOT_FOUND\r\nMN\r\n");
    }
}

#[test]
fn a_change_without_an_answer_holds_nothing() {
    for seed in SEEDS {
        let mut it = Conversation::new(seed, b"set k 0 0 1 noreply\r\n1\r\n");
        assert_eq!(it.run_until_held(), None);
        assert!(it.output.is_empty());
    }
}

#[test]
fn a_conversation_that_ends_behind_a_held_answer_ends_once_it_is_released() {
    let mut held = 0;
    for seed in SEEDS {
        let mut it = Conversation::new(seed, b"set k 0 0 1\r\n1\r\nquit\r\n");
        if it.run_until_held().is_some() {
            held += 1;
            it.complete_all();
            let progress = it.poll();
            assert_eq!((progress.consumed, progress.hold, progress.next), (0, false, Next::Close));
        }
        assert_eq!(it.output, b"STORED\r\n");
    }
    assert!(held > 10, "{held} were held");
}

#[test]
fn a_peer_that_leaves_waits_for_nothing() {
    let held = SEEDS.map(|seed| Conversation::new(seed, b"set k 0 0 1\r\n1\r\n"));
    let mut it = held
        .map(|mut it| (it.run_until_held().is_some(), it))
        .find_map(|(held, it)| held.then_some(it))
        .expect("one is held");
    it.session.close(&it.server.host);
    assert_eq!(it.session.state(), State::Waiting);
}

/// A look-up that goes on to change its item may have to wait between the two.
#[test]
fn a_request_that_waits_has_not_read_its_item_before() {
    for seed in SEEDS {
        let asked = b"set k 0 0 1\r\n1\r\nmd k I\r\nmg k h\r\n";
        let mut it = Conversation::new(seed, asked);
        while it.run_until_held().is_some() {
            it.complete_all();
        }
        assert_eq!(
            it.output.escape_ascii().to_string(),
            r"STORED\r\nHD\r\nHD h0 X W\r\n",
            "{seed}"
        );
    }
}

/// Some of the items that were asked for ahead turn out to be there already.
#[test]
fn a_session_that_has_answered_everything_waits_for_nothing() {
    for seed in SEEDS {
        let mut it = Conversation::new(seed, b"get a\r\nget b\r\nget c\r\nget d\r\nget e\r\n");
        loop {
            match it.poll().next {
                // One at a time, so that others are still under way.
                Next::Wait => assert_eq!(it.server.engine.storage().complete(1), 1),
                Next::Yield => (),
                Next::Read { .. } => break,
                next => panic!("{next:?}"),
            }
        }
        assert_eq!((it.session.state(), &*it.output), (State::Waiting, &*b"END\r\n".repeat(5)));
    }
}

/// A cache whose one follower acknowledges what the test says.
struct Followed {
    journals: Arc<Journals>,
    server: TestServer<Journaled<dashmap::Handle>>,
}

const FOLLOWER: u64 = 7;

impl Followed {
    fn new(mode: AckMode) -> Self {
        let journals = Journals::new(1 << 16, 1);
        journals.acks().set_mode(mode);
        journals.acks().require(FOLLOWER);
        let config =
            dashmap::Config { limit_bytes: 1 << 20, cas: true, classes: classes(), seed: 1 };
        let cache = JournaledCache::new(dashmap::Cache::new(config), Arc::clone(&journals));
        Self { server: TestServer::new(cache.engine(), 1 << 18, classes()), journals }
    }

    /// Answers a request; what is said to it, and whether that is held.
    fn poll(&mut self, session: &mut Session<Journaled<dashmap::Handle>>, request: &str) -> Said {
        let mut output = Vec::new();
        let progress = self.server.poll(session, request.as_bytes(), &mut output);
        (String::from_utf8(output).unwrap(), progress)
    }

    fn acknowledge(&self) {
        let generation = self.server.engine.flush_generation();
        self.journals.acks().note(FOLLOWER, &self.journals.ends(), generation);
    }
}

type Said = (String, Progress);

#[test]
fn modes_say_which_answers_are_held() {
    let removals =
        ["delete k\r\n", "md k\r\n", "md k I\r\n", "set k 0 0 0\r\n\r\n", "flush_all\r\n"];
    let others =
        ["set k 0 0 1\r\n1\r\n", "incr n 1\r\n", "append n 0 0 1\r\n1\r\n", "touch n 9\r\n"];
    let reads =
        ["get n\r\n", "mg n v\r\n", "version\r\n", "incr none 1\r\n", "add n 0 0 1\r\n1\r\n"];
    for (mode, holds_removals, holds_others) in [
        (AckMode::None, false, false),
        (AckMode::Deletes, true, false),
        (AckMode::Writes, true, true),
    ] {
        let cases = [(&removals[..], holds_removals), (&others, holds_others), (&reads, false)];
        for (requests, holds) in cases {
            for request in requests {
                let (mut it, mut session) = (Followed::new(mode), Session::new());
                it.poll(&mut Session::new(), "set n 0 0 1\r\n5\r\n");
                it.poll(&mut Session::new(), "set k 0 0 1\r\n5\r\n");
                it.acknowledge();
                let (answer, progress) = it.poll(&mut session, request);
                assert_eq!(progress.hold, holds, "{mode:?} {request}");
                if holds {
                    assert!(it.poll(&mut session, "").1.hold);
                    it.acknowledge();
                    let (more, progress) = it.poll(&mut session, "");
                    assert!(more.is_empty() && !progress.hold, "{request}");
                }
                assert!(answer.ends_with("\r\n"), "{request}");
            }
        }
    }
}

/// The answer to a change waits for the answers of other groups before it is shown, and is held all the same.
#[test]
fn a_change_among_requests_of_other_groups_is_held() {
    for mode in [AckMode::None, AckMode::Deletes] {
        let (mut it, mut session) = (Followed::new(mode), Session::new());
        let (server, _) = member::<dashmap::Handle>(2, false, &[], usize::MAX);
        let host = &mut it.server.host;
        (host.leader, host.leads, host.shard_map) = (server.host.leader, true, divided(2));
        it.server.settings.forwards = true;
        // `a` belongs to the other group, `b` to this server.
        let (mut said, mut progress) = it.poll(&mut session, "get a\r\ndelete b\r\nget a\r\n");
        assert_eq!(progress.hold, mode == AckMode::Deletes);
        for _ in 0..20 {
            if progress.hold {
                assert!(it.poll(&mut session, "").1.hold && !said.contains("NOT_FOUND"), "{said}");
                it.acknowledge();
            }
            let rest = "get a\r\ndelete b\r\nget a\r\n".get(progress.consumed..).unwrap();
            let more;
            (more, progress) = it.poll(&mut session, rest);
            said.push_str(&more);
            if progress.consumed > 0 {
                break;
            }
        }
        assert_eq!(said, "END\r\nNOT_FOUND\r\nEND\r\n");
    }
}

/// A delete that finds nothing waits, too: a follower may have the item.
#[test]
fn a_delete_that_finds_nothing_is_held() {
    for request in ["delete none\r\n", "md none\r\n"] {
        let (mut it, mut session) = (Followed::new(AckMode::Deletes), Session::new());
        let (_, progress) = it.poll(&mut session, request);
        assert!(progress.hold, "{request}");
    }
}

#[test]
fn a_change_without_an_answer_holds_nobody_elses() {
    let (mut it, mut session) = (Followed::new(AckMode::Writes), Session::new());
    let (_, progress) = it.poll(&mut Session::new(), "set k 0 0 1 noreply\r\n1\r\n");
    assert!(!progress.hold);
    assert!(!it.poll(&mut session, "get k\r\n").1.hold);
}

#[test]
fn what_is_never_acknowledged_is_never_answered() {
    for is_resp in [false, true] {
        let mut it = Followed::new(AckMode::Writes);
        let mut session = if is_resp { Session::resp(0, false) } else { Session::new() };
        let set = if is_resp { "set k 1\r\nset l 1\r\n" } else { "set k 0 0 1\r\n1\r\nmn\r\n" };
        let (_, progress) = it.poll(&mut session, set);
        assert!(progress.hold);
        it.journals.acks().abandon();
        let (answer, progress) = it.poll(&mut session, "");
        assert_eq!((answer.as_str(), progress.hold, progress.next), ("", false, Next::Abandon));
        session.close(&it.server.host);
    }
}

#[test]
fn a_reply_is_dropped_if_leadership_ends_within_its_call() {
    for is_resp in [false, true] {
        let mut it = Followed::new(AckMode::Writes);
        let mut session = if is_resp { Session::resp(0, false) } else { Session::new() };
        let set = if is_resp { "set k 1\r\nset l 1\r\n" } else { "set k 0 0 1\r\n1\r\nmn\r\n" };
        it.journals.acks().abandon();
        let (answer, progress) = it.poll(&mut session, set);
        assert_eq!((answer.as_str(), progress.hold, progress.next), ("", false, Next::Abandon));
        session.close(&it.server.host);
    }
}
