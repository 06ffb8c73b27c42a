//! The route of one session's requests to the leader of a group.

use super::conversation::number_of;
use super::forwarder::Forwarder;
use super::link::Link;
use super::pending::{ForwardedBatch, RouteState, lock};
use larder_replica::Frame;
use larder_session::{Conversation, ForwardId, ForwardOutcome, Route};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

/// If the unsent output has at least this many bytes, sessions wait before they send more of a long
/// value.
const UPLOAD_PAUSE_LEN: usize = 1 << 20;
/// If the unsent output has more than this many bytes, new requests fail as if there were no
/// leader. The output includes requests from clients that have disconnected.
const REQUEST_REFUSAL_LEN: usize = 32 << 20;
/// After receiving this many reply bytes, a session sends a `Continue` frame before its next
/// requests.
const CREDIT_AFTER: usize = 16 << 10;

/// A session's route to the leader of a group.
#[derive(Debug)]
pub(super) struct RemoteRoute {
    forwarder: Forwarder,
    conversation: Conversation,
    state: Arc<Mutex<RouteState>>,
    /// The connection on which the conversation is open, and the number of the route. `None` before
    /// the first connection, or after this side has closed the conversation.
    open_route: Option<(Arc<Link>, u64)>,
}

impl RemoteRoute {
    pub(super) fn new(forwarder: Forwarder, conversation: Conversation) -> Self {
        Self { forwarder, conversation, state: Arc::default(), open_route: None }
    }

    /// Returns the current connection and the number of the route on it, or `None` if there is no
    /// connection. Opens the conversation on the connection if necessary. Call this only while all
    /// earlier requests are answered.
    fn link(&mut self) -> Option<(Arc<Link>, u64)> {
        let Some(link) = self.present_link() else {
            // Leave a retired connection: its end must not end requests that wait for the next
            // leader.
            self.leave();
            return None;
        };
        if let Some((open, route)) = &self.open_route
            && Arc::ptr_eq(open, &link)
            && lock(&link.routes).contains_key(route)
        {
            return self.open_route.clone();
        }
        self.leave();
        let route = self.forwarder.0.next_route.fetch_add(1, Ordering::Relaxed);
        // Set the route in the state before inserting it into the list: a retired connection ends
        // if it finds no unanswered request through the list.
        lock(&self.state).route = Some(route);
        lock(&link.routes).insert(route, Arc::clone(&self.state));
        self.open_route = Some((Arc::clone(&link), route));
        // If the retired connection ended before it received this conversation, no reply would
        // arrive.
        if link.is_over() || lock(&link.output).is_closed {
            self.leave();
            return None;
        }
        link.append(&Frame::Open { route, conversation: number_of(self.conversation) });
        self.open_route.clone()
    }

    fn present_link(&self) -> Option<Arc<Link>> {
        lock(&self.forwarder.0.state).link.clone()
    }

    /// Returns the connection for the next bytes. If earlier requests are unanswered, this is the
    /// connection on which they were sent, even if it is retired. Otherwise it is the current
    /// connection, or `None` if there is none.
    fn sending_link(&self) -> Option<Arc<Link>> {
        let of_unanswered = self.open_conversation().filter(|_| lock(&self.state).has_unanswered());
        of_unanswered.map(|(link, _)| link).or_else(|| self.present_link())
    }
}

