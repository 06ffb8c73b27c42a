//! Rows of `stats conns`. memcached identifies listeners and connections by file descriptor. Larder
//! assigns IDs and never reuses them. These rows are not metrics, because connections are too
//! numerous and too short-lived.

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
        "Address of a listener, or of the peer of a connection.",
    ),
    Row::text(
        "listen_addr",
        Source::Socket(|s| s.listener().into()),
        "Address of the listener that accepted the connection.",
    )
    .shown(CONNECTION),
    Row::text(
        "state",
        Source::Socket(|s| s.state().into()),
        "State of the connection, in memcached's words.",
    ),
    Row::gauge(
        "secs_since_last_cmd",
        Source::Socket(|s| s.idle_secs().into()),
        "Time since the last request of a connection; for a listener, since the start.",
    )
    .unit(Unit::Seconds),
];
