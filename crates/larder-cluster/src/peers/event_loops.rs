//! A fixed number of threads that drive the connections for forwarded requests. A node has such
//! connections to and from the nodes of all groups, so a thread for each would make the number of
//! threads depend on the number of groups.
//!
//! A connection belongs to one thread, which calls [`Connection::advance`] after socket events,
//! after calls of the connection's waker, when the connection's last wait is over, and when the node
//! shuts down.

use super::stop::Stop;
use super::stream::PeerStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// The length of the buffer for received bytes that the connections of a thread share.
const READ_LEN: usize = 128 << 10;
const EVENTS_MAX: usize = 256;
/// The token for calls of wakers.
const WAKER: Token = Token(usize::MAX);

/// A nonblocking connection that an event loop drives.
pub(crate) trait Connection: Send {
    /// Returns the stream whose events the event loop waits for.
    fn stream(&self) -> &PeerStream;

    /// Reads, handles and writes as much as is possible without waiting, but no more than takes a
    /// few milliseconds. Socket events are edge-triggered: before this method returns
    /// [`NextStep::Wait`], a read must have found no bytes, and unsent bytes must have found no room.
    fn advance(&mut self, thread: &mut LoopThread) -> NextStep;

    /// Ends the connection after a panic of [`Self::advance`].
    fn end_after_panic(&mut self) -> NextStep {
        NextStep::End
    }
}

/// The next step for a connection.
pub(crate) enum NextStep {
    /// The connection has more work: advance it again, after the other connections.
    Again,
    /// Advance the connection after an event, or after this time.
    Wait(Duration),
    /// The connection has ended.
    End,
}

/// The data of a thread that its connections use.
pub(crate) struct LoopThread {
    /// The number of the thread, from 0 on.
    pub(crate) number: usize,
    /// A buffer for received bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The event loops of a node.
pub(crate) struct EventLoops {
    queues: Vec<Arc<LoopQueue>>,
    /// The number of entries so far.
    entries: AtomicUsize,
}

/// The entry of one connection in an event loop.
pub(crate) struct LoopEntry {
    queue: Arc<LoopQueue>,
    token: usize,
    /// Makes the event loop advance the connection.
    pub(crate) waker: Waker,
}

/// Messages to the thread of an event loop.
struct LoopQueue {
    registry: Registry,
    waker: mio::Waker,
    messages: Mutex<Messages>,
    /// Whether the thread waits for events, or will do so without looking at the messages again.
    /// Then a message must wake the thread.
    is_waiting: AtomicBool,
}

#[derive(Default)]
struct Messages {
    added: Vec<(usize, Box<dyn Connection>)>,
    woken: Vec<usize>,
    /// Whether the thread has ended, and drives no further connections.
    has_ended: bool,
}

/// A connection of an event loop.
struct Driven {
    connection: Box<dyn Connection>,
    /// The time at which to advance the connection at the latest.
    due: Instant,
}

impl EventLoops {
    /// Creates event loops, and returns them with a function for each that runs it. The functions
    /// return when `stop` is set and the connections have ended.
    ///
    /// # Errors
    /// The system has no file descriptors left.
    pub(crate) fn new(
        count: usize,
        stop: &Arc<Stop>,
    ) -> io::Result<(Arc<Self>, Vec<impl FnOnce() + Send + use<>>)> {
        let (mut queues, mut runs) = (Vec::new(), Vec::new());
        for number in 0..count {
            let poll = Poll::new()?;
            let queue = Arc::new(LoopQueue {
                registry: poll.registry().try_clone()?,
                waker: mio::Waker::new(poll.registry(), WAKER)?,
                messages: Mutex::default(),
                is_waiting: AtomicBool::new(false),
            });
            queues.push(Arc::clone(&queue));
            let stop = Arc::clone(stop);
            let thread = LoopThread { number, bytes: vec![0; READ_LEN] };
            let (connections, again, earliest) = Default::default();
            let is_stopping = false;
            let mut event_loop =
                EventLoop { poll, queue, thread, connections, again, earliest, is_stopping };
            runs.push(move || event_loop.run(&stop));
        }
        Ok((Arc::new(Self { queues, entries: AtomicUsize::new(0) }), runs))
    }

