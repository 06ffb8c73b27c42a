//! A fixed number of threads that drive the connections for forwarded requests. A node has such
//! connections to and from the nodes of all groups, so a thread for each would make the number of
//! threads depend on the number of groups.
//!
//! A connection belongs to one thread, which calls [`Connection::advance`] after socket events,
//! after calls of the connection's waker, and when the connection's last wait is over.

use super::stop::Stop;
use super::stream::PeerStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
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
    /// The number of places that were reserved so far.
    reserved: AtomicUsize,
}

/// A place for a connection in an event loop.
pub(crate) struct LoopPlace {
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
            let mut event_loop = EventLoop { poll, queue, thread, connections, again, earliest };
            runs.push(move || event_loop.run(&stop));
        }
        Ok((Arc::new(Self { queues, reserved: AtomicUsize::new(0) }), runs))
    }

    /// Reserves a place for a connection, in the event loops in turn.
    ///
    /// # Panics
    /// There are no event loops.
    pub(crate) fn reserve(&self) -> LoopPlace {
        let token = self.reserved.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::clone(&self.queues[token % self.queues.len()]);
        let waker = Waker::from(Arc::new(ConnectionWaker { queue: Arc::clone(&queue), token }));
        LoopPlace { queue, token, waker }
    }

    /// Wakes all threads, so that they notice that the node shuts down.
    pub(crate) fn wake(&self) {
        self.queues.iter().for_each(|queue| queue.wake());
    }
}

impl LoopPlace {
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
}

impl EventLoop {
    fn run(&mut self, stop: &Stop) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while self.take_messages(stop) {
            self.wait(&mut events);
            let mut ready = std::mem::take(&mut self.again);
            ready.extend(events.iter().map(|event| event.token().0));
            ready.append(&mut self.queue.messages().woken);
            self.add_due(&mut ready);
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

    /// Adds the connections that are due to `ready`.
    fn add_due(&mut self, ready: &mut Vec<usize>) {
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
        match driven.connection.advance(&mut self.thread) {
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
