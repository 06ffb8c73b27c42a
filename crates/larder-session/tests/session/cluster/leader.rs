//! The leader of a group in the process of the test, and kits that forward to it.

use crate::common::{TestClient, TestEngine, TestServer, new_server};
use larder_session::{ForwardId, ForwardOutcome, Route, Session};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// What becomes of requests, in turn.
type Fates = Arc<Mutex<Vec<ForwardOutcome>>>;

/// A server that several have.
pub(super) type Shared<E> = Arc<Mutex<TestServer<E>>>;

/// The leader of a group, in this process. Its answers come in parts of a few bytes.
struct Leader<E: TestEngine> {
    server: Shared<E>,
    peer: TestClient<E>,
    /// Requests in order, those of each [`Route::pass`] for themselves.
    passed: Vec<Requests>,
    passes: u64,
    looks: usize,
    is_stopped: bool,
    fates: Fates,
    part_len: usize,
}

struct Requests {
    number: ForwardId,
    request: Vec<u8>,
    is_complete: bool,
    answer: Option<Vec<u8>>,
    fate: ForwardOutcome,
    /// Turns in which nothing has come yet.
    delay: usize,
}

impl<E: TestEngine + Send + 'static> Route for Leader<E> {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId {
        assert!(self.passed.last().is_none_or(|last| last.is_complete), "one after the other");
        let failed = self.passed.iter().find(|before| before.fate != ForwardOutcome::Done);
        let fate = failed.map_or_else(|| self.next_fate(more), |failed| failed.fate);
        let number = ForwardId(self.passes);
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

    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
        let at = self.passed.iter().position(|one| one.number == of).expect("it was passed");
        let before = self.passed[..at].iter().filter(|one| one.answer.is_none()).count();
        if before == 0 || self.passed[at].fate == ForwardOutcome::Done {
            // Those before it are carried out first.
            (0..=at).for_each(|at| self.carry_out(at));
        }
        let one = &mut self.passed[at];
        one.delay = one.delay.saturating_sub(1);
        if one.fate != ForwardOutcome::Done {
            let is_over = one.is_complete
                || matches!(one.fate, ForwardOutcome::Retry | ForwardOutcome::NoLeader);
            if one.delay > 0 || !is_over {
                return ForwardOutcome::Pending;
            }
            let fate = one.fate;
            self.passed.remove(at);
            return fate;
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
        self.passed.remove(at);
        if self.peer.is_closed { ForwardOutcome::Close } else { ForwardOutcome::Done }
    }

    fn resume(&mut self) {
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
        if one.is_complete && one.answer.is_none() && one.fate == ForwardOutcome::Done {
            self.peer.send(&mut self.server.lock().unwrap(), &one.request);
            assert!(self.peer.unread.is_empty(), "whole requests are forwarded");
            one.answer = Some(std::mem::take(&mut self.peer.received));
        }
    }

    fn next_fate(&self, is_long: bool) -> ForwardOutcome {
        let fates = &mut self.fates.lock().unwrap();
        match fates.first() {
            // What is dropped while it comes is not sent again.
            Some(ForwardOutcome::Retry) if is_long => ForwardOutcome::Done,
            Some(_) => fates.remove(0),
            None => ForwardOutcome::Done,
        }
    }
}

/// A server whose items are at a leader, and that leader.
pub(super) fn follower<E: TestEngine + Send + 'static>(
    fates: &[ForwardOutcome],
    part_len: usize,
) -> (TestServer<E>, Shared<E>) {
    let (server, mut leaders) = member(1, false, fates, part_len);
    (server, leaders.remove(0))
}

/// A server whose requests go to the leaders of this many groups, and these leaders. `are_one`: all have the same items.
pub(super) fn member<E: TestEngine + Send + 'static>(
    groups: usize,
    are_one: bool,
    fates: &[ForwardOutcome],
    part_len: usize,
) -> (TestServer<E>, Vec<Shared<E>>) {
    let mut server = new_server::<E>();
    let new = || Arc::new(Mutex::new(new_server::<E>()));
    let leaders: Vec<_> =
        if are_one { vec![new(); groups] } else { (0..groups).map(|_| new()).collect() };
    let at = leaders.clone();
    let fates: Fates = Arc::new(Mutex::new(fates.to_vec()));
    server.settings.forwards = true;
    // What it waits for comes by itself.
    server.complete = Some(|_| ());
    server.host.leader = Some(Box::new(move |group, conversation| {
        let peer = TestClient { session: Session::forwarded(conversation), ..TestClient::new() };
        Box::new(Leader {
            server: Arc::clone(&at[usize::from(group.0)]),
            peer,
            passed: Vec::new(),
            passes: 0,
            looks: 0,
            is_stopped: false,
            fates: Arc::clone(&fates),
            part_len,
        })
    }));
    (server, leaders)
}

pub(super) fn holds(stream: &[u8], what: &[u8]) -> bool {
    stream.windows(what.len()).any(|bytes| bytes == what)
}
