//! Tests that a poll's replies are held until replicas acknowledge its changes, and that the
//! replies of a poll without changes are not held.

use super::leader::member;
use super::scattering::by_last_byte;
use crate::common::conversation::Conversation;
use crate::common::{Session, TestCache, TestEngine, TestServer, classes};
use larder_session::{Next, Progress, State};
use larder_store::cache::Cache;
use larder_store::journal::{AckMode, JournaledCache, Journals};
use larder_store::{Updates, dashmap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Each seed determines a random order of reads and acknowledgements.
const SEEDS: std::ops::Range<u64> = 1..100;

#[test]
fn a_reply_to_a_change_is_held_until_acknowledged() {
    let mut held = 0;
    for seed in SEEDS {
        let mut conversation = Conversation::new(seed, b"set k 0 0 1\r\n1\r\nmn\r\n");
        if conversation.run_until_held().is_none() {
            assert_eq!(conversation.output, b"STORED\r\nMN\r\n");
            continue;
        }
        held += 1;
        assert_eq!(conversation.session.state(), State::Blocked);
        let calls = conversation.calls.0.load(Ordering::Relaxed);
        let answers = conversation.output.clone();
        // While replies are held, polls do not answer later requests.
        conversation.unread.extend_from_slice(b"version\r\n");
        for _ in 0..3 {
            let progress = conversation.poll();
            assert!(progress.hold);
            assert_eq!((progress.consumed, &conversation.output), (0, &answers));
        }
        conversation.complete_all();
        assert_eq!(
            conversation.calls.0.load(Ordering::Relaxed),
            calls + 1,
            "the waker is called once"
        );
        let progress = conversation.poll();
        assert_eq!((progress.consumed, progress.hold, progress.next), (0, false, Next::Yield));
        assert_eq!(conversation.output, answers);
        while !matches!(conversation.poll().next, Next::Read { .. }) {}
        assert_eq!(conversation.output, b"STORED\r\nMN\r\nVERSION 1.6.45\r\n");
    }
    assert!(held > 10, "{held} were held");
}

#[test]
fn replies_without_a_change_are_not_held() {
    for seed in SEEDS {
        let requests = b"get k\r\nmg k v\r\nincr k 1\r\ntouch k 0\r\nmn\r\n";
        let mut conversation = Conversation::new(seed, requests);
        assert_eq!(conversation.run_until_held(), None);
        assert_eq!(conversation.output, b"END\r\nEN\r\nNOT_FOUND\r\nNOT_FOUND\r\nMN\r\n");
    }
}

#[test]
fn a_noreply_change_holds_no_reply() {
    for seed in SEEDS {
        let mut conversation = Conversation::new(seed, b"set k 0 0 1 noreply\r\n1\r\n");
        assert_eq!(conversation.run_until_held(), None);
        assert!(conversation.output.is_empty());
    }
}

#[test]
fn quit_behind_a_held_reply_closes_after_its_release() {
    let mut held = 0;
    for seed in SEEDS {
        let mut conversation = Conversation::new(seed, b"set k 0 0 1\r\n1\r\nquit\r\n");
        if conversation.run_until_held().is_some() {
            held += 1;
            conversation.complete_all();
            let progress = conversation.poll();
            assert_eq!((progress.consumed, progress.hold, progress.next), (0, false, Next::Close));
        }
        assert_eq!(conversation.output, b"STORED\r\n");
    }
    assert!(held > 10, "{held} were held");
}

#[test]
fn a_closed_session_waits_for_nothing() {
    let held = SEEDS.map(|seed| Conversation::new(seed, b"set k 0 0 1\r\n1\r\n"));
    let mut conversation = held
        .map(|mut conversation| (conversation.run_until_held().is_some(), conversation))
        .find_map(|(held, conversation)| held.then_some(conversation))
        .expect("one of the seeds holds the reply");
    conversation.session.close(&conversation.server.host);
    assert_eq!(conversation.session.state(), State::Waiting);
}

/// Checks that the flag `h` of a lookup does not report the lookup's own read. A lookup that
/// changes its item may have to wait between the read and the change of the item.
#[test]
fn a_waiting_lookup_counts_its_read_once() {
    for seed in SEEDS {
        let requests = b"set k 0 0 1\r\n1\r\nmd k I\r\nmg k h\r\n";
        let mut conversation = Conversation::new(seed, requests);
        while conversation.run_until_held().is_some() {
            conversation.complete_all();
        }
        assert_eq!(
            conversation.output.escape_ascii().to_string(),
            r"STORED\r\nHD\r\nHD h0 X W\r\n",
            "{seed}"
        );
    }
}

/// A session that has answered all requests does not wait for pending read-aheads.
#[test]
fn read_ahead_does_not_delay_an_answered_session() {
    for seed in SEEDS {
        let mut conversation =
            Conversation::new(seed, b"get a\r\nget b\r\nget c\r\nget d\r\nget e\r\n");
        loop {
            match conversation.poll().next {
                // Complete one read at a time. The other reads stay pending.
                Next::Wait => assert_eq!(conversation.storage.complete(1), 1),
                Next::Yield => (),
                Next::Read { .. } => break,
                next => panic!("{next:?}"),
            }
        }
        assert_eq!(
            (conversation.session.state(), &*conversation.output),
            (State::Waiting, &*b"END\r\n".repeat(5))
        );
    }
}

/// A cache with one follower. The test acknowledges changes instead of the follower.
struct Leader {
    journals: Arc<Journals>,
    server: TestServer,
}

const FOLLOWER: u64 = 7;

impl Leader {
    fn new(mode: AckMode) -> Self {
        let journals = Journals::new(1 << 16, 1);
        journals.acks().set_mode(mode);
        journals.acks().require(FOLLOWER);
        let config =
            dashmap::Config { limit_bytes: 1 << 20, cas: true, classes: classes(), seed: 1 };
        let cache = JournaledCache::new(dashmap::Cache::new(config), Arc::clone(&journals));
        let TestCache { cache, .. } = TestCache::new(cache);
        Self { server: TestServer::new(cache.engine(), 1 << 18, classes()), journals }
    }

    /// Polls a session with a request.
    fn poll(&mut self, session: &mut Session, request: &str) -> (String, Progress) {
        let mut output = Vec::new();
        let progress = self.server.poll(session, request.as_bytes(), &mut output);
        (String::from_utf8(output).unwrap(), progress)
    }

    fn acknowledge(&self) {
        let generation = self.server.engine.flush_generation();
        self.journals.acks().note(FOLLOWER, &self.journals.ends(), generation);
    }
}

#[test]
fn the_ack_mode_determines_held_replies() {
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
                let (mut leader, mut session) = (Leader::new(mode), Session::new());
                leader.poll(&mut Session::new(), "set n 0 0 1\r\n5\r\n");
                leader.poll(&mut Session::new(), "set k 0 0 1\r\n5\r\n");
                leader.acknowledge();
                let (answer, progress) = leader.poll(&mut session, request);
                assert_eq!(progress.hold, holds, "{mode:?} {request}");
                if holds {
                    assert!(leader.poll(&mut session, "").1.hold);
                    leader.acknowledge();
                    let (more, progress) = leader.poll(&mut session, "");
                    assert!(more.is_empty() && !progress.hold, "{request}");
                }
                assert!(answer.ends_with("\r\n"), "{request}");
            }
        }
    }
}