    /// Creates the entry of a new connection, in the event loops in turn.
    ///
    /// # Panics
    /// There are no event loops.
    pub(crate) fn entry(&self) -> LoopEntry {
        let token = self.entries.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::clone(&self.queues[token % self.queues.len()]);
        let waker = Waker::from(Arc::new(ConnectionWaker { queue: Arc::clone(&queue), token }));
        LoopEntry { queue, token, waker }
    }

    /// Wakes all threads, so that they notice that the node shuts down.
    pub(crate) fn wake(&self) {
        self.queues.iter().for_each(|queue| queue.wake());
    }
}

impl LoopEntry {
    /// Starts to drive a connection.
    ///
    /// # Errors
    /// The system has no memory for it, or the event loop has ended because the node shuts down.
    pub(crate) fn drive(self, connection: Box<dyn Connection>) -> io::Result<()> {
        let fd = connection.stream().as_fd().as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.queue.registry.register(&mut SourceFd(&fd), Token(self.token), interest)?;
        {
            let mut messages = self.queue.messages();
            if messages.has_ended {
                return Err(io::ErrorKind::NotConnected.into());
            }
            messages.added.push((self.token, connection));
        }
        self.queue.wake_if_waiting();
        Ok(())
    }
}

impl LoopQueue {
    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_if_waiting(&self) {
        if self.is_waiting.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(
                "waking a thread for forwarded requests failed: {error}; restart the server if this repeats"
            );
        }
    }
}

/// The waker of one connection. The connection may have ended.
struct ConnectionWaker {
    queue: Arc<LoopQueue>,
    token: usize,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.messages().woken.push(self.token);
        self.queue.wake_if_waiting();
    }
}

/// The thread of an event loop.
struct EventLoop {
    poll: Poll,
    queue: Arc<LoopQueue>,
    thread: LoopThread,
    connections: HashMap<usize, Driven>,
    /// The connections that have more work.
    again: Vec<usize>,
    /// A lower bound of the times in [`Driven::due`]; `None` without connections.
    earliest: Option<Instant>,
    /// Whether all connections were advanced since the node started to shut down.
    is_stopping: bool,
}

