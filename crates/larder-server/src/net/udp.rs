//! UDP, as memcached frames it: eight bytes before each datagram, four numbers in network order.
//!
//! ```text
//! 0         2          4           6          8
//! │ request │ sequence │ datagrams │ reserved │ text or binary, as over TCP
//! ```
//!
//! A request is one datagram and has a session of its own. Each command in it is answered by a
//! message of its own, which goes out in as many datagrams as it takes.

use crate::connection::{Buffers, IoBytes, NextAction};
use crate::net::dialect;
use crate::net::entry::{Entry, entries, resolve};
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

/// The length of the frame header before the payload of a datagram, in bytes.
const HEADER_LEN: usize = 8;
/// A datagram of an answer, in bytes: it fits an Ethernet frame.
const DATAGRAM_LEN: usize = 1400;
const PAYLOAD_LEN: usize = DATAGRAM_LEN - HEADER_LEN;
/// A longer answer is not sent, nor are later ones once all answers to a datagram exceed this
/// together, in bytes.
const MESSAGE_MAX: usize = 16 << 20;
/// The number of requests that are answered in one turn.
const REQUESTS_PER_TURN: usize = 64;

/// The sockets that the command line asks for, which never block: on the addresses of `-l`, else on
/// the loopback.
///
/// # Errors
/// [`ListenError`] for the first address that can't be had.
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
        if text == "*" {
            sockets.extend(bind_pair(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, port)?);
            continue;
        }
        for address in resolve(text, port)? {
            sockets.push(bind(address)?);
        }
    }
    Ok(sockets)
}

/// Both families on one port, or IPv4 alone where the machine has no other.
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

/// The settings of sessions of datagrams: they answer one command at a time, because each has a
/// message of its own, and the whole of it at once.
pub(crate) fn settings(server: &Server) -> Settings {
    Settings { requests_per_poll: 1, output_max: MESSAGE_MAX, ..server.settings.clone() }
}

/// A socket's address in memcached's form.
#[must_use]
pub fn name(socket: &UdpSocket) -> String {
    socket.local_addr().map_or_else(|_| "udp:".to_owned(), udp_name)
}

/// A UDP socket that never blocks.
pub(crate) trait Datagrams {
    /// Takes the next datagram: its length and who sent it.
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

/// The request that is being answered on a socket, which belongs to the driver and is lent to each
/// turn.
pub(crate) struct Endpoint<E: Engine> {
    /// How each datagram's session begins.
    opening: Parser,
    exchange: Option<Exchange<E>>,
}

impl<E: Engine> Endpoint<E> {
    /// `-B` sets the dialect of datagrams, whatever `-l` names.
    pub(crate) fn new(options: &Options) -> Self {
        Self { opening: dialect::opening(options), exchange: None }
    }

    /// It has an answer that the socket has not accepted yet.
    pub(crate) fn awaits_writing(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|exchange| exchange.leaving.is_some() && !exchange.is_held)
    }

    /// One turn: answers requests until there are no more, the socket takes no more, or it is time
    /// for others.
    pub(crate) fn serve<H: Host>(
        &mut self,
        socket: &impl Datagrams,
        cx: &mut Context<'_, E, H>,
        buffers: &mut Buffers,
        timing: &Timing<'_>,
        moved: &mut IoBytes,
    ) -> NextAction {
        let Buffers { input, output, .. } = buffers;
        for _ in 0..REQUESTS_PER_TURN {
            if self.exchange.is_none() {
                match socket.receive(input) {
                    Ok((len, peer)) => {
                        moved.read += len;
                        let datagram = input.get(..len).unwrap_or_default();
                        self.exchange = Exchange::begin(datagram, peer, self.opening);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return NextAction::Wait;
                    }
                    // An error that an earlier answer caused: nobody listens at its address.
                    Err(_) => continue,
                }
            }
            if let Some(exchange) = &mut self.exchange {
                match exchange.go_on(socket, cx, output, timing, moved) {
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

/// A request, and how far it is answered.
struct Exchange<E: Engine> {
    peer: SocketAddr,
    id: u16,
    session: Session<E>,
    request: Vec<u8>,
    /// Bytes of the request that were consumed.
    done: usize,
    /// Bytes of its answers.
    answered: usize,
    leaving: Option<Message>,
    /// All commands of the request were answered.
    ended: bool,
    /// The message waits for a change to be acknowledged.
    is_held: bool,
    timer: RequestTimer,
}

/// How far an exchange has come.
enum ExchangeState {
    /// The request was answered completely.
    Done,
    /// The socket accepts no more datagrams now.
    Blocked,
    /// A request waits for slower storage or for an acknowledgement, and those behind it with it.
    Waiting,
}

/// A message that is being sent.
struct Message {
    bytes: Vec<u8>,
    /// Datagrams that are sent.
    sent: u16,
}

impl<E: Engine> Exchange<E> {
    /// What a datagram asks; `None` if it is not all of a request.
    fn begin(datagram: &[u8], peer: SocketAddr, opening: Parser) -> Option<Self> {
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
            leaving: None,
            ended: false,
            is_held: false,
            timer: RequestTimer::default(),
        })
    }

    /// Answers until there is something to wait for, or nothing more to do.
    fn go_on<H: Host>(
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
            if let Some(message) = &mut self.leaving {
                match message.send(socket, self.id, self.peer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return ExchangeState::Blocked;
                    }
                    // Nobody listens at the address, so the rest of the message is dropped.
                    Ok(()) | Err(_) => moved.written += message.bytes.len(),
                }
                self.leaving = None;
            }
            if self.ended {
                return ExchangeState::Done;
            }
            let next = self.answer(cx, output, timing);
            if self.is_held || next == Next::Wait && self.leaving.is_none() {
                return ExchangeState::Waiting;
            }
        }
    }

    /// Answers the next command. It is timed without the sending of its answer.
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
        timing: &Timing<'_>,
    ) -> Next {
        let rest = self.request.get(self.done..).unwrap_or_default();
        let turn = self.session.receive(cx, rest, output);
        self.timer.end_poll(&turn, timing);
        self.done += turn.consumed;
        self.is_held = turn.hold;
        self.ended |= !turn.hold && !matches!(turn.next, Next::Yield | Next::Wait);
        // Neither the log nor a dump of everything goes to an address that nobody has vouched for;
        // half a message is for nobody.
        let endless = matches!(self.session.state(), State::Dumping | State::Watching);
        self.answered += output.len();
        if endless || turn.next == Next::Write || self.answered > MESSAGE_MAX {
            self.ended = true;
            output.clear();
        }
        if !output.is_empty() {
            self.leaving = Some(Message { bytes: std::mem::take(output), sent: 0 });
        }
        turn.next
    }
}

impl Message {
    /// Sends the datagrams that are left.
    fn send(&mut self, socket: &impl Datagrams, id: u16, peer: SocketAddr) -> io::Result<()> {
        let payloads = self.bytes.chunks(PAYLOAD_LEN);
        // Within MESSAGE_MAX.
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
