//! Socket activation: listening sockets that systemd has bound and passes to the server.

use crate::net::dialect;
use crate::net::entry::Service;
use crate::net::listen_error::ListenError;
use crate::net::listener::Listener;
use crate::options::Options;
use crate::tls::Security;
use listenfd::ListenFd;
use std::io;

/// Converts the sockets that the parent process passes (`LISTEN_FDS`) to listeners. Returns `None`
/// if it passes no sockets. The listeners serve memcached's protocols.
///
/// # Errors
/// A socket is neither a TCP nor a unix listener, or configuring it fails.
pub fn inherited(options: &Options) -> Result<Option<Vec<Listener>>, ListenError> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Ok(None);
    }
    let service = Service::Memcached { opening: dialect::opening(options) };
    let listeners = (0..passed.len()).map(|index| {
        take(&mut passed, index, service)
            .map_err(|error| ListenError::Inherited(format!("socket {index}: {error}")))
    });
    listeners.collect::<Result<Vec<_>, _>>().map(Some)
}

fn take(passed: &mut ListenFd, index: usize, service: Service) -> io::Result<Listener> {
    if let Ok(Some(listener)) = passed.take_unix_listener(index) {
        return Listener::new(listener.into(), Security::Plain, service);
    }
    match passed.take_tcp_listener(index)? {
        Some(listener) => Listener::new(listener.into(), Security::Usual, service),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}
