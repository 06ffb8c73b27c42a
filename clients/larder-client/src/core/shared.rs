//! A connection that several calls share.
//!
//! ```text
//!   push() ─▶ Queue ── take(), all at once ─▶ Exchange ─▶ output ─▶ server
//!     │         │                                │
//!     │         └─ withdraw(): nothing was sent  └─ next(): the replies to the oldest call
//!     │
//!     └─ by any caller                              by the owner of the socket
//! ```
//! Each call has a ticket of type `T`. The client delivers the replies to the caller through this
//! ticket.

use crate::core::connection::{Connection, InvalidReply, shown};
use crate::core::operation::Operation;
use crate::core::outcome::{CallFailure, FailedCall, Progress};
use crate::error::ErrorKind;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of calls under way on a connection, including calls whose callers have given
/// up.
pub(crate) const CALLS_MAX: usize = 1024;

/// When a call chooses a slot, a slot without calls and without a connection counts as if it had
/// this many calls. A call opens another connection only if no open connection has fewer calls.
pub(crate) const CALLS_BUSY: usize = 32;

/// If a caller has given up and no reply has arrived for this time, the client closes the
/// connection.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The replies to a call, or the reason why there are none.
pub(crate) type CallReplies = Result<Vec<Bytes>, LostCall>;

/// The failure of a call that gets no reply.
#[derive(Clone, Debug)]
pub(crate) struct LostCall {
    kind: ErrorKind,
    /// Whether any byte of the call may have been sent.
    pub(crate) is_sent: bool,
    /// Whether another call has reported the same failure. The breaker counts only the first
    /// report.
    pub(crate) is_echo: bool,
}

/// Unsent calls.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    requests: Connection,
    calls: VecDeque<QueuedCall<T>>,
    next_number: u64,
}

#[derive(Debug)]
struct QueuedCall<T> {
    number: u64,
    ticket: T,
    bytes: usize,
    requests: usize,
}

/// The calls under way. Their requests are sent or in the output.
#[derive(Debug)]
pub(crate) struct Exchange<T> {
    connection: Connection,
    calls: VecDeque<SentCall<T>>,
    /// The total number of bytes sent over the connection.
    sent: u64,
    /// The total length, in bytes, of all requests taken from the queue.
    queued_bytes: u64,
    /// Whether a caller has received the reply that made the connection unusable.
    is_reported: bool,
}

#[derive(Debug)]
struct SentCall<T> {
    ticket: T,
    /// The offset of the call's first byte in the connection's output stream.
    start: u64,
    pending_replies: usize,
    replies: Vec<Bytes>,
}

impl LostCall {
    /// Creates the failure of a call. `is_sent` states whether any byte of the call may have been
    /// sent.
    pub(crate) fn new(kind: ErrorKind, is_sent: bool) -> Self {
        Self { kind, is_sent, is_echo: false }
    }

    /// Marks the failure as already reported by another call.
    pub(crate) fn echo(self) -> Self {
        Self { is_echo: true, ..self }
    }

    /// Converts the failure to a [`FailedCall`]. `reads` is true if the call changes nothing; its
    /// error is then never ambiguous.
    pub(crate) fn broken(self, reads: bool) -> FailedCall {
        let progress = Progress { sent: self.is_sent.into(), received: 0 };
        let mut broken = FailedCall::new(CallFailure::Lost(self.kind), progress, reads);
        broken.error.is_echo = self.is_echo;
        broken
    }
}

/// A guard that adds 1 to a connection's number of calls until the guard is dropped.
#[derive(Debug)]
pub(crate) struct CallGuard<'c>(&'c AtomicUsize);

impl<'c> CallGuard<'c> {
    pub(crate) fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The shortest recent response time of a server. The initial value is one second, so a new server
/// counts as slow.
#[derive(Debug)]
pub(crate) struct MinLatency(Duration);

impl Default for MinLatency {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl MinLatency {
    /// The largest response time of a quick server. A request to a quick server may wait for the
    /// next reply: one write can then carry several requests.
    const QUICK_MAX: Duration = Duration::from_micros(150);

