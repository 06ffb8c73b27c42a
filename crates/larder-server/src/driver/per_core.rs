//! One event loop a thread. The main thread accepts and hands connections out in turn; each worker
//! owns its connections, its engine handle and its buffers, and shares nothing on the way of a
//! request.

use crate::connection::{After, Connection, ConnectionInfo, Desk, Moved, Stream};
use crate::life_cycle::{self, Phase};
use crate::listener::Listener;
use crate::platform;
use crate::server::{Cache, Server};
use crate::systemd::{self, Watchdog};
use crate::tls::channel::Channel;
use crate::udp::{self, Endpoint};
use larder_session::{Context, Counters, Settings, State};
use larder_store::Engine;
use mio::net::{UdpSocket, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a thread reads at once, in bytes.
const READ_LEN: usize = 64 << 10;
/// An output buffer larger than this is given back after use, in bytes.
const OUTPUT_KEPT: usize = 1 << 20;
/// How often expiry and growth get a slice of time when nothing else happens.
const MAINTENANCE: Duration = Duration::from_secs(1);
/// How often watchers are shown what was logged.
const LOG_INTERVAL: Duration = Duration::from_millis(20);
/// How long to leave the listeners alone when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// The token of a worker's waker; connections count from 0.
const WAKER: Token = Token(usize::MAX);
/// The token of a worker's first UDP socket; above those of connections, below its waker's.
const FIRST_ENDPOINT: usize = usize::MAX / 2;
/// The token of the bell at the acceptor.
const BELL: Token = Token(usize::MAX - 1);
/// How long a graceful end waits for requests to be answered.
const DRAIN_MAX: Duration = Duration::from_secs(10);

const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A connection on its way to a worker.
struct Accepted {
    stream: Stream,
    info: Arc<ConnectionInfo>,
    tls: Option<Arc<ServerConfig>>,
}

/// Serves until the server's life cycle comes to its end; `bell` is what it rings.
///
/// # Errors
/// The system has no threads or event queues for it.
pub fn run<C: Cache>(
    server: &Arc<Server>,
    cache: &C,
    listeners: Vec<Listener>,
    udp: Vec<UdpSocket>,
    bell: std::os::unix::net::UnixStream,
) -> io::Result<()> {
    let threads = server.options.threads;
    let mut shares: Vec<Vec<UdpSocket>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, socket) in udp.into_iter().enumerate() {
        shares[index % threads].push(socket);
    }
    let workers = shares
        .into_iter()
        .enumerate()
        .map(|(index, udp)| spawn(index, server, cache, udp))
        .collect::<io::Result<Vec<_>>>()?;
    let accepted = accept(server, &workers, listeners, bell);
    systemd::stopping();
    enter(server, Phase::Ended, &workers)?;
    for Worker { thread, connections, .. } in workers {
        drop(connections);
        if thread.join().is_err() {
            tracing::error!("a worker thread panicked");
        }
    }
    accepted
}

/// A worker as the acceptor sees it.
struct Worker {
    connections: Sender<Accepted>,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

fn spawn<C: Cache>(
    index: usize,
    server: &Arc<Server>,
    cache: &C,
    udp: Vec<UdpSocket>,
) -> io::Result<Worker> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
    let (connections, inbox) = channel();
    let (server, cache) = (Arc::clone(server), cache.clone());
    let thread = std::thread::Builder::new().name(format!("larder-{index}")).spawn(move || {
        if server.options.pin {
            platform::pin_to_core(index);
        }
        let counters = Arc::clone(&server.counters[index]);
        let mut worker = EventLoop::new(index, poll, inbox, server, counters, cache.engine());
        match worker.attach(udp) {
            Ok(()) => worker.run(),
            Err(error) => tracing::error!(%error, "the event queue failed: a worker ends"),
        }
    })?;
    Ok(Worker { connections, waker, thread })
}

