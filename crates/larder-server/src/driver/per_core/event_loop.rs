//! The event loop of one worker: its connections, its UDP sockets and its timers.

use super::wakers::Resumed;
use crate::connection::list::ConnectionInfo;
use crate::connection::{Connection, NextAction};
use crate::driver::dispatch::{Accepted, LOG_INTERVAL, MAINTENANCE};
use crate::driver::worker::{HANDSHAKE_SLICE, WorkerContext};
use crate::net::udp::Endpoint;
use crate::process::life_cycle::Phase;
use larder_session::Session;
use larder_store::{Engine, Seconds};
use larder_support::clock::Moment;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::Socket;
use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The token of the worker's waker. The tokens of connections start at 0.
pub(super) const WAKER: Token = Token(usize::MAX);
/// The token of the worker's flash reads.
pub(super) const READS: Token = Token(usize::MAX - 1);
/// The token of the worker's first UDP socket. It is above all tokens of connections and below
/// [`READS`] and [`WAKER`].
pub(super) const FIRST_ENDPOINT: usize = usize::MAX / 2;

/// The state of a worker, on its own thread.
pub(super) struct EventLoop<E: Engine + 'static> {
    poll: Poll,
    inbox: Receiver<Accepted>,
    worker: WorkerContext<E>,
    clients: Vec<Option<Client<E>>>,
    /// Free indices of `clients`.
    vacant: Vec<usize>,
    /// Clients and UDP sockets to poll again, in the order of their polls.
    ready: VecDeque<usize>,
    /// The UDP sockets of this worker.
    endpoints: Vec<(UdpSocket, Endpoint<E>)>,
    /// Indices of clients that watch the log.
    watching: Vec<usize>,
    /// The last time at which watchers received log lines.
    watchers_served: Instant,
    /// The deadlines of TLS handshakes, the earliest first, with the clients' indices. Entries of
    /// completed handshakes and closed clients stay until their deadline.
    handshakes: VecDeque<(Instant, usize, Arc<ConnectionInfo>)>,
    /// Indices of clients in a TLS handshake that have sent input, in the order of their polls.
    /// Other clients are polled before these.
    handshaking: VecDeque<usize>,
    /// Whether `inbox` may contain connections from the accepting thread.
    may_have_arrivals: bool,
    maintained: Instant,
    /// Whether maintenance has more to do and must continue in the next iteration.
    has_maintenance: bool,
    /// The waker of this worker. Load shedding calls it after marking a client.
    waker: std::task::Waker,
    /// The clients and UDP sockets whose waiting request can resume.
    resumed: Arc<Resumed>,
    /// The value of [`Server::shed_marks`](crate::server::Server::shed_marks) at the last check.
    shed_seen: u64,
}

/// A connection and its stream.
struct Client<E: Engine> {
    connection: Connection<Session<E>>,
    stream: Socket,
    /// Whether the stream is registered for write events.
    watches_writing: bool,
    /// Whether the client is in [`EventLoop::handshaking`].
    awaits_handshake: bool,
}

impl<E: Engine + 'static> Client<E> {
    /// Registers the stream for read events and, while the connection waits to write, also for
    /// write events.
    fn watch(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        let on = self.connection.awaits_writing();
        if self.watches_writing != on {
            self.watches_writing = on;
            let interest =
                if on { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            let fd = self.stream.as_raw_fd();
            poll.registry().reregister(&mut SourceFd(&fd), token, interest)?;
        }
        Ok(())
    }
}