impl Route for RemoteRoute {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> ForwardId {
        let is_full = self
            .sending_link()
            .is_some_and(|link| lock(&link.output).bytes.len() > REQUEST_REFUSAL_LEN);
        let (id, is_first) = {
            let mut state = lock(&self.state);
            let is_answered = |batch: &ForwardedBatch| batch.outcome == Some(ForwardOutcome::Done);
            let is_first = state.batches.iter().all(is_answered);
            let outcome = state.failure().or(is_full.then_some(ForwardOutcome::NoLeader));
            if is_first {
                state.start(waker);
                state.round += 1;
            }
            let id = ForwardId(state.next_id);
            state.next_id += 1;
            state.batches.push_back(ForwardedBatch { id, reply: Vec::new(), outcome });
            if outcome.is_some() {
                state.wake();
                return id;
            }
            (id, is_first)
        };
        if is_first {
            self.pass_first(bytes, more);
        } else if let Some((link, route)) = self.open_conversation() {
            self.send(&link, route, bytes, more);
        }
        // Without an open conversation, nothing is sent: earlier requests wait for a leader, and
        // the new ones will get the same outcome.
        id
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        lock(&self.state).waker = Some(waker.clone());
        // If the conversation has ended, its requests have an outcome already.
        if let Some((link, route)) = self.open_conversation() {
            link.send(route, bytes, more);
        }
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        let Some(link) = self.sending_link() else {
            let has_ended = lock(&self.forwarder.0.state).has_ended;
            {
                let mut state = lock(&self.state);
                state.start(waker);
                let has_waited =
                    state.waiting_since.is_some_and(|since| self.forwarder.has_waited(since));
                if has_waited || has_ended {
                    return true;
                }
            }
            self.forwarder.wait(&self.state, Duration::ZERO);
            return false;
        };
        let mut output = lock(&link.output);
        let has_room = output.is_closed || output.bytes.len() < UPLOAD_PAUSE_LEN;
        if !has_room {
            output.waiting.push(waker.clone());
        }
        has_room
    }

    fn take(&mut self, of: ForwardId, into: &mut Vec<u8>) -> ForwardOutcome {
        let mut state = lock(&self.state);
        let Some(at) = state.batches.iter().position(|batch| batch.id == of) else {
            return ForwardOutcome::ConnectionLost;
        };
        let Some(batch) = state.batches.get_mut(at) else { return ForwardOutcome::ConnectionLost };
        into.append(&mut batch.reply);
        let outcome = batch.outcome.unwrap_or(ForwardOutcome::Pending);
        if outcome == ForwardOutcome::More {
            batch.outcome = None;
        } else if outcome != ForwardOutcome::Pending {
            state.batches.remove(at);
        }
        if matches!(outcome, ForwardOutcome::NoLeader | ForwardOutcome::ConnectionLost) {
            self.forwarder.0.failures.fetch_add(1, Ordering::Relaxed);
        }
        state.awaited = (outcome == ForwardOutcome::Pending).then_some(of);
        // The peer answers in order, so an earlier paused reply blocks this one. If the session has
        // sent this request again after a change of the owner, it takes the earlier reply only
        // after this one. Resume the earlier reply now.
        let mut earlier = state.batches.iter_mut().take(at);
        let is_paused = |batch: &&mut ForwardedBatch| batch.outcome == Some(ForwardOutcome::More);
        if outcome == ForwardOutcome::Pending
            && let Some(paused) = earlier.find(is_paused)
        {
            paused.outcome = None;
            drop(state);
            self.resume();
            return outcome;
        }
        if !matches!(
            outcome,
            ForwardOutcome::Pending | ForwardOutcome::Retry | ForwardOutcome::ConnectionLost
        ) {
            state.waiting_since = None;
        }
        outcome
    }

    fn resume(&mut self) {
        lock(&self.state).received = 0;
        if let Some((link, route)) = &self.open_route {
            link.append(&Frame::Continue { route: *route });
        }
    }

    fn forget(&mut self) {
        // Close the conversation, so that late replies do not reach other requests.
        self.leave();
        lock(&self.state).batches.clear();
    }
}

impl RemoteRoute {
    /// Sends requests while all earlier ones are answered. Without a connection, the session waits
    /// for a leader; if it has waited for too long, the requests end with `NoLeader`.
    fn pass_first(&mut self, bytes: &[u8], more: bool) {
        let Some((link, route)) = self.link() else {
            let mut state = lock(&self.state);
            if state.waiting_since.is_some_and(|since| self.forwarder.has_waited(since)) {
                return state.end(ForwardOutcome::NoLeader);
            }
            drop(state);
            return self.forwarder.wait(&self.state, Duration::ZERO);
        };
        // Send `Continue` in time: without it, the peer pauses its replies when it has sent too
        // many bytes.
        let received = lock(&self.state).received;
        if received >= CREDIT_AFTER {
            lock(&self.state).received = 0;
            link.append(&Frame::Continue { route });
        }
        self.send(&link, route, bytes, more);
    }

    fn send(&self, link: &Link, route: u64, bytes: &[u8], more: bool) {
        self.forwarder.0.forwarded.fetch_add(1, Ordering::Relaxed);
        // If the connection is closed already, these requests get the same outcome as its other
        // requests.
        link.send(route, bytes, more);
    }