fn accept(
    server: &Server,
    workers: &[Worker],
    mut listeners: Vec<Listener>,
    bell: std::os::unix::net::UnixStream,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    for (index, listener) in listeners.iter_mut().enumerate() {
        listener.register(poll.registry(), Token(index))?;
    }
    let mut bell = UnixStream::from_std(bell);
    poll.registry().register(&mut bell, BELL, Interest::READABLE)?;
    let mut events = Events::with_capacity(64);
    let mut turns = workers.iter().cycle();
    let mut paused = false;
    let mut watchdog = Watchdog::ready();
    loop {
        let timeout = if paused { Some(ACCEPT_PAUSE) } else { watchdog.interval() };
        match poll.poll(&mut events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        watchdog.tell(server.silence());
        let mut all = std::mem::take(&mut paused);
        if events.iter().any(|event| event.token() == BELL) {
            life_cycle::hear(&mut bell);
            match server.life.attend() {
                // There may be room for those that wait.
                Phase::Serving => all = true,
                Phase::Draining => break,
                Phase::Ended => return Ok(()),
            }
        }
        let ready = events.iter().map(|event| event.token().0);
        let ready: Vec<usize> = if all { (0..listeners.len()).collect() } else { ready.collect() };
        for listener in ready.into_iter().filter_map(|index| listeners.get(index)) {
            paused |= !accept_all(server, listener, &mut turns);
        }
    }
    tracing::warn!("Gracefully stopping");
    drop(listeners);
    drain(server, workers, &mut poll, &mut bell)
}

/// Waits for the workers to be done with their connections, but not for ever.
fn drain(
    server: &Server,
    workers: &[Worker],
    poll: &mut Poll,
    bell: &mut UnixStream,
) -> io::Result<()> {
    enter(server, Phase::Draining, workers)?;
    let begun = Instant::now();
    let mut events = Events::with_capacity(1);
    while server.connections.current.load(Ordering::Relaxed) > 0 && begun.elapsed() < DRAIN_MAX {
        match poll.poll(&mut events, Some(LOG_INTERVAL)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => life_cycle::hear(bell),
        }
        if server.life.attend() == Phase::Ended {
            break;
        }
    }
    Ok(())
}

fn enter(server: &Server, phase: Phase, workers: &[Worker]) -> io::Result<()> {
    server.life.enter(phase);
    workers.iter().try_for_each(|worker| worker.waker.wake())
}

/// Accepts what waits at a listener; false if the system can't give more for now.
fn accept_all<'w>(
    server: &Server,
    listener: &Listener,
    turns: &mut impl Iterator<Item = &'w Worker>,
) -> bool {
    while server.accepts() {
        match listener.accept() {
            Ok((mut stream, peer)) => match server.admit(peer, &listener.name()) {
                Some(info) => {
                    let tls = server.tls_at(listener);
                    if let Some(worker) = turns.next() {
                        hand_over(worker, Accepted { stream, info, tls });
                    }
                }
                // It fits the socket's empty buffer; if not, the peer sees it close.
                None => drop(stream.write(TOO_MANY)),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if is_peers(&error) => (),
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections for now");
                return false;
            }
        }
    }
    true
}

/// Errors of one connection, not of the listener.
fn is_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

fn hand_over(worker: &Worker, accepted: Accepted) {
    if worker.connections.send(accepted).is_ok()
        && let Err(error) = worker.waker.wake()
    {
        tracing::error!(%error, "cannot wake a worker");
    }
}

/// A worker as it sees itself.
struct EventLoop<E: Engine> {
    index: usize,
    poll: Poll,
    inbox: Receiver<Accepted>,
    server: Arc<Server>,
    counters: Arc<Counters>,
    engine: E,
    connections: Vec<Option<Connection<E>>>,
    /// Free places in `connections`.
    vacant: Vec<usize>,
    /// Connections that have more to do, in turn.
    ready: VecDeque<usize>,
    /// UDP sockets.
    endpoints: Vec<Endpoint<E>>,
    /// What sessions of datagrams are told.
    udp_settings: Settings,
    /// Connections that show the log.
    watching: Vec<usize>,
    shown: Instant,
    input: Box<[u8]>,
    output: Vec<u8>,
    opened: Vec<u8>,
    sealed: Vec<u8>,
    /// Connections that have to agree on TLS by then, in that order.
    handshakes: VecDeque<(Instant, usize, Arc<ConnectionInfo>)>,
    maintained: Instant,
    /// Housekeeping has more to do.
    chores: bool,
}

impl<E: Engine> EventLoop<E> {
    fn new(
        index: usize,
        poll: Poll,
        inbox: Receiver<Accepted>,
        server: Arc<Server>,
        counters: Arc<Counters>,
        engine: E,
    ) -> Self {
        Self {
            index,
            poll,
            inbox,
            endpoints: Vec::new(),
            udp_settings: udp::settings(&server.settings),
            server,
            counters,
            engine,
            connections: Vec::new(),
            vacant: Vec::new(),
            ready: VecDeque::new(),
            watching: Vec::new(),
            shown: Instant::now(),
            input: vec![0; READ_LEN].into_boxed_slice(),
            output: Vec::new(),
            opened: Vec::new(),
            sealed: Vec::new(),
            handshakes: VecDeque::new(),
            maintained: Instant::now(),
            chores: false,
        }
    }

