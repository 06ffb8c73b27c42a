//! UDP with memcached's framing: each datagram starts with a header of four 16-bit big-endian
//! numbers.
//!
//! ```text
//! 0         2          4           6          8
//! │ request │ sequence │ datagrams │ reserved │ text or binary, as over TCP
//! ```
//!
//! A request consists of one datagram, and each request gets a new session. Each command in it gets
//! at most one reply message, which the server sends in one or more datagrams.

use crate::connection::{Buffers, IoBytes, NextAction};
use crate::net::dialect;
use crate::net::entry::{Entry, checked_port, entries, resolve, wildcard_port};
use crate::net::listen_error::ListenError;
use crate::net::listener::udp_name;
use crate::options::Options;
use crate::server::Server;
use crate::timing::{RequestTimer, Timing};
use larder_protocol::Parser;
use larder_session::{Context, Host, Next, Session, Settings, State};
use larder_store::Engine;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The length of a datagram's header, in bytes.
const HEADER_LEN: usize = 8;
/// The maximum length of a reply datagram, in bytes. Such a datagram fits in an Ethernet frame.
const DATAGRAM_LEN: usize = 1400;
/// The maximum number of reply bytes in one datagram.
const PAYLOAD_LEN: usize = DATAGRAM_LEN - HEADER_LEN;
/// The maximum total length, in bytes, of the replies to one datagram. The server drops the reply
/// that would exceed this limit, and answers no further commands of the datagram.
const MESSAGE_MAX: usize = 16 << 20;
/// The maximum number of requests answered in one poll.
const REQUESTS_PER_POLL: usize = 64;

/// Binds non-blocking UDP sockets at the `-U` port, on the `-l` addresses. Without `-l`, binds them
/// on the loopback. Binds none if there is no UDP port, or if `-s` selects a unix socket.
///
/// # Errors
/// [`ListenError`] for the first address that cannot be bound.
pub fn bind_all(options: &Options) -> Result<Vec<UdpSocket>, ListenError> {
    let port = match options.udp_port {
        -1 => 0,
        port => u16::try_from(port).unwrap_or_default(),
    };
    if options.udp_port == 0 || options.unix_socket.is_some() {
        return Ok(Vec::new());
    }
    if options.listen.is_empty() {
        return bind_pair(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST, port);
    }
    let mut sockets = Vec::new();
    for entry in entries(&options.listen) {
        let Entry { text, .. } = entry?;
        if let Some(port) = wildcard_port(text, port) {
            sockets.extend(bind_pair(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, port)?);
            continue;
        }
        for address in resolve(text, port)? {
            sockets.push(bind(address)?);
        }
    }
    Ok(sockets)
}

/// Checks the addresses that [`bind_all`] would bind, without resolving names or binding anything.
/// Returns false if there are none.
///
/// # Errors
/// [`ListenError`] for the first invalid address.
pub fn check(options: &Options) -> Result<bool, ListenError> {
    if options.udp_port == 0 || options.unix_socket.is_some() {
        return Ok(false);
    }
    let mut is_bound = options.listen.is_empty();
    for entry in entries(&options.listen) {
        checked_port(entry?.text, 0)?;
        is_bound = true;
    }
    Ok(is_bound)
}

