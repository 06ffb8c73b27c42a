//! The context of a worker thread. All drivers use it to poll connections and UDP sockets, and to
//! do maintenance.

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
use larder_store::{Engine, ExcessMemory, Seconds};
use larder_support::clock::Moment;
use socket2::Socket;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

/// In one event-loop iteration, the worker spends about this time on TLS handshakes. It polls the
/// remaining handshakes in the next iteration. The per-core driver uses the same limit for new
/// connections.
pub(super) const HANDSHAKE_SLICE: Duration = Duration::from_millis(1);

/// The state of one worker thread.
pub(super) struct WorkerContext<E: Engine> {
    index: usize,
    pub(super) server: Arc<Server>,
    counters: Arc<Counters>,
    engine: E,
    buffers: Buffers,
    /// The settings for the sessions of UDP requests.
    udp_settings: Settings,
    /// The time of the last maintenance.
    maintained: Seconds,
    /// The total time spent on polling handshakes in this iteration.
    handshakes_took: Duration,
    /// The number of the event-loop iteration. Under Tokio, which has no such loop, an iteration is
    /// the period in which each ready task is polled once, and the number increases only while
    /// handshakes wait.
    iteration: u64,
}

impl<E: Engine + 'static> WorkerContext<E> {
    /// Creates the context of worker `index`. Call this on that worker's thread.
    pub(super) fn new(index: usize, server: Arc<Server>, engine: E) -> Self {
        Self {
            index,
            counters: Arc::clone(&server.counters[index]),
            engine,
            buffers: Buffers::new(),
            udp_settings: udp::settings(&server),
            maintained: server.clock.now(),
            handshakes_took: Duration::ZERO,
            iteration: 0,
            server,
        }
    }

    /// Reads the clock. The per-core driver calls this once per iteration, the Tokio drivers once
    /// per poll.
    pub(super) fn now(&self) -> Moment {
        self.server.clock.moment()
    }

    /// Returns the descriptor that becomes readable when flash reads complete, or `None` if no
    /// descriptor reports them. The driver calls [`WorkerContext::drive_reads`] when the descriptor
    /// is readable.
    pub(super) fn reads_fd(&mut self) -> Option<RawFd> {
        self.engine.reads_fd()
    }

    /// Submits queued flash reads, and processes the completed ones.
    pub(super) fn drive_reads(&mut self) {
        self.engine.drive_reads();
    }

    /// Starts an event-loop iteration.
    pub(super) fn start_iteration(&mut self) {
        self.iteration = self.iteration.wrapping_add(1);
        self.handshakes_took = Duration::ZERO;
    }

    /// Returns whether this iteration has time for another handshake. A handshake takes as long as
    /// a thousand requests, so connections with requests are polled first.
    pub(super) fn has_time_for_handshake(&self) -> bool {
        self.handshakes_took < HANDSHAKE_SLICE
    }

    /// Returns `Ok` if this iteration has time for a handshake. Otherwise returns the number of the
    /// iteration as an error. The task must then yield, and pass this number as `waited` to its
    /// next call.
    ///
    /// Tokio polls a yielded task only after all other ready tasks. So if `waited` is the number of
    /// the current iteration, all ready tasks were polled, and this function starts the next
    /// iteration.
    pub(super) fn admit_handshake(&mut self, waited: Option<u64>) -> Result<(), u64> {
        if waited == Some(self.iteration) {
            self.start_iteration();
        }
        if self.has_time_for_handshake() { Ok(()) } else { Err(self.iteration) }
    }

    /// Polls a connection in its TLS handshake, and adds the duration to `handshakes_took`.
    fn serve_handshake(
        &mut self,
        connection: &mut Connection<Session<E>>,
        stream: &mut (impl Read + Write),
        now: Moment,
        waker: &dyn Fn() -> Waker,
    ) -> NextAction {
        let start = Instant::now();
        let after = self.serve_request(connection, stream, now, waker);
        self.handshakes_took += start.elapsed();
        after
    }

    /// Polls a connection. If it returns [`NextAction::Hold`], the connection is held until the
    /// waker that `waker` creates is called.
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
        let mut after = connection.serve(stream, &mut self.buffers, &timing, &mut moved, &mut cx);
        if connection.may_read_ahead() && matches!(after, Ok(NextAction::Wait)) {
            let room = host.read_ahead_room();
            after = connection.read_ahead(stream, &mut self.buffers, room, &mut moved);
            if connection.awaits_room() {
                host.connections.wait_for_room(connection.info.id, waker());
            }
        }
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

    /// Publishes the memory that the connection holds. Returns false if this memory exceeds the
    /// memory limit of all connections. The caller must then close the connection.
    fn count_held(&self, connection: &mut Connection<Session<E>>) -> bool {
        let change = connection.held_change(|| self.server.clock.millis());
        if connection.is_holding_cache() {
            self.free_cache();
        }
        if change == 0 {
            return true;
        }
        let total = self.server.connections.count_held(change);
        if change < 0 {
            self.server.offer_room();
        }
        let fits =
            change < 0 || self.server.shed_for(&connection.info, connection.buffer_bytes(), total);
        if !fits {
            self.counters.thread.read_buf_oom.add(1);
            self.server.warnings.refused.warn(|| {
                "connection closed: the buffers of all connections reached their memory limit; lower -c, or \
                 raise -m above 1024"
                    .to_owned()
            });
        }
        fits
    }

    /// Marks connections for closing if the values that are being sent or received occupy too much
    /// cache memory.
    fn free_cache(&self) {
        let over = || self.engine.excess_memory();
        if over() != ExcessMemory::default() {
            self.server.free_cache(over);
        }
    }

    /// Polls a UDP socket. If it returns [`NextAction::Hold`], a request is held until the waker
    /// that `waker` creates is called.
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

    /// Records that the thread is alive, for the watchdog.
    pub(super) fn heartbeat(&self) {
        self.server.heartbeat(self.index);
    }

    /// Runs one slice of maintenance. Returns true if work is left. Skips the search for expired
    /// items if the crawler is disabled.
    pub(super) fn maintain(&mut self, now: Seconds) -> bool {
        if self.maintained != now {
            self.free_cache();
            self.server.follow_wall_clock();
            self.server.offer_room();
        }
        self.maintained = now;
        if self.server.controls.crawler_enabled() {
            self.engine.maintain(now)
        } else {
            self.engine.shrink(now)
        }
    }

    /// Runs one slice of maintenance, unless a slice has already run in the second `now`.
    pub(super) fn maintain_if_due(&mut self, now: Seconds) {
        if self.maintained != now {
            self.maintain(now);
        }
    }
}

