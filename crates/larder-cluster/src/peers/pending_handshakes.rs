//! The accepted connections whose handshakes have not ended.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of handshakes under way.
const HANDSHAKES_MAX: usize = 64;

/// The connections whose handshakes are under way. If there are [`HANDSHAKES_MAX`], a new
/// connection replaces the oldest connection from the address with the most connections. Silent
/// connections therefore cannot keep out peers, which send their first frame at once.
#[derive(Debug, Default)]
pub(crate) struct PendingHandshakes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The connections, oldest first.
    pending: VecDeque<Pending>,
    next: u64,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    /// The peer's address; for IPv6, the first address of its network.
    from: IpAddr,
    /// A duplicate of the socket, for shutting the connection down.
    socket: TcpStream,
}

impl State {
    /// Closes and removes the oldest connection from the address that has the most connections.
    fn evict(&mut self) {
        let mut counts = HashMap::new();
        self.pending.iter().for_each(|pending| *counts.entry(pending.from).or_insert(0) += 1);
        let most = counts.values().copied().max();
        let evicted =
            self.pending.iter().position(|pending| counts.get(&pending.from) == most.as_ref());
        if let Some(evicted) = evicted.and_then(|position| self.pending.remove(position)) {
            // The connection's thread then reads the end of the stream.
            let _ = evicted.socket.shutdown(Shutdown::Both);
        }
    }
}

impl PendingHandshakes {
    /// Adds a connection from this address. Returns its number for [`Self::end`], or `None` if
    /// duplicating the socket fails.
    pub(crate) fn start(&self, socket: &TcpStream, from: IpAddr) -> Option<u64> {
        let copy = socket.try_clone().ok()?;
        let mut state = self.lock();
        if state.pending.len() >= HANDSHAKES_MAX {
            state.evict();
        }
        let number = state.next;
        state.next += 1;
        let from = network_of(from);
        state.pending.push_back(Pending { number, from, socket: copy });
        Some(number)
    }

    /// Removes a connection whose handshake has ended. Does nothing if another connection has
    /// replaced it.
    pub(crate) fn end(&self, number: u64) {
        self.lock().pending.retain(|pending| pending.number != number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address, or for IPv6, the first address of its /64 network: an IPv6 host can usually
/// use all addresses of such a network.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::net::TcpListener;

    #[test]
    fn a_connection_of_the_address_with_the_most_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handshakes = PendingHandshakes::default();
        let start = |from: &str| {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            client.set_nonblocking(true).unwrap();
            (client, handshakes.start(&socket, from.parse().unwrap()).unwrap())
        };
        let is_open = |client: &TcpStream| {
            let mut client = client;
            client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let (first, first_number) = start("10.0.0.1");
        // All these connections come from one IPv6 network, so they count as one address.
        let many = (1..HANDSHAKES_MAX).map(|number| start(&format!("2001:db8::{number:x}")).0);
        let many: Vec<TcpStream> = many.collect();
        let (last, _) = start("10.0.0.3");
        assert!(is_open(&first) && is_open(&last));
        let open = many.iter().map(is_open);
        assert!(open.eq((0..many.len()).map(|i| i > 0)), "the oldest is replaced");
        handshakes.end(first_number);
        let (next, _) = start("::ffff:10.0.0.2");
        assert!(is_open(&many[1]) && is_open(&next), "there is room");
    }
}