    /// Returns the connection and route of the conversation, or `None` if this side has opened no
    /// conversation, the peer has ended it, or the connection is closed.
    fn open_conversation(&self) -> Option<(Arc<Link>, u64)> {
        let is_open = |(link, route): &&(Arc<Link>, u64)| lock(&link.routes).contains_key(route);
        self.open_route.as_ref().filter(is_open).cloned()
    }

    /// Closes the conversation at the peer.
    fn leave(&mut self) {
        if let Some((link, route)) = self.open_route.take() {
            lock(&link.routes).remove(&route);
            link.append(&Frame::Close { route });
            lock(&self.state).route = None;
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
    use crate::error::{LocalError, PeerError};
    use crate::forward::earlier_links::EarlierLinks;
    use crate::forward::link_driver::LinkDriver;
    use crate::peers::{HandshakeLimit, PeerStream, Stop};
    use larder_operations::{SubscriptionOptions, Tracker};
    use larder_replica::{LinkLeases, Process, ReplyEnd};
    use larder_session::AnsweredPart;
    use larder_support::clock::boot_millis;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Checks that a session is woken when the reply that it waits for arrives, even if an older
    /// batch of the session has no reply yet. After a change of owner, a client's requests may
    /// reach the new owner out of order.
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

    /// Checks that a paused earlier reply does not block the reply that a session waits for.
    #[test]
    fn an_earlier_paused_reply_continues() {
        let (forwarder, wakes) = (Forwarder::default(), Arc::new(Wakes::default()));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (link, _leader) = connected(&forwarder);
        let [last, behind, first] = [&b"get c\r\n"[..], b"get b\r\n", b"get a\r\n"]
            .map(|request| route.pass(request, false, &waker));
        let answer = |route: &RemoteRoute, outcome| lock(&route.state).answer(b"x", Some(outcome));
        let continues = || {
            let output = lock(&link.output);
            let (mut rest, mut count) = (output.bytes.as_slice(), 0);
            while let Some((frame, len)) = Frame::read(rest, 1 << 20).unwrap() {
                count += usize::from(matches!(frame, Frame::Continue { .. }));
                rest = &rest[len..];
            }
            count
        };
        answer(&route, ForwardOutcome::Done);
        assert_eq!(route.take(first, &mut Vec::new()), ForwardOutcome::Pending);
        for count in 1..3 {
            wakes.0.store(0, Ordering::Relaxed);
            answer(&route, ForwardOutcome::More);
            assert!(wakes.0.load(Ordering::Relaxed) > 0, "the peer waits for the session");
            assert_eq!(route.take(first, &mut Vec::new()), ForwardOutcome::Pending);
            assert_eq!(continues(), count);
        }
        answer(&route, ForwardOutcome::Done);
        answer(&route, ForwardOutcome::Done);
        let mut replies = Vec::new();
        assert_eq!(route.take(first, &mut replies), ForwardOutcome::Done);
        assert_eq!(route.take(behind, &mut replies), ForwardOutcome::Done);
        assert_eq!(route.take(last, &mut replies), ForwardOutcome::Done);
        assert_eq!(replies, b"xxxxx");
        assert_eq!(continues(), 2);
    }

    /// A leader that closes a conversation drops all later requests. A session must not wait for
    /// their replies before it closes its client's connection.
    #[test]
    fn a_closed_conversation_ends_later_requests() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (link, _leader) = connected(&forwarder);
        let [first, second] = [&b"incr a 1\r\n"[..], b"incr b 1\r\n"]
            .map(|request| route.pass(request, false, &waker));
        lock(&route.state).answer(b"", Some(ForwardOutcome::Close));
        assert_eq!(route.take(second, &mut Vec::new()), ForwardOutcome::Retry);
        let third = route.pass(b"incr c 1\r\n", false, &waker);
        assert_eq!(route.take(third, &mut Vec::new()), ForwardOutcome::Retry);
        assert_eq!(route.take(first, &mut Vec::new()), ForwardOutcome::Close);
        assert_eq!(requests_on(&link), b"incr a 1\r\nincr b 1\r\n");
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
        assert_eq!(forwarder.0.failures.load(Ordering::Relaxed), 2);
    }

    /// Sets a new connection as the forwarder's current one. Returns the connection, and the
    /// leader's end of it.
    fn connected(forwarder: &Forwarder) -> (Arc<Link>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        let stop = Stop::new().unwrap();
        let limit = HandshakeLimit::new(Duration::from_secs(30), &stop);
        let leases = LinkLeases::new(0, 0, boot_millis());
        let stream = PeerStream::accept(near, None, &limit).unwrap();
        let link = Arc::new(Link::new(stream, None, leases, Waker::noop().clone()));
        lock(&forwarder.0.state).link = Some(Arc::clone(&link));
        (link, listener.accept().unwrap().0)
    }

    /// Drives a connection until it ends. Returns the reason.
    fn end_of(link: &Arc<Link>, forwarder: &Forwarder) -> PeerError {
        let stop = Arc::new(Stop::new().unwrap());
        let mut driver = LinkDriver::new(Arc::clone(link), forwarder.clone(), Vec::new(), stop);
        loop {
            match driver.transfer(&mut vec![0; 4096]) {
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(reason) => return reason,
            }
        }
    }

    /// Returns the request bytes that wait to be sent on a connection.
    fn requests_on(link: &Link) -> Vec<u8> {
        let (output, mut requests) = (lock(&link.output), Vec::new());
        let mut rest = output.bytes.as_slice();
        while let Some((frame, len)) = Frame::read(rest, 1 << 20).unwrap() {
            if let Frame::Request { bytes, .. } = frame {
                requests.extend_from_slice(bytes);
            }
            rest = &rest[len..];
        }
        requests
    }

    #[test]
    fn the_rest_of_a_value_follows_its_start_on_a_retired_connection() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (former, _leader) = connected(&forwarder);
        route.pass(b"set a 0 0 5\r\nab", true, &waker);
        forwarder.retire();
        let (next, _leader) = connected(&forwarder);
        assert!(route.has_room(&waker));
        route.pass_rest(b"cde\r\n", false, &waker);
        assert_eq!(requests_on(&former), b"set a 0 0 5\r\nabcde\r\n");
        assert_eq!(requests_on(&next), b"");
    }

