//! The context of a worker thread under any driver, and what it does with it: turns of connections and
//! of UDP sockets, and maintenance.

use super::dispatch::Accepted;
use crate::connection::conversation::Conversation;
use crate::connection::list::ConnectionInfo;
use crate::connection::{Buffers, Connection, Fault, IoBytes, NextAction};
use crate::net::entry::Service;
use crate::net::udp::{self, Datagrams, Endpoint};
use crate::server::Server;
use crate::timing::Timing;
use crate::tls::channel::Channel;
use larder_operations::{Counters, OpContext};
use larder_session::{Context, Session, Settings};
use larder_store::{Engine, Overheld, Seconds};
use larder_support::clock::Moment;
use socket2::Socket;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long handshakes may keep other connections waiting in a round.
pub(super) const HANDSHAKE_SLICE: Duration = Duration::from_millis(1);

/// What belongs to one worker thread.
pub(super) struct WorkerContext<E: Engine> {
    index: usize,
    pub(super) server: Arc<Server>,
    counters: Arc<Counters>,
    engine: E,
    buffers: Buffers,
    /// The settings of sessions of datagrams.
    udp_settings: Settings,
    /// When maintenance was last done.
    maintained: Seconds,
    /// Time that handshakes have taken in this round.
    handshakes_took: Duration,
    /// Counts rounds, in which each task that is ready has a turn.
    round: u64,
}

impl<E: Engine + 'static> WorkerContext<E> {
    /// The context of the worker of this number, to be used on its thread alone.
    pub(super) fn new(index: usize, server: Arc<Server>, engine: E) -> Self {
        Self {
            index,
            counters: Arc::clone(&server.counters[index]),
            engine,
            buffers: Buffers::new(),
            udp_settings: udp::settings(&server),
            maintained: server.clock.now(),
            handshakes_took: Duration::ZERO,
            round: 0,
            server,
        }
    }

    /// The time, to be read once for a number of turns: when their events were reported.
    pub(super) fn now(&self) -> Moment {
        self.server.clock.moment()
    }

    /// The descriptor that becomes readable when reads have ended, for a driver that calls
    /// [`WorkerContext::turn_reads`] then.
    pub(super) fn poll_reads(&mut self) -> Option<RawFd> {
        self.engine.poll_reads()
    }

    /// Submits the reads that were begun, and ends those that are done.
    pub(super) fn turn_reads(&mut self) {
        self.engine.turn_reads();
    }

    /// Begins a round of turns.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.handshakes_took = Duration::ZERO;
    }

    /// Whether there is time for a handshake in this round: one takes as long as a thousand requests,
    /// so connections with requests go first.
    pub(super) fn has_time_for_handshake(&self) -> bool {
        self.handshakes_took < HANDSHAKE_SLICE
    }

    /// The same for a task, which has waited since the round that it was told; the round to wait for
    /// if not. Tasks that have waited come to their turns when all that were ready had theirs.
    pub(super) fn admit_handshake(&mut self, waited: Option<u64>) -> Result<(), u64> {
        if waited == Some(self.round) {
            self.begin_round();
        }
        if self.has_time_for_handshake() { Ok(()) } else { Err(self.round) }
    }

    /// A turn of a connection that is still in its TLS handshake.
    fn serve_handshake(
        &mut self,
        connection: &mut Connection<Session<E>>,
        stream: &mut (impl Read + Write),
        now: Moment,
        waker: &dyn Fn() -> Waker,
    ) -> NextAction {
        let begun = Instant::now();
        let after = self.serve_request(connection, stream, now, waker);
        self.handshakes_took += begun.elapsed();
        after
    }

    /// A connection's turn. `waker` makes what wakes it from [`NextAction::Hold`].
    pub(super) fn serve(
        &mut self,
        connection: &mut Connection<Session<E>>,
        stream: &mut (impl Read + Write),
        now: Moment,
        waker: &dyn Fn() -> Waker,
    ) -> NextAction {
        if connection.is_handshaking() {
            self.serve_handshake(connection, stream, now, waker)
        } else {
            self.serve_request(connection, stream, now, waker)
        }
    }

    fn serve_request(
        &mut self,
        connection: &mut Connection<Session<E>>,
        stream: &mut (impl Read + Write),
        now: Moment,
        waker: &dyn Fn() -> Waker,
    ) -> NextAction {
        if connection.is_shed() {
            return NextAction::Close;
        }
        let host = &*self.server;
        let settings = &host.settings;
        let (counters, limits) = (&*self.counters, &settings.limits);
        let operations = OpContext::new(&mut self.engine, counters, limits, now);
        let mut cx = Context { operations, host, settings, waker };
        let mut moved = IoBytes::default();
        let timing = Timing { begun: now, clock: &host.clock, latencies: &counters.latencies };
        let after = connection.serve(stream, &mut self.buffers, &timing, &mut moved, &mut cx);
        let after = after.unwrap_or_else(|fault| {
            host.note_fault(&connection.info, &fault);
            NextAction::Close
        });
        self.buffers.shrink();
        self.count(moved);
        if !self.count_held(connection) {
            connection.info.note_failure();
            return NextAction::Close;
        }
        if after == NextAction::PollAgain {
            self.counters.thread.conn_yields.add(1);
        }
        after
    }

    fn count(&self, moved: IoBytes) {
        self.counters.thread.bytes_read.add(moved.read as u64);
        self.counters.thread.bytes_written.add(moved.written as u64);
    }

    /// False if the connection has taken more memory than there is for all of them.
    fn count_held(&self, connection: &mut Connection<Session<E>>) -> bool {
        let change = connection.held_change(|| self.server.clock.millis());
        if connection.is_holding_cache() {
            self.free_cache();
        }
        if change == 0 {
            return true;
        }
        let total = self.server.connections.count_held(change);
        let fits = change < 0
            || self.server.makes_room(&connection.info, connection.buffer_bytes(), total);
        if !fits {
            self.counters.thread.read_buf_oom.add(1);
            self.server.warnings.refused.warn(|| {
                "a connection is closed: the buffers of all connections take as much memory as they \
                 may; lower -c, or give -m more than 1024".to_owned()
            });
        }
        fits
    }

    /// Closes stalled connections where values on their way in or out keep too much of the cache.
    fn free_cache(&self) {
        let over = self.engine.overheld();
        if over != Overheld::default() {
            self.server.free_cache(over);
        }
    }

    /// A UDP socket's turn.
    pub(super) fn serve_datagrams(
        &mut self,
        endpoint: &mut Endpoint<E>,
        socket: &impl Datagrams,
        now: Moment,
        waker: &dyn Fn() -> Waker,
    ) -> NextAction {
        let (engine, settings) = (&mut self.engine, &self.udp_settings);
        let counters = &*self.counters;
        let operations = OpContext::new(engine, counters, &settings.limits, now);
        let host = &*self.server;
        let mut cx = Context { operations, host, settings, waker };
        let mut moved = IoBytes::default();
        let timing = Timing { begun: now, clock: &host.clock, latencies: &counters.latencies };
        let after = endpoint.serve(socket, &mut cx, &mut self.buffers, &timing, &mut moved);
        self.count(moved);
        after
    }

    /// Notes that the thread is alive.
    pub(super) fn heartbeat(&self) {
        self.server.heartbeat(self.index);
    }

    /// A little maintenance; true if there is more to do.
    pub(super) fn maintain(&mut self, now: Seconds) -> bool {
        if self.maintained != now {
            self.free_cache();
        }
        self.maintained = now;
        if self.server.controls.crawler_enabled() {
            self.engine.maintain(now)
        } else {
            self.engine.shrink()
        }
    }

    /// The same, unless it was done in this second.
    pub(super) fn maintain_if_due(&mut self, now: Seconds) {
        if self.maintained != now {
            self.maintain(now);
        }
    }
}

