//! The route of one session's requests to the leader of a group.

use super::conversation::number_of;
use super::forwarder::{Forwarder, WAIT_MAX};
use super::link::Link;
use super::pending::{Answers, RouteState, lock};
use larder_replica::Frame;
use larder_session::{Conversation, ForwardId, ForwardOutcome, Route};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

/// Bytes that may wait to be sent before sessions must wait with more of a long value.
const OUTPUT_MAX: usize = 1 << 20;
/// While so many bytes wait to be sent, no requests are accepted. Those of clients that have disconnected are among
/// them.
const OUTPUT_LIMIT: usize = 32 << 20;
/// After so many bytes of answers the next requests ask for more.
const CREDIT_AFTER: usize = 16 << 10;

/// A session's route to the leader of a group.
#[derive(Debug)]
pub(super) struct RemoteRoute {
    forwarder: Forwarder,
    conversation: Conversation,
    state: Arc<Mutex<RouteState>>,
    /// The connection, and the number of the route on it.
    on: Option<(Arc<Link>, u64)>,
}

impl RemoteRoute {
    pub(super) fn new(forwarder: Forwarder, conversation: Conversation) -> Self {
        Self { forwarder, conversation, state: Arc::default(), on: None }
    }

    /// The present connection; opens the conversation on it, if that is not done.
    fn link(&mut self) -> Option<(Arc<Link>, u64)> {
        let link = lock(&self.forwarder.0.state).link.clone()?;
        if let Some((on, route)) = &self.on
            && Arc::ptr_eq(on, &link)
            && lock(&link.routes).contains_key(route)
        {
            return self.on.clone();
        }
        self.leave();
        let route = self.forwarder.0.next_route.fetch_add(1, Ordering::Relaxed);
        lock(&link.routes).insert(route, Arc::clone(&self.state));
        if lock(&link.output).is_closed {
            lock(&link.routes).remove(&route);
            return None;
        }
        lock(&self.state).route = Some(route);
        link.append(&Frame::Open { route, conversation: number_of(self.conversation) });
        self.on = Some((link, route));
        self.on.clone()
    }
}

impl Route for RemoteRoute {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId {
        let link = lock(&self.forwarder.0.state).link.clone();
        let is_full = link.is_some_and(|link| lock(&link.output).bytes.len() > OUTPUT_LIMIT);
        let (number, is_first) = {
            let mut state = lock(&self.state);
            let is_answered = |answers: &Answers| {
                matches!(answers.routed, Some(ForwardOutcome::Done | ForwardOutcome::Close))
            };
            let is_first = state.passed.iter().all(is_answered);
            let routed = state.failure().or(is_full.then_some(ForwardOutcome::NoLeader));
            if is_first {
                state.begin(waker);
                state.round += 1;
            }
            let to = ForwardId(state.passes);
            state.passes += 1;
            state.passed.push_back(Answers { to, bytes: Vec::new(), routed });
            if routed.is_some() {
                state.wake();
                return to;
            }
            (to, is_first)
        };
        if is_first {
            self.pass_first(bytes, more);
        } else if let Some((link, route)) = self.open_conversation() {
            self.send(&link, route, bytes, more);
        }
        // Otherwise earlier requests wait for a leader, and these get the same result.
        number
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        lock(&self.state).waker = Some(waker.clone());
        // If the conversation has ended, its requests have a result already.
        if let Some((link, route)) = self.open_conversation() {
            link.send(route, bytes, more);
        }
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        let (link, has_ended) = {
            let state = lock(&self.forwarder.0.state);
            (state.link.clone(), state.has_ended)
        };
        let Some(link) = link else {
            {
                let mut state = lock(&self.state);
                state.begin(waker);
                let has_waited = state.waits_since.is_some_and(|since| since.elapsed() > WAIT_MAX);
                if has_waited || has_ended {
                    return true;
                }
            }
            self.forwarder.wait(&self.state, Duration::ZERO);
            return false;
        };
        let mut output = lock(&link.output);
        let has_room = output.is_closed || output.bytes.len() < OUTPUT_MAX;
        if !has_room {
            output.waiting.push(waker.clone());
        }
        has_room
    }

    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
        let mut state = lock(&self.state);
        let Some(at) = state.passed.iter().position(|answers| answers.to == of) else {
            return ForwardOutcome::ConnectionLost;
        };
        let Some(answers) = state.passed.get_mut(at) else { return ForwardOutcome::ConnectionLost };
        into.append(&mut answers.bytes);
        let routed = answers.routed.unwrap_or(ForwardOutcome::Pending);
        if routed == ForwardOutcome::More {
            answers.routed = None;
        } else if routed != ForwardOutcome::Pending {
            state.passed.remove(at);
        }
        state.awaited = (routed == ForwardOutcome::Pending).then_some(of);
        if !matches!(
            routed,
            ForwardOutcome::Pending | ForwardOutcome::Retry | ForwardOutcome::ConnectionLost
        ) {
            state.waits_since = None;
        }
        routed
    }

    fn resume(&mut self) {
        lock(&self.state).received = 0;
        if let Some((link, route)) = &self.on {
            link.append(&Frame::Continue { route: *route });
        }
    }

    fn forget(&mut self) {
        // Late answers must not reach other requests.
        self.leave();
        lock(&self.state).passed.clear();
    }
}

