//! Connects to a `--replicate-on` socket of another node, and authenticates.

use super::credentials::Credentials;
use super::handshake::{HandshakeLimit, handshake_frame};
use super::stop::Stop;
use super::stream::PeerStream;
use crate::error::{LocalError, PeerError};
use larder_etcd::ClusterIdentity;
use larder_replica::{FollowerHandshake, HelloMember, LeaderIdentity, Process, Purpose};
use larder_support::address::host_of;
use rustls::pki_types::{DnsName, ServerName};
use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit for the TCP connect to each address of the peer, if this node is a member of a
/// group. The connect takes one round trip. The limit is short because another leader may replace
/// the peer soon.
const MEMBER_CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// The same time limit, if this node is a follower outside of groups.
const FOLLOWER_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit for the TLS handshake and the nodes' handshake together. They take up to five
/// round trips.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of the next connection. The peer closes connections with lower numbers for the same
/// purpose.
static NEXT_LINK: AtomicU64 = AtomicU64::new(0);

/// The peer to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: &'a str,
    /// The node name that the peer's certificate must contain. If `None`, the certificate must
    /// contain the host in the address.
    pub(crate) node: Option<&'a str>,
    /// Returns whether the connection is still wanted. It is no longer wanted once another leader
    /// has replaced the peer.
    pub(crate) is_wanted: &'a dyn Fn() -> bool,
}

/// The identity that this server presents to the peer.
#[derive(Clone, Copy)]
pub(crate) enum Caller<'a> {
    /// A follower outside of groups, with a name for logs and statistics.
    Follower(&'a str),
    Member(&'a LocalMember),
}

/// The membership of this node.
#[derive(Clone, Debug)]
pub(crate) struct LocalMember {
    pub(crate) process: Process,
    /// The name of this node's group: `CLUSTER/GROUP`.
    pub(crate) group: String,
    pub(crate) cluster: Arc<ClusterIdentity>,
}

impl LocalMember {
    fn hello(&self) -> HelloMember<'_> {
        let (incarnation, cluster) = (self.process.incarnation, self.cluster.number());
        HelloMember { group: &self.group, incarnation, cluster }
    }
}

/// A connection after its handshake.
pub(crate) struct PeerConnection {
    pub(crate) stream: PeerStream,
    pub(crate) identity: LeaderIdentity,
    /// The bytes received after the handshake.
    pub(crate) rest: Vec<u8>,
    /// The duration of the nodes' handshake, which is at least one round-trip time.
    pub(crate) handshake_time: Duration,
}

/// Connects, and carries out the handshake.
pub(crate) fn dial(
    target: Target<'_>,
    credentials: &Credentials,
    caller: Caller<'_>,
    purpose: Purpose,
    stop: &Stop,
) -> Result<PeerConnection, PeerError> {
    let (name, member, connect_time) = match caller {
        Caller::Follower(name) => (name, None, FOLLOWER_CONNECT_TIMEOUT),
        Caller::Member(me) => (&*me.process.node, Some(me.hello()), MEMBER_CONNECT_TIMEOUT),
    };
    let socket = connect(target.address, connect_time)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let limit = HandshakeLimit::new(HANDSHAKE_TIMEOUT, stop).while_wanted(target.is_wanted);
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

/// Connects to the first reachable address of a name. `time` limits each attempt.
///
/// # Errors
/// The error is a refused connection only if every address has refused the connection.
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
    /// Returns the name that the peer's certificate must contain.
    fn certified_name(&self) -> Result<ServerName<'static>, PeerError> {
        let name = match self.node {
            Some(node) => DnsName::try_from(node.to_owned()).ok().map(ServerName::DnsName),
            None => ServerName::try_from(host_of(self.address).to_owned()).ok(),
        };
        let invalid = || LocalError::InvalidName(self.node.unwrap_or(self.address).to_owned());
        name.ok_or_else(|| invalid().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_replica::{LeaderHandshake, Secret};
    use std::net::TcpListener;

    /// Accepts a connection, and waits for `delay` before it answers each frame of the handshake.
    fn answer(listener: &TcpListener, secret: &Secret, delay: Duration) {
        let (mut socket, _) = listener.accept().unwrap();
        let mut handshake =
            LeaderHandshake::new(Some(secret.clone()), [1; 32], Some("demo/0".to_owned()), 0);
        let identity = LeaderIdentity { node: "n".to_owned(), incarnation: 7, epoch: 1, time: 0 };
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            while let Some((frame, len)) = handshake_frame(&input).unwrap() {
                let admitted = handshake.receive(frame, &identity, &mut out).unwrap();
                input.drain(..len);
                std::thread::sleep(delay);
                socket.write_all(&out).unwrap();
                out.clear();
                if admitted.is_some() {
                    return;
                }
            }
            let mut bytes = [0; 1024];
            match io::Read::read(&mut socket, &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(len) => input.extend_from_slice(&bytes[..len]),
            }
        }
    }

    /// Connects as a member to a peer that delays its answers. Returns the peer's incarnation.
    fn connect_to(delay: Duration, is_wanted: &dyn Fn() -> bool) -> Result<u64, PeerError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let secret = Secret::of(b"a secret of the cluster").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Target { address: &address, node: None, is_wanted };
        let credentials = Credentials { secret: Some(secret.clone()), tls: None };
        let process = Process { node: "f".to_owned(), incarnation: 9 };
        let cluster = Arc::new(ClusterIdentity::new("demo"));
        let me = LocalMember { process, group: "demo/0".to_owned(), cluster };
        let stop = Stop::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&listener, &secret, delay));
            dial(target, &credentials, Caller::Member(&me), Purpose::Forward, &stop)
                .map(|connection| connection.identity.incarnation)
        })
    }

    #[test]
    fn a_member_far_away_completes_the_handshake() {
        let incarnation = connect_to(Duration::from_millis(200), &|| true);
        assert_eq!(incarnation.unwrap(), 7);
    }

    #[test]
    fn a_handshake_ends_when_another_leader_replaces_the_peer() {
        let started = Instant::now();
        let is_wanted = || started.elapsed() < Duration::from_millis(100);
        let refused = connect_to(Duration::from_millis(1500), &is_wanted);
        assert!(matches!(refused, Err(PeerError::Local(LocalError::Replaced))));
    }
}
