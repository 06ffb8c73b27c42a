//! Rows of `stats conns`. memcached numbers listeners and connections by file descriptor; here they
//! have numbers of their own, which are not used again. They are many and come and go, so they are
//! no metrics.

use crate::stats::row::{Condition, Entry, Row, Source, Unit};

const UDP: Condition = Condition::new(
    "for UDP sockets",
    |_, entry| matches!(entry, Entry::Socket(socket) if socket.is_udp()),
);
const CONNECTION: Condition = Condition::new(
    "for connections",
    |_, entry| matches!(entry, Entry::Socket(socket) if socket.is_connection()),
);

pub(in crate::stats) const ROWS: &[Row] = &[
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
        Source::Socket(|s| s.idle_secs().into()),
        "Time since its last request, for a listener since the start.",
    )
    .unit(Unit::Seconds),
];
