//! A client: generates requests, and sends each to the server that owns its key.
//!
//! A client has one connection to each server, like a client library. The pipeline depth applies to
//! the client: it limits the outstanding requests of all its connections together. Unless the
//! pipeline is sliding, the client sends the next batch when the whole previous batch is answered,
//! so a slow server delays the requests to the other servers.

use crate::load::connection::Connection;
use crate::load::connection::answers::PendingRequest;
use crate::load::requests::generator::Generator;
use crate::load::requests::request::Request;
use crate::load::requests::trace_queue::TraceQueue;
use crate::load::stats::LoadStats;
use crate::load::stats::unsent::Unsent;
use crate::load::wire::Writer;
use crate::load::workload::Load;
use crate::run_error::RunError;
use larder_protocol::encode::WireKey;
use std::io;

/// A client with its connections.
#[derive(Debug)]
pub(crate) struct Client {
    generator: Generator,
    /// The connections, indexed by server. `None` if the connection is lost and will not be
    /// reconnected.
    connections: Vec<Option<Connection>>,
    routing: Routing,
}

/// Buffers for routing keys to servers.
#[derive(Debug)]
struct Routing {
    /// The key of a command.
    key: Vec<u8>,
    /// The keys of a get, split by server.
    parts: Vec<Vec<u64>>,
}

impl Client {
    /// Opens the connections of client `index` of the run, or only prepares them if a later step of
    /// the run opens them.
    ///
    /// # Errors
    /// A connection cannot be opened, or the distribution of keys or the shares of the key spaces
    /// are invalid.
    pub(crate) fn new(load: &Load, index: usize) -> Result<Self, RunError> {
        let servers = load.settings.servers.len();
        let connections = (0..servers).map(|server| Connection::new(load, index, server).map(Some));
        Ok(Self {
            connections: connections.collect::<Result<_, _>>()?,
            generator: Generator::new(&load.settings, index)?,
            routing: Routing { key: Vec::new(), parts: vec![Vec::new(); servers] },
        })
    }