impl EventLoop {
    fn run(&mut self, stop: &Stop) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while self.take_messages(stop) {
            self.wait(&mut events);
            let mut ready = std::mem::take(&mut self.again);
            ready.extend(events.iter().map(|event| event.token().0));
            ready.append(&mut self.queue.messages().woken);
            self.add_due(stop, &mut ready);
            ready.sort_unstable();
            ready.dedup();
            for token in ready {
                self.advance(token);
            }
        }
    }

    /// Takes over new connections. Returns false if the node shuts down and no connection is left.
    fn take_messages(&mut self, stop: &Stop) -> bool {
        let added = {
            let mut messages = self.queue.messages();
            messages.has_ended =
                stop.is_set() && self.connections.is_empty() && messages.added.is_empty();
            if messages.has_ended {
                return false;
            }
            std::mem::take(&mut messages.added)
        };
        for (token, connection) in added {
            self.connections.insert(token, Driven { connection, due: Instant::now() });
            self.again.push(token);
        }
        true
    }

    /// Waits for events, for messages, and until the first connection is due.
    fn wait(&mut self, events: &mut Events) {
        self.queue.is_waiting.store(true, Ordering::SeqCst);
        let has_messages = {
            let messages = self.queue.messages();
            !messages.woken.is_empty() || !messages.added.is_empty()
        };
        let time = if has_messages || !self.again.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.earliest.map(|due| due.saturating_duration_since(Instant::now()))
        };
        if let Err(error) = self.poll.poll(events, time)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(
                "waiting for forwarded requests failed: {error}; restart the server if this repeats"
            );
        }
        self.queue.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Adds the connections that are due to `ready`. When the node starts to shut down, all are.
    fn add_due(&mut self, stop: &Stop, ready: &mut Vec<usize>) {
        if stop.is_set() && !std::mem::replace(&mut self.is_stopping, true) {
            ready.extend(self.connections.keys());
        }
        let now = Instant::now();
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        self.earliest = None;
        for (token, driven) in &self.connections {
            if driven.due <= now {
                ready.push(*token);
            } else {
                self.earliest = earlier(self.earliest, driven.due);
            }
        }
    }

    fn advance(&mut self, token: usize) {
        let Some(driven) = self.connections.get_mut(&token) else { return };
        // A panic ends only this connection. The log already shows it.
        let advance = AssertUnwindSafe(|| driven.connection.advance(&mut self.thread));
        let step = std::panic::catch_unwind(advance);
        match step.unwrap_or_else(|_| driven.connection.end_after_panic()) {
            NextStep::Again => self.again.push(token),
            NextStep::Wait(time) => {
                driven.due = Instant::now() + time;
                self.earliest = earlier(self.earliest, driven.due);
            }
            NextStep::End => {
                let fd = driven.connection.stream().as_fd().as_raw_fd();
                // An error is ignored: without the connection, its events have no effect.
                let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                self.connections.remove(&token);
            }
        }
    }
}

fn earlier(first: Option<Instant>, second: Instant) -> Option<Instant> {
    Some(first.map_or(second, |first| first.min(second)))
}