    #[test]
    fn the_end_of_a_retired_connection_spares_requests_that_wait_for_the_next_leader() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (former, _leader) = connected(&forwarder);
        let first = route.pass(b"get a\r\n", false, &waker);
        lock(&route.state).answer(b"END\r\n", Some(ForwardOutcome::Done));
        assert_eq!(route.take(first, &mut Vec::new()), ForwardOutcome::Done);
        forwarder.retire();
        let second = route.pass(b"get b\r\n", false, &waker);
        former.close();
        former.end_requests();
        assert_eq!(route.take(second, &mut Vec::new()), ForwardOutcome::Pending);
    }

    /// A session may look up the connection before the connection is retired, and send its requests
    /// only after the connection's reading thread has found no unanswered request and has ended.
    #[test]
    fn the_end_of_a_retired_connection_spares_requests_that_come_too_late() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (link, _leader) = connected(&forwarder);
        link.retire();
        let reason = end_of(&link, &forwarder);
        assert!(matches!(reason, PeerError::Local(LocalError::Replaced)), "{reason}");
        let request = route.pass(b"incr a 1\r\n", false, &waker);
        assert_eq!(requests_on(&link), b"");
        link.close();
        link.end_requests();
        assert_eq!(route.take(request, &mut Vec::new()), ForwardOutcome::Pending);
    }

    #[test]
    fn a_retired_connection_ends_when_its_requests_have_results() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (former, mut leader) = connected(&forwarder);
        let request = route.pass(b"get a\r\n", false, &waker);
        forwarder.retire();
        let number = former.has_unanswered().then(|| route.open_route.as_ref().unwrap().1).unwrap();
        let mut frame = Vec::new();
        let (end, bytes) = (ReplyEnd::Done, b"END\r\n");
        Frame::Reply { route: number, end, bytes }.write(&mut frame);
        leader.write_all(&frame).unwrap();
        let reason = end_of(&former, &forwarder);
        assert!(matches!(reason, PeerError::Local(LocalError::Replaced)), "{reason}");
        let mut answer = Vec::new();
        assert_eq!(route.take(request, &mut answer), ForwardOutcome::Done);
        assert_eq!(answer, b"END\r\n");
    }

    /// Sends a frame as the leader, closes the leader's sending side, and reads the connection
    /// `former` to its end.
    fn read_frame(
        former: &Arc<Link>,
        forwarder: &Forwarder,
        leader: &mut TcpStream,
        frame: &Frame<'_>,
    ) {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        leader.write_all(&bytes).unwrap();
        leader.shutdown(std::net::Shutdown::Write).unwrap();
        end_of(former, forwarder);
    }

    #[test]
    fn requests_that_the_peer_has_not_executed_are_returned() {
        for (answered, is_planned) in [(0, false), (7, true)] {
            let forwarder = Forwarder::default();
            let waker = Waker::from(Arc::new(Wakes::default()));
            let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
            let (link, mut leader) = connected(&forwarder);
            let request = route.pass(b"get a\r\nget b\r\n", false, &waker);
            let number = route.open_route.as_ref().unwrap().1;
            let moved = Frame::Moved { route: number, answered, keys: 0, found: 0, is_planned };
            read_frame(&link, &forwarder, &mut leader, &moved);
            let outcome = route.take(request, &mut Vec::new());
            let part = AnsweredPart { len: 7, keys: 0, found: 0 };
            match answered {
                0 => assert_eq!(outcome, ForwardOutcome::Pending, "the session waits"),
                _ => assert_eq!(outcome, ForwardOutcome::RetryRest(part)),
            }
            assert_eq!(forwarder.retry_time().as_secs(), if is_planned { 6 } else { 1 });
        }
    }

    /// A leader that leads again keeps its connection. A second connection would end the first one
    /// and lose its requests.
    #[test]
    fn a_retired_connection_is_used_again() {
        let forwarder = Forwarder::default();
        let waker = Waker::from(Arc::new(Wakes::default()));
        let mut route = RemoteRoute::new(forwarder.clone(), Conversation::Memcached);
        let (link, _leader) = connected(&forwarder);
        let process = Process { node: "n1".to_owned(), incarnation: 1 };
        let mut earlier = EarlierLinks::default();
        earlier.note_connected(&process, &link);
        let request = route.pass(b"get a\r\n", false, &waker);
        forwarder.retire();
        assert!(earlier.revive(None).is_none());
        let (of, revived) = earlier.revive(Some(&process)).unwrap();
        assert!(of == process && Arc::ptr_eq(&revived, &link));
        forwarder.make_current(&revived);
        assert_eq!(route.take(request, &mut Vec::new()), ForwardOutcome::Pending);
        forwarder.retire();
        link.close();
        assert!(earlier.revive(Some(&process)).is_none(), "it has failed");
    }

    /// Checks that a reused connection stops receiving all changes if no client needs them any
    /// more.
    #[test]
    fn a_connection_that_is_used_again_requests_the_changes_that_clients_need() {
        let tracker = Arc::new(Tracker::new(1 << 20));
        let forwarder = Forwarder::tracking(&tracker);
        let (link, _leader) = connected(&forwarder);
        let requests = || {
            let (output, mut requests) = (lock(&link.output), Vec::new());
            let mut rest = output.bytes.as_slice();
            while let Some((frame, len)) = Frame::read(rest, 1 << 20).unwrap() {
                if let Frame::TrackAll(all) = frame {
                    requests.push(all);
                }
                rest = &rest[len..];
            }
            requests
        };
        let options =
            SubscriptionOptions { connection: 1, receiver: 1, no_loop: false, is_node: false };
        let subscription = tracker.subscribe(options, vec![Box::default()]);
        forwarder.request_changes();
        forwarder.request_changes();
        assert_eq!(requests(), [true]);
        forwarder.retire();
        tracker.unsubscribe(&subscription);
        assert!(link.revive());
        forwarder.make_current(&link);
        forwarder.request_changes();
        assert_eq!(requests(), [true, false]);
    }

    #[test]
    fn a_retired_connection_that_ends_is_not_used_again() {
        let forwarder = Forwarder::default();
        let (link, _leader) = connected(&forwarder);
        let process = Process { node: "n1".to_owned(), incarnation: 1 };
        let mut earlier = EarlierLinks::default();
        earlier.note_connected(&process, &link);
        forwarder.retire();
        let reason = end_of(&link, &forwarder);
        assert!(matches!(reason, PeerError::Local(LocalError::Replaced)), "{reason}");
        assert!(earlier.revive(Some(&process)).is_none());
    }
}