/// The reply to a change waits for earlier replies from other groups, and for the acknowledgement.
#[test]
fn a_change_in_a_scattered_batch_is_held() {
    for mode in [AckMode::None, AckMode::Deletes] {
        let (mut leader, mut session) = (Leader::new(mode), Session::new());
        let (server, _) = member(TestEngine::Dashmap, 2, false, &[], usize::MAX);
        let host = &mut leader.server.host;
        (host.leader, host.leads, host.shard_map) = (server.host.leader, true, by_last_byte(2));
        leader.server.settings.forwards = true;
        // `a` belongs to the other group, `b` to this server.
        let (mut replies, mut progress) =
            leader.poll(&mut session, "get a\r\ndelete b\r\nget a\r\n");
        assert_eq!(progress.hold, mode == AckMode::Deletes);
        for _ in 0..20 {
            if progress.hold {
                assert!(
                    leader.poll(&mut session, "").1.hold && !replies.contains("NOT_FOUND"),
                    "{replies}"
                );
                leader.acknowledge();
            }
            let rest = "get a\r\ndelete b\r\nget a\r\n".get(progress.consumed..).unwrap();
            let more;
            (more, progress) = leader.poll(&mut session, rest);
            replies.push_str(&more);
            if progress.consumed > 0 {
                break;
            }
        }
        assert_eq!(replies, "END\r\nNOT_FOUND\r\nEND\r\n");
    }
}

/// The reply to a delete of a missing item is held: a follower may still have the item.
#[test]
fn a_delete_of_a_missing_item_is_held() {
    for request in ["delete none\r\n", "md none\r\n"] {
        let (mut leader, mut session) = (Leader::new(AckMode::Deletes), Session::new());
        let (_, progress) = leader.poll(&mut session, request);
        assert!(progress.hold, "{request}");
    }
}

#[test]
fn a_noreply_change_does_not_hold_other_sessions() {
    let (mut leader, mut session) = (Leader::new(AckMode::Writes), Session::new());
    let (_, progress) = leader.poll(&mut Session::new(), "set k 0 0 1 noreply\r\n1\r\n");
    assert!(!progress.hold);
    assert!(!leader.poll(&mut session, "get k\r\n").1.hold);
}

#[test]
fn a_change_that_is_never_acknowledged_gets_no_reply() {
    for is_resp in [false, true] {
        let mut leader = Leader::new(AckMode::Writes);
        let mut session = if is_resp { Session::resp(0, false) } else { Session::new() };
        let set = if is_resp { "set k 1\r\nset l 1\r\n" } else { "set k 0 0 1\r\n1\r\nmn\r\n" };
        let (_, progress) = leader.poll(&mut session, set);
        assert!(progress.hold);
        leader.journals.acks().abandon();
        let (answer, progress) = leader.poll(&mut session, "");
        assert_eq!((answer.as_str(), progress.hold, progress.next), ("", false, Next::Abandon));
        session.close(&leader.server.host);
    }
}

#[test]
fn a_reply_is_dropped_if_leadership_ends_within_its_poll() {
    for is_resp in [false, true] {
        let mut leader = Leader::new(AckMode::Writes);
        let mut session = if is_resp { Session::resp(0, false) } else { Session::new() };
        let set = if is_resp { "set k 1\r\nset l 1\r\n" } else { "set k 0 0 1\r\n1\r\nmn\r\n" };
        // The session requests a waker after it has executed the changes and before it checks for
        // acknowledgements. The test ends the leadership at this point.
        let journals = Arc::clone(&leader.journals);
        let waker = || {
            journals.acks().abandon();
            Waker::noop().clone()
        };
        let mut output = b"unsent".to_vec();
        let progress =
            leader.server.poll_with_waker(&mut session, set.as_bytes(), &mut output, &waker);
        assert_eq!((progress.hold, progress.next), (false, Next::Abandon));
        assert_eq!(output, b"unsent");
        session.close(&leader.server.host);
    }
}
