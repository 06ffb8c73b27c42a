//! Several calls on one connection.
//!
//! ```text
//!   push() ─▶ Queue ── take(), all at once ─▶ Exchange ─▶ output ─▶ server
//!     │         │                                │
//!     │         └─ withdraw(): nothing of it     └─ next(): the replies to the oldest call
//!     │            was sent, or will be
//!     └─ by any caller                              by whoever has the socket
//! ```
//! A call is told by its ticket, a `T`.

use crate::core::connection::{Connection, Garbage, shown};
use crate::core::operation::Operation;
use crate::core::outcome::{Broken, Progress, Trouble};
use crate::error::ErrorKind;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How many calls may be under way on each connection, those included whose callers have given up.
pub(crate) const CALLS_MAX: usize = 1024;

/// A further connection is opened if each of the others has so many calls.
pub(crate) const CALLS_BUSY: usize = 32;

/// If a caller has given up, a connection is closed after this time without an answer to anybody.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(1);

/// What a call gets: its replies, or why there are none.
pub(crate) type Answered = Result<Vec<Bytes>, Lost>;

/// A call without an answer.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    kind: ErrorKind,
    pub(crate) is_sent: bool,
    /// Whether other calls have been told of the same event.
    pub(crate) is_echo: bool,
}

/// Calls that wait to be sent.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    requests: Connection,
    calls: VecDeque<Queued<T>>,
    next_number: u64,
}

#[derive(Debug)]
struct Queued<T> {
    number: u64,
    ticket: T,
    bytes: usize,
    requests: usize,
}

/// Calls that are under way.
#[derive(Debug)]
pub(crate) struct Exchange<T> {
    connection: Connection,
    calls: VecDeque<UnderWay<T>>,
    /// How many bytes were sent since the beginning, and how many there were to be sent.
    sent: u64,
    begun: u64,
    is_told: bool,
}

#[derive(Debug)]
struct UnderWay<T> {
    ticket: T,
    /// How many bytes come before its own.
    start: u64,
    awaited: usize,
    replies: Vec<Bytes>,
}

impl Lost {
    /// `is_sent` is whether any of its bytes were sent.
    pub(crate) fn new(kind: ErrorKind, is_sent: bool) -> Self {
        Self { kind, is_sent, is_echo: false }
    }

    /// Others have been told of the same event.
    pub(crate) fn echo(self) -> Self {
        Self { is_echo: true, ..self }
    }

    /// `reads` is whether the call changes nothing.
    pub(crate) fn broken(self, reads: bool) -> Broken {
        let progress = Progress { sent: self.is_sent.into(), received: 0 };
        let mut broken = Broken::new(Trouble::Lost(self.kind), progress, reads);
        broken.error.is_echo = self.is_echo;
        broken
    }
}

/// Counts a call of a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted<'c>(&'c AtomicUsize);

impl<'c> Counted<'c> {
    pub(crate) fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the answers of a server take at least.
#[derive(Debug)]
pub(crate) struct Pace(Duration);

impl Default for Pace {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl Pace {
    /// Answers are quick that take at least so long: what comes meanwhile may wait until then, and leave in one write.
    const QUICK_MAX: Duration = Duration::from_micros(150);

    /// Notes how long an answer took. What was shorter is forgotten after some hundreds of them.
    pub(crate) fn note(&mut self, time: Duration) {
        self.0 = time.min(self.0 + self.0 / 64);
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.0 <= Self::QUICK_MAX
    }
}

/// The output of an operation that was answered.
///
/// # Errors
/// There is no answer, or it is not what was asked for.
pub(crate) fn output<O: Operation>(
    operation: &mut O,
    answered: Answered,
) -> Result<O::Output, Broken> {
    let reads = operation.reads();
    for reply in answered.map_err(|lost| lost.broken(reads))? {
        match operation.take(&reply) {
            Ok(None) => (),
            Ok(Some(output)) => return Ok(output),
            Err(failure) => {
                return Err(Broken::new(Trouble::Answered(failure), Progress::default(), reads));
            }
        }
    }
    Err(Lost::new(ErrorKind::Closed, true).broken(reads))
}

/// Removes all calls of a connection that has ended: what each gets.
pub(crate) fn lose<T>(
    exchange: &mut Exchange<T>,
    queue: &mut Queue<T>,
    kind: &ErrorKind,
) -> Vec<(T, Lost)> {
    let under_way = exchange.drain().into_iter();
    let under_way = under_way.map(|(ticket, is_sent)| (ticket, Lost::new(kind.clone(), is_sent)));
    let kind = match kind {
        ErrorKind::Io(error) => ErrorKind::Io(Arc::clone(error)),
        _ => ErrorKind::Closed,
    };
    let queued = queue.drain().into_iter();
    let queued = queued.map(|ticket| (ticket, Lost::new(kind.clone(), false)));
    under_way.chain(queued).collect()
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { requests: Connection::shared(), calls: VecDeque::new(), next_number: 0 }
    }

    /// Adds a call, whose requests `begin` begins; its number.
    pub(crate) fn push(&mut self, ticket: T, begin: impl FnOnce(&mut Connection)) -> u64 {
        let before = self.requests.len();
        begin(&mut self.requests);
        let after = self.requests.len();
        let (bytes, requests) = (after.0 - before.0, after.1 - before.1);
        let number = self.next_number;
        self.next_number += 1;
        self.calls.push_back(Queued { number, ticket, bytes, requests });
        number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls, the oldest first.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.calls.iter().map(|call| &call.ticket)
    }

    /// Removes a call; false if it is not in the queue any more.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        self.recall(number).is_some()
    }