    /// Takes UDP sockets to serve.
    fn attach(&mut self, udp: Vec<UdpSocket>) -> io::Result<()> {
        for (index, socket) in udp.into_iter().enumerate() {
            let token = Token(FIRST_ENDPOINT + index);
            self.endpoints.push(Endpoint::new(socket, self.poll.registry(), token)?);
        }
        Ok(())
    }

    fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        while self.server.life.phase() < Phase::Ended {
            let busy = self.chores || !self.ready.is_empty();
            let timeout = match (busy, self.watching.is_empty()) {
                (true, _) => Duration::ZERO,
                (false, true) => MAINTENANCE,
                (false, false) => LOG_INTERVAL,
            };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the event queue failed: a worker ends");
                    return;
                }
                Ok(()) => (),
            }
            let now = self.server.clock.now();
            // Those that were ready before come after one event each, and only once.
            let waiting = self.ready.len();
            for event in &events {
                if event.token() == WAKER {
                    self.welcome();
                } else if event.token().0 >= FIRST_ENDPOINT {
                    self.serve_datagrams(event.token().0, now);
                } else if let Some(Some(connection)) = self.connections.get_mut(event.token().0) {
                    connection.note_event(event.is_readable(), event.is_read_closed());
                    self.serve(event.token().0, now);
                }
            }
            for _ in 0..waiting {
                match self.ready.pop_front() {
                    Some(index) if index >= FIRST_ENDPOINT => self.serve_datagrams(index, now),
                    Some(index) => self.serve(index, now),
                    None => break,
                }
            }
            self.show_log(now);
            self.do_chores(now);
            if self.server.life.phase() == Phase::Draining {
                self.drain(now);
            }
        }
    }

    /// Closes the connections that have nothing more to ask.
    fn drain(&mut self, now: larder_store::Seconds) {
        let is_quiet = |connection: &Connection<E>| connection.is_quiet();
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            if !is_quiet(connection) {
                continue;
            }
            // What has come before the end was announced is answered, whether its event is here.
            connection.note_event(true, false);
            self.serve(index, now);
            if self.connections[index].as_ref().is_some_and(is_quiet) {
                self.close(index);
            }
        }
    }

    /// Has watchers see what was logged, now and then.
    fn show_log(&mut self, now: larder_store::Seconds) {
        if self.watching.is_empty() || self.shown.elapsed() < LOG_INTERVAL {
            return;
        }
        self.shown = Instant::now();
        for index in std::mem::take(&mut self.watching) {
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.call_again();
                // It comes back to the list if it still watches.
                self.serve(index, now);
            }
        }
    }

    /// Takes in what the acceptor sent.
    fn welcome(&mut self) {
        while let Ok(accepted) = self.inbox.try_recv() {
            let info = Arc::clone(&accepted.info);
            let index = self.vacant.pop().unwrap_or(self.connections.len());
            match self.begin(index, accepted) {
                Ok(connection) => {
                    if index == self.connections.len() {
                        self.connections.push(None);
                    }
                    self.connections[index] = Some(connection);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a connection");
                    self.server.dismiss(&info);
                    self.vacant.push(index);
                }
            }
        }
    }

    fn begin(&mut self, index: usize, accepted: Accepted) -> io::Result<Connection<E>> {
        let Accepted { mut stream, info, tls } = accepted;
        let tls = match (tls, &self.server.tls) {
            (Some(config), Some(tls)) => {
                let by = Instant::now() + tls.handshake_timeout();
                self.handshakes.push_back((by, index, Arc::clone(&info)));
                let counts = Arc::clone(tls.counts());
                Some(Channel::new(config, counts).map_err(io::Error::other)?)
            }
            _ => None,
        };
        stream.register(self.poll.registry(), Token(index))?;
        Ok(Connection::new(stream, info, tls))
    }

    fn serve(&mut self, index: usize, now: larder_store::Seconds) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let (server, counters, engine) = (&*self.server, &*self.counters, &mut self.engine);
        let mut moved = Moved::default();
        let mut desk = Desk {
            input: &mut self.input,
            output: &mut self.output,
            opened: &mut self.opened,
            sealed: &mut self.sealed,
            registry: self.poll.registry(),
            now: now.0,
        };
        let after =
            connection.serve(Token(index), &mut desk, &mut moved, |session, input, output| {
                let settings = &server.settings;
                let mut cx = Context { engine, host: server, counters, settings, now };
                session.receive(&mut cx, input, output)
            });
        counters.thread.bytes_read.add(moved.read as u64);
        counters.thread.bytes_written.add(moved.written as u64);
        for buffer in [&mut self.output, &mut self.sealed] {
            if buffer.capacity() > OUTPUT_KEPT {
                *buffer = Vec::new();
            }
        }
        let change = connection.held_change();
        let fits = change == 0 || server.count_held(change);
        if !fits {
            counters.thread.read_buf_oom.add(1);
            tracing::warn!(
                "a connection is closed: all connections hold as much memory as they may"
            );
        }
        let watches = connection.session.state() == State::Watching;
        if watches && !self.watching.contains(&index) {
            self.watching.push(index);
        }
        match after {
            _ if !fits => {
                connection.info.note_failure();
                self.close(index);
            }
            After::Again => {
                counters.thread.conn_yields.add(1);
                self.ready.push_back(index);
            }
            After::Wait => (),
            After::Close => self.close(index),
        }
    }

    fn serve_datagrams(&mut self, index: usize, now: larder_store::Seconds) {
        let Some(endpoint) = self.endpoints.get_mut(index - FIRST_ENDPOINT) else { return };
        let (host, counters, engine) = (&*self.server, &*self.counters, &mut self.engine);
        let mut moved = Moved::default();
        let mut cx = Context { engine, host, counters, settings: &self.udp_settings, now };
        let after = endpoint.serve(&mut cx, &mut self.input, &mut self.output, &mut moved);
        counters.thread.bytes_read.add(moved.read as u64);
        counters.thread.bytes_written.add(moved.written as u64);
        if after == After::Again && !self.ready.contains(&index) {
            self.ready.push_back(index);
        }
    }

    fn close(&mut self, index: usize) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        connection.session.close(&*self.server);
        connection.end(&mut self.sealed);
        self.server.release_held(&mut connection);
        connection.stream.deregister(self.poll.registry());
        self.server.dismiss(&connection.info);
        self.vacant.push(index);
        self.ready.retain(|&ready| ready != index);
        self.watching.retain(|&watching| watching != index);
    }

    fn do_chores(&mut self, now: larder_store::Seconds) {
        let due = self.maintained.elapsed() >= MAINTENANCE;
        if due {
            self.maintained = Instant::now();
            self.server.beat(self.index);
            self.kick_idle(now);
            self.kick_handshakes();
        }
        if self.chores || due {
            self.chores = if self.server.controls.crawler_enabled() {
                self.engine.maintain(now)
            } else {
                self.engine.shrink()
            };
        }
    }
}

