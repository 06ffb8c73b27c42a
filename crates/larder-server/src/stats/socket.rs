//! The listeners and connections of `stats conns`.

use crate::connection::list::ConnectionInfo;
use crate::server::Server;

/// A listener or a connection.
#[derive(Debug)]
pub(super) struct Socket<'a> {
    /// For a connection, the seconds since its last request. For a listener, the seconds since the
    /// start of the server.
    idle_secs: u64,
    kind: SocketKind<'a>,
}

#[derive(Debug)]
enum SocketKind<'a> {
    /// The address in memcached's format.
    Listener(&'a str),
    Connection(&'a ConnectionInfo),
}

/// Calls `show` for each listener, then for each connection, with its ID.
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
    pub(super) fn idle_secs(&self) -> u64 {
        self.idle_secs
    }

    pub(super) fn address(&self) -> String {
        match self.kind {
            SocketKind::Listener(address) => address.to_owned(),
            SocketKind::Connection(conn) => conn.peer.clone(),
        }
    }

    pub(super) fn listener(&self) -> String {
        match self.kind {
            SocketKind::Listener(address) => address.to_owned(),
            SocketKind::Connection(conn) => conn.listener.clone(),
        }
    }

    pub(super) fn state(&self) -> &'static str {
        match self.kind {
            SocketKind::Listener(_) if self.is_udp() => "conn_read",
            SocketKind::Listener(_) => "conn_listening",
            SocketKind::Connection(conn) => conn.state(),
        }
    }

    /// Returns whether this is a UDP socket, which has no connections.
    pub(super) fn is_udp(&self) -> bool {
        matches!(self.kind, SocketKind::Listener(address) if address.starts_with("udp"))
    }

    pub(super) fn is_connection(&self) -> bool {
        matches!(self.kind, SocketKind::Connection(_))
    }
}