impl RemoteRoute {
    /// Sends requests before which no others wait for answers, or waits for a leader.
    fn pass_first(&mut self, bytes: &[u8], more: bool) {
        let Some((link, route)) = self.link() else {
            let mut state = lock(&self.state);
            if state.waits_since.is_some_and(|since| since.elapsed() > WAIT_MAX) {
                return state.end(ForwardOutcome::NoLeader);
            }
            drop(state);
            return self.forwarder.wait(&self.state, Duration::ZERO);
        };
        // The peer stops when so much is under way that this node may not have room for it.
        let received = lock(&self.state).received;
        if received >= CREDIT_AFTER {
            lock(&self.state).received = 0;
            link.append(&Frame::Continue { route });
        }
        self.send(&link, route, bytes, more);
    }

    fn send(&self, link: &Link, route: u64, bytes: &[u8], more: bool) {
        self.forwarder.0.forwarded.fetch_add(1, Ordering::Relaxed);
        link.send(route, bytes, more);
        // The connection may have ended before the route was open on it.
        if lock(&link.output).is_closed {
            lock(&self.state).end(ForwardOutcome::ConnectionLost);
        }
    }

    /// The open conversation, unless the peer has ended it.
    fn open_conversation(&self) -> Option<(Arc<Link>, u64)> {
        let is_open = |(link, route): &&(Arc<Link>, u64)| lock(&link.routes).contains_key(route);
        self.on.as_ref().filter(is_open).cloned()
    }

    /// Ends the conversation at the peer.
    fn leave(&mut self) {
        if let Some((link, route)) = self.on.take() {
            lock(&link.routes).remove(&route);
            link.append(&Frame::Close { route });
        }
    }
}

impl Drop for RemoteRoute {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests whose key has moved are sent behind those that the new group has already, though the client sent them
    /// before.
    #[test]
    fn a_session_is_woken_for_the_answer_that_it_waits_for() {
        let forwarder = Forwarder::default();
        let mut route = RemoteRoute::new(forwarder, Conversation::Memcached);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let woken = || wakes.0.swap(0, Ordering::Relaxed) > 0;
        let (behind, first) =
            (route.pass(b"get b", false, &waker), route.pass(b"get a", false, &waker));
        let answer =
            |route: &RemoteRoute| lock(&route.state).answer(b"END", Some(ForwardOutcome::Done));
        let mut answers = Vec::new();
        assert_eq!(route.take(first, &mut answers), ForwardOutcome::Pending);
        answer(&route);
        woken();
        assert_eq!(route.take(first, &mut answers), ForwardOutcome::Pending);
        answer(&route);
        assert!(woken());
        assert_eq!(route.take(first, &mut answers), ForwardOutcome::Done);
        assert_eq!(route.take(behind, &mut answers), ForwardOutcome::Done);
    }

    #[test]
    fn requests_fail_at_once_after_shutdown() {
        let forwarder = Forwarder::default();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Gateway);
        let before = route.pass(b"get a", false, &waker);
        assert_eq!(route.take(before, &mut Vec::new()), ForwardOutcome::Pending);
        forwarder.shut_down();
        assert!(wakes.0.swap(0, Ordering::Relaxed) > 0);
        assert_eq!(route.take(before, &mut Vec::new()), ForwardOutcome::NoLeader);
        assert!(route.has_room(&waker), "there is nothing to wait for");
        let after = route.pass(b"get a", false, &waker);
        assert_eq!(route.take(after, &mut Vec::new()), ForwardOutcome::NoLeader);
    }
}