    /// Records a response time. A time above the minimum raises the minimum by at most 1 ÷ 64, so
    /// an old minimum loses its effect after a few hundred records.
    pub(crate) fn note(&mut self, time: Duration) {
        self.0 = time.min(self.0 + self.0 / 64);
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.0 <= Self::QUICK_MAX
    }
}

/// Interprets the replies to an operation, and returns its output.
///
/// # Errors
/// The call was lost, the replies contain an error, or they do not match the operation.
pub(crate) fn output<O: Operation>(
    operation: &mut O,
    answered: CallReplies,
) -> Result<O::Output, FailedCall> {
    let reads = operation.reads();
    for reply in answered.map_err(|lost| lost.broken(reads))? {
        match operation.take(&reply) {
            Ok(None) => (),
            Ok(Some(output)) => return Ok(output),
            Err(failure) => {
                return Err(FailedCall::new(
                    CallFailure::Reply(failure),
                    Progress::default(),
                    reads,
                ));
            }
        }
    }
    Err(LostCall::new(ErrorKind::Closed, true).broken(reads))
}

/// Removes all calls of a connection that has failed with `kind`. Returns each ticket with its
/// failure. Queued calls fail with `Io` or `Closed`, which permit a retry, because no byte of these
/// calls was sent.
pub(crate) fn fail_all<T>(
    exchange: &mut Exchange<T>,
    queue: &mut Queue<T>,
    kind: &ErrorKind,
) -> Vec<(T, LostCall)> {
    let under_way = exchange.drain().into_iter();
    let under_way =
        under_way.map(|(ticket, is_sent)| (ticket, LostCall::new(kind.clone(), is_sent)));
    let kind = match kind {
        ErrorKind::Io(error) => ErrorKind::Io(Arc::clone(error)),
        _ => ErrorKind::Closed,
    };
    let queued = queue.drain().into_iter();
    let queued = queued.map(|ticket| (ticket, LostCall::new(kind.clone(), false)));
    under_way.chain(queued).collect()
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { requests: Connection::shared(), calls: VecDeque::new(), next_number: 0 }
    }

    /// Adds a call. `encode` writes its requests. Returns the call's number.
    pub(crate) fn push(&mut self, ticket: T, encode: impl FnOnce(&mut Connection)) -> u64 {
        let before = self.requests.len();
        encode(&mut self.requests);
        let after = self.requests.len();
        let (bytes, requests) = (after.0 - before.0, after.1 - before.1);
        let number = self.next_number;
        self.next_number += 1;
        self.calls.push_back(QueuedCall { number, ticket, bytes, requests });
        number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Iterates over the tickets, oldest first.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.calls.iter().map(|call| &call.ticket)
    }

    /// Removes a call. Returns false if it is no longer in the queue.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        self.remove(number).is_some()
    }

    /// Removes a call and returns its ticket. Returns `None` if the call is no longer in the queue.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let found = self.calls.iter().position(|call| call.number == number);
        found.and_then(|index| self.remove_at(index))
    }

    #[cfg(feature = "pipeline")]
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    fn remove_at(&mut self, index: usize) -> Option<T> {
        let (bytes, requests) = (self.calls.iter().take(index))
            .fold((0, 0), |sum, call| (sum.0 + call.bytes, sum.1 + call.requests));
        let call = self.calls.remove(index)?;
        self.requests.withdraw(bytes..bytes + call.bytes, requests..requests + call.requests);
        Some(call.ticket)
    }

    /// Removes all calls and returns their tickets.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.requests = Connection::shared();
        self.calls.drain(..).map(|call| call.ticket).collect()
    }
}

impl<T> Exchange<T> {
    pub(crate) fn new() -> Self {
        let connection = Connection::shared();
        Self { connection, calls: VecDeque::new(), sent: 0, queued_bytes: 0, is_reported: false }
    }

    /// Drops queued calls that `is_wanted` rejects. If all earlier output is sent, also moves calls
    /// from the queue to the output, up to [`CALLS_MAX`] calls under way. The other calls stay in
    /// the queue, where callers can still withdraw them. Unwanted requests to a slow server
    /// therefore do not accumulate in memory.
    pub(crate) fn take(&mut self, queue: &mut Queue<T>, is_wanted: impl Fn(&T) -> bool) {
        for index in (0..queue.calls.len()).rev() {
            if queue.calls.get(index).is_some_and(|call| !is_wanted(&call.ticket)) {
                queue.remove_at(index);
            }
        }
        if !self.output().is_empty() {
            return;
        }
        let taken = queue.calls.len().min(CALLS_MAX.saturating_sub(self.calls.len()));
        let (bytes, requests) = (queue.calls.iter().take(taken))
            .fold((0, 0), |sum, call| (sum.0 + call.bytes, sum.1 + call.requests));
        self.connection.take_over(&mut queue.requests, bytes, requests);
        for QueuedCall { ticket, bytes, requests, .. } in queue.calls.drain(..taken) {
            let start = self.queued_bytes;
            self.queued_bytes += bytes as u64;
            self.calls.push_back(SentCall {
                ticket,
                start,
                pending_replies: requests,
                replies: Vec::new(),
            });
        }
    }

