//! `larder bench empty-loop`: a server that does not parse requests. Almost all of its CPU time is
//! kernel time, so its CPU time per request is a lower bound for any server that polls, reads and
//! writes.

use clap::Args;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

/// The options of `larder bench empty-loop`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Arguments {
    /// TCP port on the loopback interface; 0 chooses a free port
    #[arg(short, long, default_value_t = 11211)]
    pub port: u16,
    /// Size in bytes of the value in every reply to a get
    #[arg(long, default_value_t = 100)]
    pub value_bytes: usize,
}

/// Size of the read buffer in bytes.
const READ_LEN: usize = 64 << 10;
const LISTENER: Token = Token(usize::MAX);

/// Serves connections on one thread, without end. Sends one reply for each read from a socket. The
/// first byte determines the reply: `STORED` for `s` (set), a version for `v` (version), and the
/// value for any other byte. As a result, pipelined requests that arrive together get one reply.
///
/// # Errors
/// The port is in use, or the system cannot create an event queue or set up a new connection.
pub fn command(arguments: &Arguments) -> io::Result<()> {
    let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port)))?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let value = value(arguments.value_bytes);
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Events::with_capacity(1024);
    let mut input = vec![0; READ_LEN];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => (),
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &poll, &mut connections)?;
            } else if let Some(slot) = connections.get_mut(event.token().0)
                && let Some(stream) = slot
                && !answer(stream, &mut input, &value)
            {
                *slot = None;
            }
        }
    }
}

fn value(bytes: usize) -> Vec<u8> {
    let mut value = format!("VALUE key 0 {bytes}\r\n").into_bytes();
    value.resize(value.len() + bytes, b'v');
    value.extend_from_slice(b"\r\nEND\r\n");
    value
}

fn accept(
    listener: &TcpListener,
    poll: &Poll,
    connections: &mut Vec<Option<TcpStream>>,
) -> io::Result<()> {
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nodelay(true)?;
        poll.registry().register(&mut stream, Token(connections.len()), Interest::READABLE)?;
        connections.push(Some(stream));
    }
    Ok(())
}

/// Reads once and writes once. Returns false if the connection must be closed. A full socket buffer
/// counts as an error: a peer that does not read its replies is disconnected.
fn answer(stream: &mut TcpStream, input: &mut [u8], value: &[u8]) -> bool {
    match stream.read(input) {
        Ok(0) => false,
        Ok(_) => {
            let answer: &[u8] = match input[0] {
                b's' => b"STORED\r\n",
                b'v' => b"VERSION 0\r\n",
                _ => value,
            };
            stream.write_all(answer).is_ok()
        }
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sets_and_gets_are_answered() {
        let port = crate::launch::free_address(0).unwrap().port();
        std::thread::spawn(move || command(&Arguments { port, value_bytes: 3 }));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connect = || std::net::TcpStream::connect(address).ok();
        let mut stream = (0..6000)
            .find_map(|_| {
                connect().or_else(|| {
                    std::thread::sleep(Duration::from_millis(10));
                    None
                })
            })
            .unwrap();
        let mut ask = |request: &[u8], answer: &[u8]| {
            stream.write_all(request).unwrap();
            let mut got = vec![0; answer.len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, answer);
        };
        ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n");
        ask(b"get a\r\n", b"VALUE key 0 3\r\nvvv\r\nEND\r\n");
    }
}
