//! The follower's socket: it connects to its leader, again and again, and stores what it is sent.

use super::leader::{is_silence, receive};
use super::stop::Stop;
use crate::server::Server;
use larder_replica::{Applier, FollowerGreeting, Frame, GREETING_LEN_MAX, Secret};
use larder_store::Engine;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long connecting and greeting may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);
const GREETING_TIME: Duration = Duration::from_secs(5);
/// A leader that says nothing for this long is gone: it says something ten times a second.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long a read waits before it looks whether the server ends.
const SLICE: Duration = Duration::from_millis(200);
/// The first pause before connecting again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What is read at once.
const READ_LEN: usize = 256 << 10;

pub(super) struct Follower {
    server: Arc<Server>,
    leader: String,
    secret: Option<Secret>,
    stop: Arc<Stop>,
}

impl Follower {
    pub(super) fn new(
        server: Arc<Server>,
        leader: String,
        secret: Option<Secret>,
        stop: Arc<Stop>,
    ) -> Self {
        Self { server, leader, secret, stop }
    }

    /// Follows until the end.
    pub(super) fn run<E: Engine>(&self, engine: E) {
        let mut applier = Applier::new(engine);
        let (mut pause, mut last_error) = (PAUSE_MIN, String::new());
        while !self.stop.is_set() {
            let mut has_begun = false;
            let Err(error) = self.follow(&mut applier, &mut has_begun);
            if self.stop.is_set() {
                return;
            }
            let error = error.to_string();
            if has_begun || error != last_error {
                tracing::warn!("no connection to the leader at {}: {error}", self.leader);
            }
            if let Some(link) = &self.server.replication.link {
                link.note_lost(&error);
            }
            last_error = error;
            pause = if has_begun { PAUSE_MIN } else { (2 * pause).min(PAUSE_MAX) };
            self.stop.wait(pause);
        }
    }

    /// Connects, and follows until the connection ends.
    fn follow<E: Engine>(
        &self,
        applier: &mut Applier<E>,
        has_begun: &mut bool,
    ) -> Result<std::convert::Infallible, io::Error> {
        let stream = self.connect()?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let (boot, rest) = self.greet(&stream, applier)?;
        *has_begun = true;
        let goes_on = applier.position().is_some_and(|position| position.boot == boot);
        let how = if goes_on { "follows on" } else { "copies" };
        tracing::info!("this server {how} from the leader at {}", self.leader);
        if let Some(link) = &self.server.replication.link {
            link.note_connected();
        }
        applier.begin(boot);
        self.take(applier, &stream, &rest)?;
        stream.set_read_timeout(Some(SLICE))?;
        let (mut bytes, mut heard) = (vec![0; READ_LEN], Instant::now());
        loop {
            match (&stream).read(&mut bytes) {
                Ok(0) => {
                    let reason = "the leader has closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                }
                Ok(len) => {
                    heard = Instant::now();
                    self.take(applier, &stream, bytes.get(..len).unwrap_or_default())?;
                }
                Err(error) if is_silence(&error) => {
                    if heard.elapsed() > SILENCE_MAX {
                        let reason = "the leader is silent";
                        return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                    }
                }
                Err(error) => return Err(error),
            }
            if self.stop.is_set() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }

    /// Stores what has come, and acknowledges it.
    fn take<E: Engine>(
        &self,
        applier: &mut Applier<E>,
        mut stream: &TcpStream,
        bytes: &[u8],
    ) -> io::Result<()> {
        let received = applier.receive(bytes, self.server.clock.moment().into());
        if let Some(link) = &self.server.replication.link {
            let (has_copy, behind) = (applier.has_copy(), applier.behind_millis());
            link.note(applier.counts(), has_copy, behind, bytes.len());
        }
        received.map_err(io::Error::other)?;
        let mut out = Vec::new();
        applier.acknowledge(&mut out);
        stream.write_all(&out)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.leader.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The number of the leader's process, and what came after its welcome.
    fn greet<E: Engine>(
        &self,
        mut stream: &TcpStream,
        applier: &Applier<E>,
    ) -> io::Result<(u64, Vec<u8>)> {
        let end = Instant::now() + GREETING_TIME;
        let names = self.server.listening();
        let name = names.first().map_or("larderd", String::as_str);
        let (mut input, mut out) = (Vec::new(), Vec::new());
        let (secret, position) = (self.secret.clone(), applier.position());
        let mut greeting =
            FollowerGreeting::begin(secret, rand::random(), name, position, &mut out);
        loop {
            stream.write_all(&out)?;
            out.clear();
            let read = Frame::read(&input, GREETING_LEN_MAX).map_err(io::Error::other)?;
            let Some((frame, len)) = read else {
                receive(stream, &mut input, end, &self.stop)?;
                continue;
            };
            let boot = greeting.receive(frame, &mut out).map_err(io::Error::other)?;
            input.drain(..len);
            if let Some(boot) = boot {
                return Ok((boot, input));
            }
        }
    }
}
