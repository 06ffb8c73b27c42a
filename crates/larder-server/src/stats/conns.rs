//! Rows of `stats conns`. memcached numbers listeners and connections by file descriptor; here they
//! have numbers of their own, which are not used again. They are many and come and go, so they are
//! no metrics.

use super::table::{Condition, Entry, Row, Source, Unit};
use crate::connections::ConnectionInfo;
use crate::server::Server;

/// A listener or a connection.
#[derive(Debug)]
pub(super) struct Socket<'a> {
    /// Seconds since it was last used.
    idle_secs: u64,
    kind: SocketKind<'a>,
}

#[derive(Debug)]
enum SocketKind<'a> {
    /// Its address, in memcached's form.
    Listener(&'a str),
    Connection(&'a ConnectionInfo),
}

/// Calls for each listener, then for each connection, with its number.
pub(super) fn visit(server: &Server, show: &mut dyn FnMut(u64, Socket<'_>)) {
    for (id, address) in (1..).zip(&server.listening()) {
        let kind = SocketKind::Listener(address);
        show(id, Socket { idle_secs: server.clock.uptime(), kind });
    }
    let now = server.clock.now().0;
    for (&id, conn) in server.connections.open().iter() {
        let idle_secs = now.saturating_sub(conn.last_command()).into();
        show(id, Socket { idle_secs, kind: SocketKind::Connection(conn) });
    }
}

impl Socket<'_> {
    fn address(&self) -> String {
        match self.kind {
            SocketKind::Listener(address) => address.to_owned(),
            SocketKind::Connection(conn) => conn.peer.clone(),
        }
    }

    fn listener(&self) -> String {
        match self.kind {
            SocketKind::Listener(address) => address.to_owned(),
            SocketKind::Connection(conn) => conn.listener.clone(),
        }
    }

    fn state(&self) -> &'static str {
        match self.kind {
            SocketKind::Listener(_) if self.is_udp() => "conn_read",
            SocketKind::Listener(_) => "conn_listening",
            SocketKind::Connection(conn) => conn.state(),
        }
    }

    /// It is a UDP socket, on which there are no connections.
    fn is_udp(&self) -> bool {
        matches!(self.kind, SocketKind::Listener(address) if address.starts_with("udp"))
    }
}

const UDP: Condition = Condition::new(
    "for UDP sockets",
    |_, entry| matches!(entry, Entry::Socket(socket) if socket.is_udp()),
);
const CONNECTION: Condition = Condition::new("for connections", |_, entry| {
    let Entry::Socket(socket) = entry else { return false };
    matches!(socket.kind, SocketKind::Connection(_))
});

pub(super) const ROWS: &[Row] = &[
    Row::constant("UDP", "UDP", "It is a UDP socket.").shown(UDP),
    Row::text(
        "addr",
        Source::Socket(|s| s.address().into()),
        "Address that a listener is bound to, or that a connection comes from.",
    ),
    Row::text(
        "listen_addr",
        Source::Socket(|s| s.listener().into()),
        "Address of the listener at which the connection came in.",
    )
    .shown(CONNECTION),
    Row::text("state", Source::Socket(|s| s.state().into()), "What it does, in memcached's words."),
    Row::gauge(
        "secs_since_last_cmd",
        Source::Socket(|s| s.idle_secs.into()),
        "Time since its last request, for a listener since the start.",
    )
    .unit(Unit::Seconds),
];