impl Server {
    /// A connection that was accepted, its stream, and by when it has to be agreed on TLS, if it has.
    pub(super) fn begin<E: Engine + 'static>(
        &self,
        accepted: Accepted,
    ) -> io::Result<(Connection<Session<E>>, Socket, Option<Instant>)> {
        let Accepted { stream, info, tls, service } = accepted;
        let session = match service {
            Service::Memcached { opening } => Session::opening(opening, info.id),
            Service::Resp { login_required } => Session::resp(info.id, login_required),
        };
        let (Some(config), Some(tls)) = (tls, &self.guards.tls) else {
            return Ok((Connection::new(info, session, None), stream, None));
        };
        let by = Instant::now() + tls.handshake_timeout();
        let channel = Channel::new(config, Arc::clone(tls.counts())).map_err(io::Error::other)?;
        Ok((Connection::new(info, session, Some(channel)), stream, Some(by)))
    }

    /// Ends a connection: releases its memory, announces the end to the peer, and removes it from the
    /// list.
    pub(super) fn finish(
        &self,
        connection: &mut Connection<impl Conversation>,
        stream: &mut impl Write,
    ) {
        connection.conversation.close(self);
        if connection.is_handshaking() && connection.info.ended().is_none() {
            self.log.note_fault(connection.info.id, true, "it ends in the middle of a handshake");
        }
        connection.end(stream);
        self.connections.count_held(-connection.counted_held());
        self.dismiss(&connection.info);
    }

    /// Notes the error that ends a connection early.
    fn note_fault(&self, info: &ConnectionInfo, fault: &Fault) {
        let (tls, error) = match fault {
            Fault::Stream(error) => (false, error),
            Fault::Tls(error) => (true, error),
        };
        tracing::debug!(peer = info.peer, %error, "a connection ends with an error");
        info.note_failure();
        self.log.note_fault(info.id, tls, error);
    }

    /// Notes that a connection's TLS handshake takes too long.
    pub(super) fn note_late_handshake(&self, info: &ConnectionInfo) {
        info.note_failure();
        self.log.note_fault(info.id, true, "the handshake takes too long");
    }

    /// Whether a connection has waited for too long (`-o idle_timeout`), and is to be closed.
    pub(super) fn is_idle_timed_out(
        &self,
        connection: &Connection<impl Conversation>,
        now: Seconds,
    ) -> bool {
        let timeout = self.options.suboptions.idle_timeout;
        let timed_out = timeout > 0
            && connection.idle_since().is_some_and(|since| now.0.saturating_sub(since) > timeout);
        if timed_out {
            connection.info.note_end("idle_timeout");
            self.connections.idle_kicks.fetch_add(1, Ordering::Relaxed);
        }
        timed_out
    }
}
