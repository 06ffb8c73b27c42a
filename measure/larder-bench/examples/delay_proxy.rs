//! Simulates a distant server: forwards connections to a server, and delays the server's replies.
//!
//! `delay_proxy SERVER MILLIS` listens on a free port of the loopback interface and prints the
//! port. The proxy delivers replies in order after the delay, and does not limit their rate:
//! delayed bytes wait in a queue. It delays neither requests nor the opening of connections. It
//! stops when its standard input is closed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [server, millis] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: delay_proxy HOST:PORT MILLISECONDS".into());
    };
    let (server, delay) = (server.clone(), Duration::from_millis(millis.parse()?));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // An error closes the connection to the client.
            drop(client.and_then(|client| connect(client, &server, delay)));
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn connect(client: TcpStream, server: &str, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (requests, answers) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || pass_on(requests, server, Duration::ZERO));
    thread::spawn(move || pass_on(answers, client, delay));
    Ok(())
}

/// Copies bytes from `from` to `to` after the delay, until either side closes its connection.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) -> io::Result<()> {
    if delay.is_zero() {
        let copied = io::copy(&mut from, &mut to);
        return to.shutdown(Shutdown::Write).and(copied.map(drop));
    }
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            to.write_all(&bytes)?;
        }
        to.shutdown(Shutdown::Write)
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = from.read(&mut buffer)?;
        if len == 0 || sender.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
            return Ok(());
        }
    }
}