/// Binds both address families on the same port. If binding IPv6 fails, omits IPv6, unless the
/// reason is that the port is in use.
fn bind_pair(v4: Ipv4Addr, v6: Ipv6Addr, port: u16) -> Result<Vec<UdpSocket>, ListenError> {
    let first = bind(SocketAddr::new(v4.into(), port))?;
    let port = first.local_addr().map_or(port, |address| address.port());
    match bind(SocketAddr::new(v6.into(), port)) {
        Ok(second) => Ok(vec![first, second]),
        Err(ListenError::Udp(_, error)) if error.kind() != io::ErrorKind::AddrInUse => {
            Ok(vec![first])
        }
        Err(error) => Err(error),
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket, ListenError> {
    let bind = || -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    bind().map_err(|error| ListenError::Udp(address, error))
}

/// Returns the settings of UDP sessions. A session answers one command per call, because each
/// command gets its own message. `output_max` is the length of the longest reply that the server
/// sends, so one call of the session writes a complete reply.
pub(crate) fn settings(server: &Server) -> Settings {
    Settings { requests_per_poll: 1, output_max: MESSAGE_MAX, ..server.settings.clone() }
}

/// Returns the address of a socket in memcached's format.
#[must_use]
pub fn name(socket: &UdpSocket) -> String {
    socket.local_addr().map_or_else(|_| "udp:".to_owned(), udp_name)
}

/// A non-blocking UDP socket.
pub(crate) trait Datagrams {
    /// Receives the next datagram into `buffer`. Returns its length and its sender.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends a datagram.
    fn send(&self, datagram: &[u8], peer: SocketAddr) -> io::Result<usize>;
}

impl Datagrams for UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }

    fn send(&self, datagram: &[u8], peer: SocketAddr) -> io::Result<usize> {
        self.send_to(datagram, peer)
    }
}

impl Datagrams for tokio::net::UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.try_recv_from(buffer)
    }

    fn send(&self, datagram: &[u8], peer: SocketAddr) -> io::Result<usize> {
        self.try_send_to(datagram, peer)
    }
}

/// The state of a UDP socket, which consists mainly of the request that is being answered. The
/// driver owns the socket and lends it to each poll.
pub(crate) struct Endpoint<E: Engine> {
    /// The first parser of each session.
    opening: Parser,
    /// The request that is being answered; `None` between requests.
    exchange: Option<Exchange<E>>,
}

impl<E: Engine> Endpoint<E> {
    /// Creates a socket's state. `-B` sets the dialect of datagrams. The protocol prefixes in `-l`
    /// have no effect on UDP.
    pub(crate) fn new(options: &Options) -> Self {
        Self { opening: dialect::opening(options), exchange: None }
    }

    /// Returns whether a reply waits until the socket accepts it.
    pub(crate) fn awaits_writing(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|exchange| exchange.message.is_some() && !exchange.is_held)
    }

    /// Polls the socket. Answers requests until none is left, the socket accepts no more datagrams,
    /// a command has to wait, or the limit of one poll is reached.
    pub(crate) fn serve<H: Host>(
        &mut self,
        socket: &impl Datagrams,
        cx: &mut Context<'_, E, H>,
        buffers: &mut Buffers,
        timing: &Timing<'_>,
        moved: &mut IoBytes,
    ) -> NextAction {
        let Buffers { input, output, .. } = buffers;
        for _ in 0..REQUESTS_PER_POLL {
            if self.exchange.is_none() {
                match socket.receive(input) {
                    Ok((len, peer)) => {
                        moved.read += len;
                        let datagram = input.get(..len).unwrap_or_default();
                        self.exchange = Exchange::parse(datagram, peer, self.opening);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return NextAction::Wait;
                    }
                    // Try again: the call was interrupted, or the system has reported that it could
                    // not deliver an earlier reply.
                    Err(_) => continue,
                }
            }
            if let Some(exchange) = &mut self.exchange {
                match exchange.advance(socket, cx, output, timing, moved) {
                    ExchangeState::Done => (),
                    ExchangeState::Blocked => return NextAction::Wait,
                    ExchangeState::Waiting => return NextAction::Hold,
                }
                exchange.session.close(cx.host);
                self.exchange = None;
            }
        }
        NextAction::PollAgain
    }
}

/// A request and the progress of its replies.
struct Exchange<E: Engine> {
    peer: SocketAddr,
    id: u16,
    session: Session<E>,
    request: Vec<u8>,
    /// The number of request bytes consumed so far.
    done: usize,
    /// The total length of all replies so far, in bytes.
    answered: usize,
    /// The message that is being sent.
    message: Option<Message>,
    /// Whether the server answers no more commands of this request.
    ended: bool,
    /// Whether the message waits until a change is acknowledged.
    is_held: bool,
    timer: RequestTimer,
}

