//! Connects to another node's `--replicate-on`, and authenticates.

use super::credentials::Credentials;
use super::handshake::{HandshakeLimit, handshake_frame};
use super::stop::Stop;
use super::stream::PeerStream;
use crate::error::{LocalError, PeerError};
use larder_replica::{FollowerHandshake, HelloMember, LeaderIdentity, Purpose};
use larder_support::address::host_of;
use rustls::pki_types::{DnsName, ServerName};
use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit for a member of a group. It applies to the connect to each address of the peer,
/// and then to the TLS handshake and the handshake of the nodes together. It is short because the
/// nodes of a cluster are close to each other, and because another leader may replace the peer
/// soon.
const MEMBER_CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// The same time limit for a follower outside of groups.
const FOLLOWER_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of the next connection. The peer closes earlier connections for the same purpose.
static NEXT_LINK: AtomicU64 = AtomicU64::new(0);

/// The peer to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: &'a str,
    /// The name that the peer's certificate must have; `None`: the host of the address.
    pub(crate) node: Option<&'a str>,
}

/// A connection after its handshake.
pub(crate) struct PeerConnection {
    pub(crate) stream: PeerStream,
    pub(crate) identity: LeaderIdentity,
    /// The bytes received after the handshake.
    pub(crate) rest: Vec<u8>,
    /// The duration of the handshake of the nodes: at least the round-trip time.
    pub(crate) handshake_time: Duration,
}

/// Connects, and carries out the handshake.
pub(crate) fn dial(
    target: Target<'_>,
    credentials: &Credentials,
    name: &str,
    member: Option<HelloMember<'_>>,
    purpose: Purpose,
    stop: &Stop,
) -> Result<PeerConnection, PeerError> {
    let time = if member.is_some() { MEMBER_CONNECT_TIMEOUT } else { FOLLOWER_CONNECT_TIMEOUT };
    let socket = connect(target.address, time)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(time))?;
    let limit = HandshakeLimit::new(time, stop);
    let tls = credentials.tls.as_deref();
    let tls = tls.map(|tls| Ok::<_, PeerError>((tls, target.certified_name()?))).transpose()?;
    let stream = PeerStream::connect(socket, tls, &limit)?;
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let (secret, nonce) = (credentials.secret.clone(), rand::random());
    let started = Instant::now();
    let link = NEXT_LINK.fetch_add(1, Ordering::Relaxed);
    let sender = (name, member);
    let mut handshake = FollowerHandshake::start(secret, nonce, sender, purpose, link, &mut out);
    loop {
        (&stream).write_all(&out)?;
        out.clear();
        let Some((frame, len)) = handshake_frame(&input)? else {
            stream.receive(&limit, &mut input)?;
            continue;
        };
        let identity = handshake.receive(frame, &mut out)?;
        input.drain(..len);
        if let Some(identity) = identity {
            let handshake_time = started.elapsed();
            return Ok(PeerConnection { stream, identity, rest: input, handshake_time });
        }
    }
}

/// Connects to one of the addresses of a name.
///
/// # Errors
/// The error is a refused connection only if each address has refused one.
fn connect(address: &str, time: Duration) -> io::Result<TcpStream> {
    let mut failed: Option<io::Error> = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let is_refused = |error: &io::Error| error.kind() == ErrorKind::ConnectionRefused;
                failed = Some(failed.filter(|before| !is_refused(before)).unwrap_or(error));
            }
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(ErrorKind::NotFound, "the name has no address")))
}

impl Target<'_> {
    /// Returns the name that the peer's certificate must have.
    fn certified_name(&self) -> Result<ServerName<'static>, PeerError> {
        let name = match self.node {
            Some(node) => DnsName::try_from(node.to_owned()).ok().map(ServerName::DnsName),
            None => ServerName::try_from(host_of(self.address).to_owned()).ok(),
        };
        let invalid = || LocalError::InvalidName(self.node.unwrap_or(self.address).to_owned());
        name.ok_or_else(|| invalid().into())
    }
}
