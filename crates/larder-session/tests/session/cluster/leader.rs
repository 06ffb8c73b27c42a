//! Leaders of groups in the test's process, and servers that forward requests to them.

use crate::common::{TestCache, TestClient, TestEngine, TestServer, new_server};
use larder_session::{ForwardId, ForwardOutcome, Route, Session};
use larder_store::cache::Cache as _;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// The outcomes of the next calls to [`Route::pass`], in order.
type Outcomes = Arc<Mutex<Vec<ForwardOutcome>>>;

/// A server that the test shares with the routes to it.
pub(super) type Shared = Arc<Mutex<TestServer>>;

/// A route to the leader of a group in this process. Replies arrive in parts of at most `part_len`
/// bytes.
struct Leader {
    server: Shared,
    client: TestClient,
    /// The requests of each [`Route::pass`], in order.
    requests: Vec<Requests>,
    passes: u64,
    room_checks: usize,
    is_stopped: bool,
    outcomes: Outcomes,
    part_len: usize,
}

struct Requests {
    number: ForwardId,
    request: Vec<u8>,
    is_complete: bool,
    answer: Option<Vec<u8>>,
    outcome: ForwardOutcome,
    /// The number of further calls to [`Route::take`], up to and including the first call that may
    /// return the reply.
    delay: usize,
}

impl Route for Leader {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId {
        assert!(
            self.requests.last().is_none_or(|last| last.is_complete),
            "the previous request is complete"
        );
        let failed = self.requests.iter().find(|before| before.outcome != ForwardOutcome::Done);
        let outcome = failed.map_or_else(|| self.next_outcome(), |failed| failed.outcome);
        let number = ForwardId(self.passes);
        let request = bytes.to_vec();
        let (is_complete, answer, delay) = (!more, None, 2);
        self.requests.push(Requests { number, request, is_complete, answer, outcome, delay });
        self.passes += 1;
        waker.wake_by_ref();
        number
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        let last = self.requests.last_mut().expect("a request was passed");
        assert!(!last.is_complete, "the request is incomplete");
        last.request.extend_from_slice(bytes);
        last.is_complete = !more;
        waker.wake_by_ref();
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        waker.wake_by_ref();
        self.room_checks += 1;
        !self.room_checks.is_multiple_of(3)
    }

    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
        let at = self
            .requests
            .iter()
            .position(|one| one.number == of)
            .expect("the requests were passed");
        let before = self.requests[..at].iter().filter(|one| one.answer.is_none()).count();
        if before == 0 || self.requests[at].outcome == ForwardOutcome::Done {
            // The leader executes earlier requests first.
            (0..=at).for_each(|at| self.execute(at));
        }
        let one = &mut self.requests[at];
        one.delay = one.delay.saturating_sub(1);
        if one.outcome != ForwardOutcome::Done {
            let is_over = one.is_complete
                || matches!(one.outcome, ForwardOutcome::Retry | ForwardOutcome::NoLeader);
            if one.delay > 0 || !is_over {
                return ForwardOutcome::Pending;
            }
            let outcome = one.outcome;
            self.requests.remove(at);
            return outcome;
        }
        let Some(answer) = &mut one.answer else { return ForwardOutcome::Pending };
        if one.delay > 0 || self.is_stopped {
            return ForwardOutcome::Pending;
        }
        into.extend(answer.drain(..self.part_len.min(answer.len())));
        if !answer.is_empty() {
            self.is_stopped = true;
            return ForwardOutcome::More;
        }
        self.requests.remove(at);
        if self.client.is_closed { ForwardOutcome::Close } else { ForwardOutcome::Done }
    }

    fn resume(&mut self) {
        assert!(self.is_stopped, "sessions resume only after `More`");
        self.is_stopped = false;
    }

    fn forget(&mut self) {
        assert!(
            !self.requests.iter().any(|one| one.answer.is_some()),
            "sessions forget no reply that has arrived"
        );
        self.requests.clear();
    }
}

impl Leader {
    fn execute(&mut self, at: usize) {
        let one = &mut self.requests[at];
        if one.is_complete && one.answer.is_none() && one.outcome == ForwardOutcome::Done {
            self.client.send(&mut self.server.lock().unwrap(), &one.request);
            assert!(self.client.unread.is_empty(), "sessions forward complete requests");
            one.answer = Some(std::mem::take(&mut self.client.received));
        }
    }

    fn next_outcome(&self) -> ForwardOutcome {
        let outcomes = &mut self.outcomes.lock().unwrap();
        if outcomes.is_empty() { ForwardOutcome::Done } else { outcomes.remove(0) }
    }
}

/// Returns a forwarding server and the leader to which it forwards requests.
pub(super) fn follower(
    engine: TestEngine,
    outcomes: &[ForwardOutcome],
    part_len: usize,
) -> (TestServer, Shared) {
    let (server, mut leaders) = member(engine, 1, false, outcomes, part_len);
    (server, leaders.remove(0))
}

/// Returns a forwarding server and the leaders of the `groups` groups to which it forwards
/// requests. If `are_one`, a single server leads all groups.
pub(super) fn member(
    engine: TestEngine,
    groups: usize,
    are_one: bool,
    outcomes: &[ForwardOutcome],
    part_len: usize,
) -> (TestServer, Vec<Shared>) {
    let mut server = new_server(engine);
    let new = || Arc::new(Mutex::new(new_server(engine)));
    let leaders: Vec<_> =
        if are_one { vec![new(); groups] } else { (0..groups).map(|_| new()).collect() };
    let at = leaders.clone();
    let outcomes: Outcomes = Arc::new(Mutex::new(outcomes.to_vec()));
    server.settings.forwards = true;
    // The leader wakes the session itself. When the session waits for the leader, the test has
    // nothing to complete.
    server.complete = server.complete.or_else(|| Some(Arc::new(|| ())));
    server.host.leader = Some(Box::new(move |group, conversation| {
        let client =
            TestClient { session: Session::forwarded(conversation, None), ..TestClient::new() };
        Box::new(Leader {
            server: Arc::clone(&at[usize::from(group.0)]),
            client,
            requests: Vec::new(),
            passes: 0,
            room_checks: 0,
            is_stopped: false,
            outcomes: Arc::clone(&outcomes),
            part_len,
        })
    }));
    (server, leaders)
}

/// Gives a server and its leader the same new cache.
pub(super) fn share_items(engine: TestEngine, server: &mut TestServer, leader: &mut TestServer) {
    let TestCache { cache, complete } = engine.cache();
    (server.engine, leader.engine) = (cache.engine(), cache.engine());
    if complete.is_some() {
        (server.complete, leader.complete) = (complete.clone(), complete);
    }
}

/// Returns whether a stream contains requests whose replies list the items of the receiving server
/// only.
pub(super) fn is_of_one_server(stream: &[u8]) -> bool {
    [&b"metadump"[..], b"mgdump"].iter().any(|part| holds(stream, part))
}

/// Returns whether replies to a stream may contain CAS values. CAS values depend on the order in
/// which different items change.
pub(super) fn shows_cas(stream: &[u8]) -> bool {
    let requests = [&b"gets"[..], b"gats", b"\x80", b" c", b"cas ", b"me "];
    requests.iter().any(|part| holds(stream, part))
}

fn holds(stream: &[u8], part: &[u8]) -> bool {
    stream.windows(part.len()).any(|bytes| bytes == part)
}