impl<E: Engine> EventLoop<E> {
    /// Closes connections that have waited for too long (`-o idle_timeout`).
    fn kick_idle(&mut self, now: larder_store::Seconds) {
        let timeout = self.server.options.suboptions.idle_timeout;
        if timeout == 0 {
            return;
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let idle = connection.idle_since().map_or(0, |since| now.0.saturating_sub(since));
            if idle > timeout {
                connection.info.note_end("idle_timeout");
                self.server.connections.idle_kicks.fetch_add(1, Ordering::Relaxed);
                self.close(index);
            }
        }
    }
}

impl<E: Engine> EventLoop<E> {
    /// Closes connections that take too long to agree on TLS.
    fn kick_handshakes(&mut self) {
        let now = Instant::now();
        while let Some((_, index, info)) = self.handshakes.pop_front_if(|(by, ..)| *by <= now) {
            // Its place may be another's by now.
            let late =
                self.connections.get(index).and_then(Option::as_ref).is_some_and(|connection| {
                    connection.is_shaking_hands() && connection.info.id == info.id
                });
            if late {
                info.note_failure();
                self.close(index);
            }
        }
    }
}

impl<E: Engine> Drop for EventLoop<E> {
    fn drop(&mut self) {
        (0..self.connections.len()).for_each(|index| self.close(index));
    }
}

impl Server {
    /// How a connection at `listener` is encrypted, if it is.
    fn tls_at(&self, listener: &Listener) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref()?.configuration(listener.security())
    }

    /// Counts out what a connection that ends held.
    fn release_held<E: Engine>(&self, connection: &mut Connection<E>) {
        self.count_held(-connection.counted_held());
    }

    /// Notes the listeners for `stats conns`.
    pub fn note_listeners(&self, listeners: &[Listener], udp: &[UdpSocket]) {
        let mut names = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        *names = listeners.iter().map(Listener::name).chain(udp.iter().map(udp::name)).collect();
    }

    /// Addresses that are listened on, in memcached's form.
    #[must_use]
    pub fn listening(&self) -> Vec<String> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
