//! Connects to another server's `--replicate-on`, and says who this one is.

use super::stop::Stop;
use larder_replica::{
    FollowerGreeting, Frame, GREETING_LEN_MAX, HelloMember, Purpose, Secret, Welcomed,
};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long connecting and greeting may take: to a member of the group, which is near and may be replaced soon, and to
/// others.
const GROUP_TIME: Duration = Duration::from_millis(300);
const OTHERS_TIME: Duration = Duration::from_secs(2);

/// A connection that was welcomed.
pub(crate) struct Dialed {
    pub(crate) stream: TcpStream,
    pub(crate) welcomed: Welcomed,
    /// What came after the welcome.
    pub(crate) rest: Vec<u8>,
}

/// Connects and greets.
pub(crate) fn dial(
    address: &str,
    secret: Option<&Secret>,
    name: &str,
    member: Option<HelloMember<'_>>,
    purpose: Purpose,
    stop: &Stop,
) -> io::Result<Dialed> {
    let time = if member.is_some() { GROUP_TIME } else { OTHERS_TIME };
    let mut stream = connect(address, time)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(time))?;
    let end = Instant::now() + time;
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let mut greeting =
        FollowerGreeting::begin(secret.cloned(), rand::random(), name, member, purpose, &mut out);
    loop {
        stream.write_all(&out)?;
        out.clear();
        let read = Frame::read(&input, GREETING_LEN_MAX).map_err(io::Error::other)?;
        let Some((frame, len)) = read else {
            receive(&stream, &mut input, end, stop)?;
            continue;
        };
        let welcomed = greeting.receive(frame, &mut out).map_err(io::Error::other)?;
        input.drain(..len);
        if let Some(welcomed) = welcomed {
            return Ok(Dialed { stream, welcomed, rest: input });
        }
    }
}

fn connect(address: &str, time: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads more of a greeting; fails at its end in time.
pub(crate) fn receive(
    mut stream: &TcpStream,
    input: &mut Vec<u8>,
    end: Instant,
    stop: &Stop,
) -> io::Result<()> {
    const SLICE: Duration = Duration::from_millis(200);
    let mut bytes = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the greeting takes too long"));
        }
        if stop.is_set() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        stream.set_read_timeout(Some(left.min(SLICE)))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                input.extend_from_slice(bytes.get(..len).unwrap_or_default());
                return Ok(());
            }
            Err(error) if is_silence(&error) => (),
            Err(error) => return Err(error),
        }
    }
}

/// Whether a read ended because nothing came in time.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