    /// Removes a call, if it is in the queue; its ticket.
    pub(crate) fn recall(&mut self, number: u64) -> Option<T> {
        let found = self.calls.iter().position(|call| call.number == number);
        found.and_then(|index| self.remove(index))
    }

    #[cfg(feature = "pipeline")]
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    fn remove(&mut self, index: usize) -> Option<T> {
        let (bytes, requests) = (self.calls.iter().take(index))
            .fold((0, 0), |sum, call| (sum.0 + call.bytes, sum.1 + call.requests));
        let call = self.calls.remove(index)?;
        self.requests.withdraw(bytes..bytes + call.bytes, requests..requests + call.requests);
        Some(call.ticket)
    }

    /// Removes all calls.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.requests = Connection::shared();
        self.calls.drain(..).map(|call| call.ticket).collect()
    }
}

impl<T> Exchange<T> {
    pub(crate) fn new() -> Self {
        let connection = Connection::shared();
        Self { connection, calls: VecDeque::new(), sent: 0, begun: 0, is_told: false }
    }

    /// Takes the calls of a queue that are still wanted, once all that was taken before has been sent: as many as may be
    /// under way together ([`CALLS_MAX`]). Until then they can be withdrawn, and a server that reads slowly fills no memory
    /// with what nobody waits for.
    pub(crate) fn take(&mut self, queue: &mut Queue<T>, is_wanted: impl Fn(&T) -> bool) {
        for index in (0..queue.calls.len()).rev() {
            if queue.calls.get(index).is_some_and(|call| !is_wanted(&call.ticket)) {
                queue.remove(index);
            }
        }
        if !self.output().is_empty() {
            return;
        }
        let taken = queue.calls.len().min(CALLS_MAX.saturating_sub(self.calls.len()));
        let (bytes, requests) = (queue.calls.iter().take(taken))
            .fold((0, 0), |sum, call| (sum.0 + call.bytes, sum.1 + call.requests));
        self.connection.take_over(&mut queue.requests, bytes, requests);
        for Queued { ticket, bytes, requests, .. } in queue.calls.drain(..taken) {
            let start = self.begun;
            self.begun += bytes as u64;
            self.calls.push_back(UnderWay {
                ticket,
                start,
                awaited: requests,
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

    /// The oldest call, if all of its replies have come, and these.
    ///
    /// # Errors
    /// Nothing that comes can be trusted any more. [`Exchange::drain`] has the calls that are left.
    pub(crate) fn next(&mut self) -> Result<Option<(T, Vec<Bytes>)>, Garbage> {
        loop {
            if self.connection.has_failed() {
                return Err(Garbage("what came before it was no answer to its request".into()));
            }
            let Some(reply) = self.connection.next_reply()? else { return Ok(None) };
            let Some(call) = self.calls.front_mut() else { return Ok(None) };
            if call.start >= self.sent {
                // It is another's: nothing of this request has been sent.
                return Err(Garbage(shown(&reply).into()));
            }
            call.replies.push(reply);
            call.awaited = call.awaited.saturating_sub(1);
            if self.connection.has_no_requests() {
                // Bytes that nobody asked for: whose are those before them?
                self.connection.next_reply()?;
            }
            // Whoever asked for it finds out what is wrong with a reply; those behind it get none.
            if call.awaited == 0 || self.connection.has_failed() {
                return Ok(self.calls.pop_front().map(|call| (call.ticket, call.replies)));
            }
        }
    }

    /// Notes that the caller who was waiting for the last reply has it.
    pub(crate) fn told(&mut self) {
        self.is_told |= self.connection.has_failed();
    }

    /// Whether a caller has the reply after which nothing that comes can be trusted: what others lose is the same event.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// How many calls are under way.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls that are under way, the oldest first.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.calls.iter().map(|call| &call.ticket)
    }

    /// The same, to be changed.
    #[cfg(feature = "pipeline")]
    pub(crate) fn tickets_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.calls.iter_mut().map(|call| &mut call.ticket)
    }

    /// All calls that have no replies, and whether any of their bytes were sent.
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
        queue.push(ticket, |connection| Get { key, cas: false, touch: None }.begin(connection))
    }

    fn delete(queue: &mut Queue<char>, ticket: char) {
        let key = Key::new(b"key").unwrap();
        let mut operation = Delete { key, compare: None, stale: None };
        queue.push(ticket, |connection| operation.begin(connection));
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
        assert!(!queue.withdraw(0), "it was taken");
        assert_eq!(exchange.output(), b"get a\r\ndelete key\r\nget e\r\n");
        exchange.sent(5);
        let f = get(&mut queue, 'f');
        exchange.take(&mut queue, |_| true);
        assert!(queue.withdraw(f), "what is before it was not sent yet");
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
    fn nobody_behind_a_wrong_reply_gets_one() {
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
    fn more_than_was_asked_for_is_for_nobody() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        exchange.take(&mut queue, |_| true);
        answer(&mut exchange, "END\r\nEND\r\n");
        assert!(exchange.next().is_err());
        assert_eq!(exchange.drain(), [('a', true)]);
    }

    #[test]
    fn nobody_is_answered_before_his_request_is_sent() {
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
    fn no_more_calls_are_under_way_than_may_be() {
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
    fn an_error_of_the_server_is_the_matter_of_one_call() {
        let (mut queue, mut exchange) = (Queue::new(), Exchange::new());
        get(&mut queue, 'a');
        get(&mut queue, 'b');
        exchange.take(&mut queue, |_| true);
        answer(&mut exchange, &format!("SERVER_ERROR busy\r\n{}", hit('b')));
        assert_eq!(exchange.next().unwrap().unwrap().0, 'a');
        assert_eq!(exchange.next().unwrap().unwrap().0, 'b');
    }

    #[test]
    fn what_was_sent_is_known_of_each_call() {
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
