//! The accepted connections whose handshake has not ended.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of connections in their handshake.
const HANDSHAKES_MAX: usize = 64;

/// The connections in their handshake. A new connection replaces the oldest one if there are too
/// many, so that silent connections do not keep out the peers, which send their first frame at
/// once.
#[derive(Debug, Default)]
pub(crate) struct PendingHandshakes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Copies of the sockets by number, the oldest first.
    sockets: VecDeque<(u64, TcpStream)>,
    next: u64,
}

impl PendingHandshakes {
    /// Adds a connection. Returns its number for [`Self::end`], or `None` if the system refuses to
    /// copy the socket.
    pub(crate) fn start(&self, socket: &TcpStream) -> Option<u64> {
        let copy = socket.try_clone().ok()?;
        let mut state = self.lock();
        if state.sockets.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = state.sockets.pop_front()
        {
            // The thread of the connection reads its end.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = state.next;
        state.next += 1;
        state.sockets.push_back((number, copy));
        Some(number)
    }

    /// Removes a connection whose handshake has ended. Does nothing if another one has replaced it.
    pub(crate) fn end(&self, number: u64) {
        self.lock().sockets.retain(|(of, _)| *of != number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