#[cfg(test)]
mod tests {
    use super::super::stream::StreamWriter;
    use super::super::stream::tests::{pair, plain_pair};
    use super::*;
    use std::io::{Read, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;

    const TIME: Duration = Duration::from_secs(30);

    /// Sends back the bytes that it receives.
    struct Echo {
        stream: PeerStream,
        writer: StreamWriter,
        unsent: Vec<u8>,
    }

    impl Connection for Echo {
        fn stream(&self) -> &PeerStream {
            &self.stream
        }

        fn advance(&mut self, thread: &mut LoopThread) -> NextStep {
            let sent = self.writer.write(&self.stream, &self.unsent).unwrap();
            self.unsent.drain(..sent);
            if !self.unsent.is_empty() {
                return NextStep::Wait(TIME);
            }
            match self.stream.read_some(&mut thread.bytes) {
                Ok(Some(0)) | Err(_) => NextStep::End,
                Ok(Some(len)) => {
                    self.unsent.extend_from_slice(&thread.bytes[..len]);
                    NextStep::Again
                }
                Ok(None) => NextStep::Wait(TIME),
            }
        }
    }

    /// Reports each call, and waits for `time` after it.
    struct Reporter {
        stream: PeerStream,
        calls: Sender<Instant>,
        time: Duration,
        stop: Arc<Stop>,
    }

    impl Connection for Reporter {
        fn stream(&self) -> &PeerStream {
            &self.stream
        }

        fn advance(&mut self, _thread: &mut LoopThread) -> NextStep {
            let _ = self.calls.send(Instant::now());
            if self.stop.is_set() { NextStep::End } else { NextStep::Wait(self.time) }
        }
    }

    /// Drives a connection that sends back the bytes that it receives.
    fn drive_echo(loops: &EventLoops, stream: PeerStream) -> io::Result<()> {
        stream.set_nonblocking()?;
        let (writer, unsent) = (StreamWriter::new(TIME), Vec::new());
        loops.entry().drive(Box::new(Echo { stream, writer, unsent }))
    }

    fn start(count: usize) -> (Arc<EventLoops>, Arc<Stop>, Vec<JoinHandle<()>>) {
        let stop = Arc::new(Stop::new().unwrap());
        let (loops, runs) = EventLoops::new(count, &stop).unwrap();
        (loops, stop, runs.into_iter().map(std::thread::spawn).collect())
    }

    /// Checks that no event is lost: the connection waits for room, for bytes and for both, because
    /// the client sends more than the sockets hold and reads slowly at first.
    #[test]
    fn many_connections_of_one_thread_send_back_all_bytes() {
        let (loops, stop, threads) = start(1);
        let sent: Vec<u8> = (0..=250).cycle().take(12 << 20).collect();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (near, far) = if number % 2 == 0 { plain_pair() } else { pair() };
                drive_echo(&loops, far).unwrap();
                let (near, sent) = (Arc::new(near), &sent);
                let writing = Arc::clone(&near);
                scope.spawn(move || (&*writing).write_all(sent).unwrap());
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(100));
                    let mut received = vec![0; sent.len()];
                    (&*near).read_exact(&mut received).unwrap();
                    assert!(received == *sent);
                });
            }
        });
        stop.set();
        loops.wake();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn report(
        loops: &EventLoops,
        stop: &Arc<Stop>,
        time: Duration,
    ) -> (PeerStream, Waker, Receiver<Instant>) {
        let ((near, far), (calls, received)) = (plain_pair(), channel());
        far.set_nonblocking().unwrap();
        let (entry, stop) = (loops.entry(), Arc::clone(stop));
        let waker = entry.waker.clone();
        entry.drive(Box::new(Reporter { stream: far, calls, time, stop })).unwrap();
        (near, waker, received)
    }

    #[test]
    fn a_connection_advances_after_wakes_and_waits() {
        let (loops, stop, threads) = start(2);
        let (_idle, _, _calls) = report(&loops, &stop, TIME);
        let (_near, waker, calls) = report(&loops, &stop, TIME);
        let mut last = Instant::now();
        while let Ok(at) = calls.recv_timeout(Duration::from_millis(200)) {
            last = at;
        }
        for _ in 0..1000 {
            let woken = Instant::now();
            waker.wake_by_ref();
            while last < woken {
                last = calls.recv_timeout(TIME).expect("a wake is never lost");
            }
        }
        let (_near, _, calls) = report(&loops, &stop, Duration::from_millis(20));
        let first = calls.recv_timeout(TIME).unwrap();
        let tenth = calls.iter().nth(9).unwrap();
        assert!(tenth - first >= Duration::from_millis(100), "{:?}", tenth - first);
        stop.set();
        loops.wake();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// Panics when it has received bytes.
    struct Faulty(PeerStream);

    impl Connection for Faulty {
        fn stream(&self) -> &PeerStream {
            &self.0
        }

        fn advance(&mut self, thread: &mut LoopThread) -> NextStep {
            assert!(self.0.read_some(&mut thread.bytes).unwrap().is_none(), "a fault");
            NextStep::Wait(TIME)
        }
    }

    #[test]
    fn a_panic_ends_only_its_connection() {
        let (loops, stop, threads) = start(1);
        let (near, far) = plain_pair();
        far.set_nonblocking().unwrap();
        loops.entry().drive(Box::new(Faulty(far))).unwrap();
        (&near).write_all(b"x").unwrap();
        let end = (&near).read(&mut [0; 1]);
        assert!(matches!(end, Ok(0) | Err(_)));
        let (near, far) = plain_pair();
        drive_echo(&loops, far).unwrap();
        (&near).write_all(b"x").unwrap();
        assert_eq!((&near).read(&mut [0; 2]).unwrap(), 1);
        stop.set();
        loops.wake();
        drop(near);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn no_connection_starts_after_the_loops_have_ended() {
        let (loops, stop, threads) = start(1);
        stop.set();
        loops.wake();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (_near, far) = plain_pair();
        assert!(drive_echo(&loops, far).is_err());
    }
}