    pub(crate) fn output(&self) -> &[u8] {
        self.connection.output()
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.connection.sent(len);
        self.sent += len as u64;
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.connection.room()
    }

    pub(crate) fn received(&mut self, len: usize) {
        self.connection.received(len);
    }

    /// Returns the oldest call with its replies, if all its replies have arrived or its latest
    /// reply does not match the request.
    ///
    /// # Errors
    /// Later replies cannot be trusted. [`Exchange::drain`] returns the remaining calls.
    pub(crate) fn next(&mut self) -> Result<Option<(T, Vec<Bytes>)>, InvalidReply> {
        loop {
            if self.connection.has_failed() {
                return Err(InvalidReply("an earlier reply did not match its request".into()));
            }
            let Some(reply) = self.connection.next_reply()? else { return Ok(None) };
            let Some(call) = self.calls.front_mut() else { return Ok(None) };
            if call.start >= self.sent {
                // No byte of the request was sent, so this is the reply to another request.
                return Err(InvalidReply(shown(&reply).into()));
            }
            call.replies.push(reply);
            call.pending_replies = call.pending_replies.saturating_sub(1);
            if self.connection.has_no_requests() {
                // If unsolicited bytes follow the last reply, earlier replies may have been
                // assigned to the wrong requests. `next_reply` then fails.
                self.connection.next_reply()?;
            }
            // A caller gets even a wrong reply, and reports it. Later callers get no replies.
            if call.pending_replies == 0 || self.connection.has_failed() {
                return Ok(self.calls.pop_front().map(|call| (call.ticket, call.replies)));
            }
        }
    }

    /// Records that a caller has received the latest reply.
    pub(crate) fn mark_reported(&mut self) {
        self.is_reported |= self.connection.has_failed();
    }