/// The state of an exchange after a call to [`Exchange::advance`].
enum ExchangeState {
    /// All commands are answered, and the replies are sent or dropped.
    Done,
    /// The socket accepts no more datagrams now.
    Blocked,
    /// A command waits for slower storage, for another node or for an acknowledgement. Later
    /// commands of the request must also wait.
    Waiting,
}

/// A message that is being sent.
struct Message {
    bytes: Vec<u8>,
    /// The number of datagrams already sent.
    sent: u16,
}

impl<E: Engine> Exchange<E> {
    /// Parses a datagram. Returns `None` if the header is incomplete or announces a number of
    /// datagrams other than 1, or if no request follows the header.
    fn parse(datagram: &[u8], peer: SocketAddr, opening: Parser) -> Option<Self> {
        let (header, request) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let [id_high, id_low, _, _, total_high, total_low, ..] = *header;
        let total = u16::from_be_bytes([total_high, total_low]);
        (total == 1 && !request.is_empty()).then(|| Self {
            peer,
            id: u16::from_be_bytes([id_high, id_low]),
            session: Session::opening(opening, 0),
            request: request.to_vec(),
            done: 0,
            answered: 0,
            message: None,
            ended: false,
            is_held: false,
            timer: RequestTimer::default(),
        })
    }

    /// Answers commands and sends replies until the exchange must wait or is complete.
    fn advance<H: Host>(
        &mut self,
        socket: &impl Datagrams,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
        timing: &Timing<'_>,
        moved: &mut IoBytes,
    ) -> ExchangeState {
        loop {
            if self.is_held {
                self.answer(cx, output, timing);
                if self.is_held {
                    return ExchangeState::Waiting;
                }
            }
            if let Some(message) = &mut self.message {
                match message.send(socket, self.id, self.peer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return ExchangeState::Blocked;
                    }
                    // After another error, the peer is unreachable: drop the rest of the message.
                    Ok(()) | Err(_) => moved.written += message.bytes.len(),
                }
                self.message = None;
            }
            if self.ended {
                return ExchangeState::Done;
            }
            let next = self.answer(cx, output, timing);
            if self.is_held || next == Next::Wait && self.message.is_none() {
                return ExchangeState::Waiting;
            }
        }
    }

    /// Answers the next command, or checks whether a held reply may be sent. The recorded latency
    /// excludes the time to send the reply.
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
        timing: &Timing<'_>,
    ) -> Next {
        let rest = self.request.get(self.done..).unwrap_or_default();
        let progress = self.session.receive(cx, rest, output);
        self.timer.end_poll(&progress, timing);
        self.done += progress.consumed;
        self.is_held = progress.hold;
        self.ended |= !progress.hold && !matches!(progress.next, Next::Yield | Next::Wait);
        // Never send the log or a dump over UDP: if the sender's address is forged, the server
        // would send any amount of data to a victim. Do not send an incomplete message either,
        // because a client cannot use it.
        let endless = matches!(self.session.state(), State::Dumping | State::Watching);
        self.answered += output.len();
        if endless || progress.next == Next::Write || self.answered > MESSAGE_MAX {
            self.ended = true;
            output.clear();
        }
        if !output.is_empty() {
            self.message = Some(Message { bytes: std::mem::take(output), sent: 0 });
        }
        progress.next
    }
}

impl Message {
    /// Sends the remaining datagrams.
    fn send(&mut self, socket: &impl Datagrams, id: u16, peer: SocketAddr) -> io::Result<()> {
        let payloads = self.bytes.chunks(PAYLOAD_LEN);
        // The number of datagrams fits in 16 bits, because replies longer than MESSAGE_MAX are
        // dropped.
        let total = u16::try_from(payloads.len()).unwrap_or(u16::MAX);
        let mut datagram = Vec::with_capacity(DATAGRAM_LEN);
        for payload in payloads.skip(self.sent.into()) {
            datagram.clear();
            for number in [id, self.sent, total, 0] {
                datagram.extend_from_slice(&number.to_be_bytes());
            }
            datagram.extend_from_slice(payload);
            while let Err(error) = socket.send(&datagram, peer) {
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            self.sent += 1;
        }
        Ok(())
    }
}