impl<E: Engine + 'static> EventLoop<E> {
    pub(super) fn new(
        poll: Poll,
        inbox: Receiver<Accepted>,
        worker: WorkerContext<E>,
        waker: std::task::Waker,
        resumed: Arc<Resumed>,
    ) -> Self {
        Self {
            poll,
            inbox,
            worker,
            endpoints: Vec::new(),
            clients: Vec::new(),
            vacant: Vec::new(),
            ready: VecDeque::new(),
            watching: Vec::new(),
            watchers_served: Instant::now(),
            handshakes: VecDeque::new(),
            handshaking: VecDeque::new(),
            may_have_arrivals: false,
            maintained: Instant::now(),
            has_maintenance: false,
            waker,
            resumed,
            shed_seen: 0,
        }
    }

    /// Registers UDP sockets.
    pub(super) fn attach(&mut self, udp: Vec<UdpSocket>) -> io::Result<()> {
        for (index, socket) in udp.into_iter().enumerate() {
            let (fd, token) = (socket.as_raw_fd(), Token(FIRST_ENDPOINT + index));
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut SourceFd(&fd), token, interest)?;
            let endpoint = Endpoint::new(&self.worker.server.options);
            self.endpoints.push((socket, endpoint));
        }
        Ok(())
    }

    /// Registers the descriptor that reports completed flash reads.
    fn watch_reads(&mut self) -> io::Result<()> {
        match self.worker.reads_fd() {
            Some(fd) => {
                self.poll.registry().register(&mut SourceFd(&fd), READS, Interest::READABLE)
            }
            None => Ok(()),
        }
    }

    /// Submits queued flash reads, and resumes the requests of the completed ones.
    fn drive_reads(&mut self, now: Moment) {
        self.worker.drive_reads();
        if !self.resumed.is_empty() {
            self.resume(now);
            self.worker.drive_reads();
        }
    }

    pub(super) fn run(&mut self) {
        if let Err(error) = self.watch_reads() {
            tracing::error!(%error, "worker thread: registering the queue of flash reads failed, and the thread ends; restart the server");
            return;
        }
        let mut events = Events::with_capacity(256);
        while self.worker.server.life.phase() < Phase::Ended {
            self.resumed.looks_again.store(false, Ordering::SeqCst);
            let timeout = self.poll_timeout();
            let polled = self.poll.poll(&mut events, Some(timeout));
            self.resumed.looks_again.store(true, Ordering::SeqCst);
            match polled {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "worker thread: its event queue failed, and the thread ends with its connections; restart the server");
                    return;
                }
                Ok(()) => (),
            }
            let now = self.worker.now();
            // Events are edge-triggered, so each is reported only once. A socket that is ready at
            // its registration also causes one event.
            let waiting = self.ready.len();
            for event in &events {
                if event.token() == WAKER {
                    self.may_have_arrivals = true;
                    self.resume(now);
                } else if event.token() == READS {
                    // Nothing to do: each iteration completes flash reads below.
                } else if event.token().0 >= FIRST_ENDPOINT {
                    self.serve_datagrams(event.token().0, now);
                } else if let Some(Some(client)) = self.clients.get_mut(event.token().0) {
                    client.connection.note_event(event.is_readable(), event.is_read_closed());
                    let is_gone = event.is_error() || event.is_write_closed();
                    if is_gone && client.connection.is_held() {
                        self.close(event.token().0);
                    } else if client.connection.is_handshaking() {
                        self.queue_handshake(event.token().0);
                    } else {
                        self.serve(event.token().0, now);
                    }
                }
                self.close_shed();
            }
            for _ in 0..waiting {
                match self.ready.pop_front() {
                    Some(index) if index >= FIRST_ENDPOINT => self.serve_datagrams(index, now),
                    Some(index) => self.serve(index, now),
                    None => break,
                }
            }
            self.drive_reads(now);
            self.serve_handshakes(now);
            self.accept_pending();
            self.close_shed();
            self.serve_watchers(now);
            self.maintain(now);
            if self.worker.server.life.phase() == Phase::Draining {
                self.drain(now);
            }
            // Start the flash reads that the polls above have queued.
            self.worker.drive_reads();
        }
    }

    /// Returns the maximum time to wait for an event.
    fn poll_timeout(&self) -> Duration {
        let has_arrivals = self.may_have_arrivals || !self.handshaking.is_empty();
        let resumes = !self.resumed.is_empty();
        let busy = self.has_maintenance || has_arrivals || resumes || !self.ready.is_empty();
        match (busy, self.watching.is_empty()) {
            (true, _) => Duration::ZERO,
            (false, true) => MAINTENANCE,
            (false, false) => LOG_INTERVAL,
        }
    }

    /// Answers the requests that have arrived. Then closes the connections without unanswered
    /// requests.
    fn drain(&mut self, now: Moment) {
        for index in 0..self.clients.len() {
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if !client.connection.is_quiet() {
                continue;
            }
            // Make the connection read once: input may have arrived before the shutdown without a
            // reported event.
            client.connection.note_event(true, false);
            self.serve(index, now);
            let client = self.clients[index].as_ref();
            if client.is_some_and(|client| client.connection.is_quiet()) {
                self.close(index);
            }
        }
    }

    /// Sends new log lines to watchers if [`LOG_INTERVAL`] has passed since the last time.
    fn serve_watchers(&mut self, now: Moment) {
        if self.watching.is_empty() || self.watchers_served.elapsed() < LOG_INTERVAL {
            return;
        }
        self.watchers_served = Instant::now();
        for index in std::mem::take(&mut self.watching) {
            if let Some(Some(client)) = self.clients.get_mut(index) {
                client.connection.call_again();
                // serve() adds the client to the list again if it still watches.
                self.serve(index, now);
            }
        }
    }

    /// Queues a client for the next step of its TLS handshake.
    fn queue_handshake(&mut self, index: usize) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if !std::mem::replace(&mut client.awaits_handshake, true) {
            self.handshaking.push_back(index);
        }
    }

    /// Polls clients in a TLS handshake, for about [`HANDSHAKE_SLICE`].
    fn serve_handshakes(&mut self, now: Moment) {
        self.worker.start_iteration();
        while self.worker.has_time_for_handshake() {
            let Some(index) = self.handshaking.pop_front() else { return };
            // Check that this client still waits for its handshake: its index may belong to another
            // client now.
            let client = self.clients.get_mut(index).and_then(Option::as_mut);
            let waited = client.is_some_and(|client| std::mem::take(&mut client.awaits_handshake));
            if waited {
                self.serve(index, now);
            }
        }
    }

    /// Starts serving connections that the accepting thread has sent. Stops after about
    /// [`HANDSHAKE_SLICE`].
    fn accept_pending(&mut self) {
        if !self.may_have_arrivals {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < HANDSHAKE_SLICE {
            let Ok(accepted) = self.inbox.try_recv() else {
                self.may_have_arrivals = false;
                return;
            };
            let info = Arc::clone(&accepted.info);
            let index = self.vacant.pop().unwrap_or(self.clients.len());
            if index == self.clients.len() {
                self.clients.push(None);
            }
            match self.open(index, accepted) {
                Ok(client) => self.clients[index] = Some(client),
                Err(error) => {
                    tracing::warn!(%error, peer = info.peer, "connection closed: registering it for events failed; raise the limits of the system's event queue (fs.epoll.max_user_watches)");
                    self.worker.server.dismiss(&info);
                    self.vacant.push(index);
                }
            }
        }
    }

    fn open(&mut self, index: usize, accepted: Accepted) -> io::Result<Client<E>> {
        let info = Arc::clone(&accepted.info);
        let (connection, stream, handshake_deadline) = self.worker.server.open(accepted)?;
        if let Some(deadline) = handshake_deadline {
            self.handshakes.push_back((deadline, index, info));
        }
        let (fd, registry) = (stream.as_raw_fd(), self.poll.registry());
        registry.register(&mut SourceFd(&fd), Token(index), Interest::READABLE)?;
        Ok(Client { connection, stream, watches_writing: false, awaits_handshake: false })
    }

    fn serve(&mut self, index: usize, now: Moment) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        let Client { connection, stream, .. } = client;
        let (resumed, id) = (&self.resumed, connection.info.id);
        match self.worker.serve(connection, stream, now, &|| resumed.waker_of(index, id)) {
            NextAction::PollAgain => {
                self.ready.push_back(index);
                self.watch_client(index);
            }
            NextAction::Wait | NextAction::Hold => self.watch_client(index),
            NextAction::Close => self.close(index),
        }
    }

    /// Polls the clients and UDP sockets whose waiting request can resume.
    fn resume(&mut self, now: Moment) {
        for (token, id) in self.resumed.take() {
            if token >= FIRST_ENDPOINT {
                self.serve_datagrams(token, now);
            } else if let Some(Some(client)) = self.clients.get_mut(token)
                && client.connection.info.id == id
            {
                client.connection.resume();
                self.serve(token, now);
            }
        }
    }

    /// Registers a client for the events that it currently needs: log lines, load shedding and
    /// write events. Closes the client if load shedding has marked it, or if the registration
    /// fails.
    fn watch_client(&mut self, index: usize) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if client.connection.is_watching() && !self.watching.contains(&index) {
            self.watching.push(index);
        }
        if client.connection.is_holding() {
            client.connection.info.memory.set_waker(&self.waker);
            if client.connection.is_shed() {
                return self.close(index);
            }
        }
        if let Err(error) = client.watch(&self.poll, Token(index)) {
            tracing::warn!(%error, peer = client.connection.info.peer, "connection closed: registering it for write events failed; raise the limits of the system's event queue");
            client.connection.info.note_failure();
            self.close(index);
        }
    }

    fn serve_datagrams(&mut self, index: usize, now: Moment) {
        let endpoint = self.endpoints.get_mut(index - FIRST_ENDPOINT);
        let Some((socket, endpoint)) = endpoint else { return };
        let resumed = &self.resumed;
        let waker = || resumed.waker_of(index, 0);
        let after = self.worker.serve_datagrams(endpoint, socket, now, &waker);
        if after == NextAction::PollAgain && !self.ready.contains(&index) {
            self.ready.push_back(index);
        }
    }

    fn close(&mut self, index: usize) {
        let Some(mut client) = self.clients.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.worker.server.finish(&mut client.connection, &mut client.stream);
        let fd = client.stream.as_raw_fd();
        // An error does not matter, because closing the descriptor also ends the registration.
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        self.vacant.push(index);
        self.ready.retain(|&ready| ready != index);
        self.watching.retain(|&watching| watching != index);
    }

    fn maintain(&mut self, now: Moment) {
        let due = self.maintained.elapsed() >= MAINTENANCE;
        if due {
            self.maintained = Instant::now();
            self.worker.heartbeat();
            self.close_idle(now.seconds());
            self.close_late_handshakes();
        }
        if self.has_maintenance || due {
            self.has_maintenance = self.worker.maintain(now.seconds());
        }
    }

    /// Closes the connections that load shedding has marked.
    fn close_shed(&mut self) {
        let count = self.worker.server.shed_marks();
        if std::mem::replace(&mut self.shed_seen, count) == count {
            return;
        }
        for index in 0..self.clients.len() {
            let client = self.clients[index].as_ref();
            if client.is_some_and(|client| client.connection.is_shed()) {
                self.close(index);
            }
        }
    }

    /// Closes connections whose idle timeout has passed.
    fn close_idle(&mut self, now: Seconds) {
        for index in 0..self.clients.len() {
            let Some(client) = &self.clients[index] else { continue };
            if self.worker.server.is_idle_timed_out(&client.connection, now) {
                self.close(index);
            }
        }
    }

    /// Closes connections that have passed the deadline of their TLS handshake.
    fn close_late_handshakes(&mut self) {
        let now = Instant::now();
        while let Some((_, index, info)) =
            self.handshakes.pop_front_if(|(deadline, ..)| *deadline <= now)
        {
            // Compare the IDs, because the index may belong to another connection now.
            let late = self.clients.get(index).and_then(Option::as_ref).is_some_and(|client| {
                client.connection.is_handshaking() && client.connection.info.id == info.id
            });
            if late {
                self.worker.server.note_late_handshake(&info);
                self.close(index);
            }
        }
    }
}

impl<E: Engine + 'static> Drop for EventLoop<E> {
    fn drop(&mut self) {
        (0..self.clients.len()).for_each(|index| self.close(index));
    }
}