    /// Returns whether a caller has received the reply that made the connection unusable. The
    /// failures of the other calls are then repeated reports of the same failure.
    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Returns the number of calls under way.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether no call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// Iterates over the tickets of the calls under way, oldest first.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.calls.iter().map(|call| &call.ticket)
    }

    /// Like [`Exchange::tickets`], but the tickets are mutable.
    #[cfg(feature = "pipeline")]
    pub(crate) fn tickets_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.calls.iter_mut().map(|call| &mut call.ticket)
    }

    /// Removes all calls under way. Returns the ticket of each call, and whether any byte of the
    /// call was sent.
    pub(crate) fn drain(&mut self) -> Vec<(T, bool)> {
        let sent = self.sent;
        self.calls.drain(..).map(|call| (call.ticket, call.start < sent)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Key;
    use crate::core::operation::{Delete, Get, Operation};

    fn get(queue: &mut Queue<char>, ticket: char) -> u64 {
        let name = ticket.to_string();
        let key = Key::new(name.as_bytes()).unwrap();
        queue.push(ticket, |connection| Get { key, cas: false, touch: None }.encode(connection))
    }

    fn delete(queue: &mut Queue<char>, ticket: char) {
        let key = Key::new(b"key").unwrap();
        let mut operation = Delete { key, compare: None, stale: None };
        queue.push(ticket, |connection| operation.encode(connection));
    }

    fn answer(exchange: &mut Exchange<char>, answers: &str) {
        let len = exchange.output().len();
        exchange.sent(len);
        exchange.room()[..answers.len()].copy_from_slice(answers.as_bytes());
        exchange.received(answers.len());
    }

    fn hit(key: char) -> String {
        format!("VALUE {key} 0 1\r\n{key}\r\nEND\r\n")
    }

    #[test]
    fn each_call_gets_the_replies_to_its_requests() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        let b = get(&mut queue, 'b');
        get(&mut queue, 'c');
        delete(&mut queue, 'd');
        get(&mut queue, 'e');
        assert!(queue.withdraw(b) && !queue.withdraw(b));
        exchange.take(&mut queue, |ticket| *ticket != 'c');
        assert!(!queue.withdraw(0), "already taken");
        assert_eq!(exchange.output(), b"get a\r\ndelete key\r\nget e\r\n");
        exchange.sent(5);
        let f = get(&mut queue, 'f');
        exchange.take(&mut queue, |_| true);
        assert!(queue.withdraw(f), "earlier output is not sent yet");
        exchange.sent(exchange.output().len());
        get(&mut queue, 'f');
        exchange.take(&mut queue, |_| true);
        answer(&mut exchange, &format!("{}DELETED\r\n{}{}", hit('a'), hit('e'), hit('f')));
        for (ticket, reply) in [('a', hit('a')), ('d', "DELETED\r\n".into()), ('e', hit('e'))] {
            assert_eq!(exchange.next().unwrap(), Some((ticket, vec![Bytes::from(reply)])));
        }
        assert_eq!(exchange.next().unwrap().unwrap().0, 'f');
        assert_eq!(exchange.next(), Ok(None));
    }

    #[test]
    fn calls_after_a_wrong_reply_get_no_reply() {
        for wrong in [hit('x'), "STORED\r\n".into(), "ERROR\r\n".into(), hit('b')] {
            let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
            get(&mut queue, 'a');
            delete(&mut queue, 'b');
            exchange.take(&mut queue, |_| true);
            answer(&mut exchange, &format!("{wrong}DELETED\r\n"));
            assert_eq!(exchange.next(), Ok(Some(('a', vec![Bytes::from(wrong)]))));
            assert!(exchange.next().is_err());
            assert_eq!(exchange.drain(), [('b', true)]);
        }
    }

    #[test]
    fn an_unsolicited_reply_fails_the_connection() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        exchange.take(&mut queue, |_| true);
        answer(&mut exchange, "END\r\nEND\r\n");
        assert!(exchange.next().is_err());
        assert_eq!(exchange.drain(), [('a', true)]);
    }

    #[test]
    fn a_reply_before_its_request_is_sent_fails_the_connection() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        delete(&mut queue, 'a');
        delete(&mut queue, 'b');
        exchange.take(&mut queue, |_| true);
        exchange.sent("delete key\r\n".len());
        let answers = b"DELETED\r\nDELETED\r\n";
        exchange.room()[..answers.len()].copy_from_slice(answers);
        exchange.received(answers.len());
        assert_eq!(exchange.next().unwrap().unwrap().0, 'a');
        assert!(exchange.next().is_err());
        assert_eq!(exchange.drain(), [('b', false)]);
    }

    #[test]
    fn the_number_of_calls_under_way_is_limited() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        (0..CALLS_MAX).for_each(|_| delete(&mut queue, 'a'));
        ['b', 'c'].into_iter().for_each(|ticket| delete(&mut queue, ticket));
        exchange.take(&mut queue, |_| true);
        assert_eq!(exchange.output().len(), CALLS_MAX * "delete key\r\n".len());
        exchange.sent(exchange.output().len());
        exchange.take(&mut queue, |_| true);
        assert!(exchange.output().is_empty() && !queue.is_empty());
        answer(&mut exchange, "DELETED\r\n");
        assert_eq!(exchange.next().unwrap().unwrap().0, 'a');
        exchange.take(&mut queue, |_| true);
        assert_eq!(exchange.output(), b"delete key\r\n");
        assert_eq!(queue.drain(), ['c']);
    }

    #[test]
    fn a_server_error_affects_one_call_only() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        get(&mut queue, 'b');
        exchange.take(&mut queue, |_| true);
        answer(&mut exchange, &format!("SERVER_ERROR busy\r\n{}", hit('b')));
        assert_eq!(exchange.next().unwrap().unwrap().0, 'a');
        assert_eq!(exchange.next().unwrap().unwrap().0, 'b');
    }

    #[test]
    fn drain_reports_which_calls_were_sent() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        get(&mut queue, 'b');
        exchange.take(&mut queue, |_| true);
        exchange.sent("get a\r\n".len());
        assert_eq!(exchange.drain(), [('a', true), ('b', false)]);
        get(&mut queue, 'c');
        assert_eq!(queue.drain(), ['c']);
    }
}