impl Server {
    /// Creates the connection for an accepted stream. Returns it with the stream and the deadline
    /// of its TLS handshake.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub(super) fn open<E: Engine + 'static>(
        &self,
        accepted: Accepted,
    ) -> io::Result<(Connection<Session<E>>, Socket, Option<Instant>)> {
        let Accepted { stream, info, tls, service } = accepted;
        let session = match service {
            Service::Memcached { opening } => Session::opening(opening, info.id),
            Service::Resp { login_required } => Session::resp(info.id, login_required),
        };
        let (Some(config), Some(tls)) = (tls, &self.access.tls) else {
            return Ok((Connection::new(info, session, None), stream, None));
        };
        let by = Instant::now() + tls.handshake_timeout();
        let channel = Channel::new(config, Arc::clone(tls.counts())).map_err(io::Error::other)?;
        Ok((Connection::new(info, session, Some(channel)), stream, Some(by)))
    }

    /// Closes a connection: releases its memory, sends the TLS close alert, and removes it from the
    /// list.
    pub(super) fn finish(
        &self,
        connection: &mut Connection<impl Conversation>,
        stream: &mut impl Write,
    ) {
        connection.conversation.close(self);
        if connection.is_handshaking() && connection.info.ended().is_none() {
            self.log.note_fault(connection.info.id, true, "connection closed during the handshake");
        }
        connection.end(stream);
        self.connections.count_held(-connection.counted_held());
        self.connections.forget_room_waiter(connection.info.id);
        self.offer_room();
        self.dismiss(&connection.info);
    }

    /// Records the error that closes a connection.
    fn note_fault(&self, info: &ConnectionInfo, fault: &Fault) {
        let (tls, error) = match fault {
            Fault::Stream(error) => (false, error),
            Fault::Tls(error) => (true, error),
        };
        tracing::debug!(peer = info.peer, %error, "connection failed");
        info.note_failure();
        self.log.note_fault(info.id, tls, error);
    }

    /// Checks whether the system's clock was set. If it was, logs a warning. Absolute expiry times
    /// that clients send from then on refer to the new time, and the server's own clock stays
    /// unchanged.
    fn follow_wall_clock(&self) {
        if let Some(secs) = self.clock.follow_wall_clock() {
            tracing::warn!(
                "clock: the system's clock was set {} s {}; lifetimes of items stay, and times of expiry that clients \
                 give from now on follow it",
                secs.unsigned_abs(),
                if secs < 0 { "back" } else { "forward" }
            );
        }
    }

    /// Records that a TLS handshake has timed out.
    pub(super) fn note_late_handshake(&self, info: &ConnectionInfo) {
        info.note_failure();
        self.log.note_fault(info.id, true, "handshake timed out");
    }

    /// Returns whether a connection has passed `-o idle_timeout` and must be closed. If so, records
    /// the reason and counts the connection.
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