    /// Returns an iterator over the connections. Lost connections that were removed are not
    /// included.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().flatten()
    }

    /// Returns an iterator over the connections. Lost connections that were removed are not
    /// included.
    pub(crate) fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().flatten()
    }

    /// Returns the connection to a server, or `None` if the connection is lost and was removed.
    #[inline]
    pub(crate) fn connection(&mut self, server: usize) -> Option<&mut Connection> {
        self.connections.get_mut(server)?.as_mut()
    }

    /// Removes and returns the lost connection to a server. Returns `None` if it was already
    /// removed.
    pub(crate) fn take_connection(&mut self, server: usize) -> Option<Connection> {
        self.connections.get_mut(server)?.take()
    }

    /// Returns the requests that have not been answered yet.
    pub(crate) fn into_pending(self) -> impl Iterator<Item = PendingRequest> {
        self.connections.into_iter().flatten().flat_map(Connection::into_pending)
    }

    /// Returns the queue of recorded requests, or `None` unless the run replays a trace.
    pub(crate) fn trace(&mut self) -> Option<&mut TraceQueue> {
        self.generator.trace()
    }

    /// Moves the sets that follow misses in a trace from the connections to the request queue.
    pub(crate) fn take_sets(&mut self) {
        let Self { generator, connections, .. } = self;
        if let Some(queue) = generator.trace() {
            let connections = connections.iter_mut().flatten();
            connections.flat_map(Connection::take_sets).for_each(|set| queue.push_set(set));
        }
    }

    /// Returns the number of requests that remain to be generated; `None` in a timed run and in a
    /// replay of a trace.
    pub(crate) fn left(&self) -> Option<u64> {
        self.generator.left()
    }

    /// Returns whether no connection is left, because all were lost and removed.
    pub(crate) fn is_lost(&self) -> bool {
        self.connections().next().is_none()
    }

    /// Returns whether the connections are not open yet, because a later step of the run opens
    /// them.
    pub(crate) fn is_dormant(&self) -> bool {
        self.connections().any(Connection::is_dormant)
    }

    /// Returns whether no reply is outstanding on any connection, and no connection is being opened
    /// or reconnected.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections().all(Connection::is_idle)
    }

    /// Returns whether a request remains and can be sent now. A request can be sent if all
    /// connections are open and, unless the pipeline is sliding, all replies have arrived.
    #[inline]
    pub(crate) fn is_ready(&self, load: &Load) -> bool {
        self.generator.has_next()
            && match self.connections.as_slice() {
                [Some(connection)] => connection.is_ready(load),
                _ => self.connections().all(|connection| connection.is_ready(load)),
            }
    }

    /// Returns whether all requests have been sent and answered. A timed run is done only if it
    /// replays a trace that has ended.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.generator.is_exhausted() && self.unanswered() == 0
    }

    /// Returns the number of requests that have not been answered yet.
    #[inline]
    pub(crate) fn unanswered(&self) -> usize {
        self.connections().map(Connection::unanswered).sum()
    }

    /// Writes requests into the output buffers of their connections until the pipeline or an output
    /// buffer is full, no request is left, or a reconnect is due. Counts a request in `unsent` if
    /// its connection is lost. Latency counts from `at`. In an open loop over a trace, it counts
    /// from the time at which the request was due.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        load: &Load,
        at: u64,
        writer: &mut Writer,
        stats: &mut LoadStats,
        unsent: &mut Unsent,
    ) {
        let Self { generator, connections, .. } = self;
        if let [Some(connection)] = connections.as_mut_slice() {
            while generator.has_next() && connection.has_room(load) {
                connection.enqueue(load, generator.next(load), at, writer, stats);
            }
            return;
        }
        self.fill_several(load, at, writer, stats, unsent);
    }

    /// Sends as much of the output buffers as the sockets accept. Returns each server whose
    /// connection is lost, with the error.
    #[inline]
    pub(crate) fn send(
        &mut self,
        load: &Load,
        now: impl Fn() -> u64,
        stats: &mut LoadStats,
    ) -> Vec<(usize, io::Error)> {
        let mut lost = Vec::new();
        for (server, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection
                && let Err(error) = connection.send_or_receive(load, &now, stats)
            {
                lost.push((server, error));
            }
        }
        lost
    }

    /// Does the work of [`fill`](Self::fill) for several servers. This separate, never inlined
    /// function keeps the code for one server short.
    #[inline(never)]
    fn fill_several(
        &mut self,
        load: &Load,
        at: u64,
        writer: &mut Writer,
        stats: &mut LoadStats,
        unsent: &mut Unsent,
    ) {
        for _ in self.unanswered()..load.settings.pipeline {
            if !self.generator.has_next() {
                return;
            }
            self.enqueue(load, at, writer, stats, unsent);
        }
    }

    /// Returns whether a request is left, and the pipeline and the output buffers have room for it.
    pub(crate) fn has_room(&self, load: &Load) -> bool {
        self.generator.has_next()
            && self.unanswered() < load.settings.pipeline
            && self.connections().all(|connection| connection.has_room(load))
    }

    /// Writes one request into the output buffers of its connections. If one of these connections
    /// is lost, counts that connection's part of the request in `unsent`. Latency counts from `at`.
    pub(crate) fn enqueue(
        &mut self,
        load: &Load,
        at: u64,
        writer: &mut Writer,
        stats: &mut LoadStats,
        unsent: &mut Unsent,
    ) {
        let Self { generator, connections, routing } = self;
        let request = generator.next(load);
        if let [Some(connection)] = connections.as_mut_slice() {
            return connection.enqueue(load, request, at, writer, stats);
        }
        routing.distribute(load, request, writer, |server, part, writer| {
            match &mut connections[server] {
                Some(connection) => connection.enqueue(load, part, at, writer, stats),
                None => unsent.add(part.kind(load), at),
            }
        });
    }
}

impl Routing {
    /// Calls `send` with the index of the server that owns the key, and the request. Splits a get
    /// of several keys into one get per server.
    fn distribute(
        &mut self,
        load: &Load,
        request: Request<'_>,
        writer: &mut Writer,
        mut send: impl FnMut(usize, Request<'_>, &mut Writer),
    ) {
        match request {
            Request::Get { space, keys: keys @ [_, _, ..] } => {
                for key in keys {
                    let server = server_of(load, writer.key(space, *key));
                    self.parts[server].push(*key);
                }
                for (server, keys) in self.parts.iter_mut().enumerate() {
                    if !keys.is_empty() {
                        send(server, Request::Get { space, keys }, writer);
                        keys.clear();
                    }
                }
            }
            Request::Set { space, key, .. } => {
                send(server_of(load, writer.key(space, key)), request, writer);
            }
            Request::Get { space, keys } => {
                let server = keys.first().map_or(0, |key| server_of(load, writer.key(space, *key)));
                send(server, request, writer);
            }
            // The validation of options rejects a trace with several servers.
            Request::Recorded(_) => send(0, request, writer),
            Request::Command { number, keys, .. } => {
                // With several servers, the validation of options rejects a command that does not
                // have exactly one key.
                self.key.clear();
                let key = keys.first().map(|key| writer.key(0, *key));
                load.commands.write_key(number, key, &mut self.key);
                send(load.router.server_of(&self.key), request, writer);
            }
        }
    }
}

fn server_of(load: &Load, key: WireKey<'_>) -> usize {
    load.router.server_of(key.bytes())
}
