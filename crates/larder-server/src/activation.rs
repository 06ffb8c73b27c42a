//! Listening sockets that whoever started the server has bound for it: systemd's socket activation.

use crate::listener::{ListenError, Listener, Security};
use listenfd::ListenFd;
use std::io;

/// The sockets that were passed (`LISTEN_FDS`); `None` if none were.
///
/// # Errors
/// One of them is neither a TCP nor a unix listener.
pub fn inherited() -> Result<Option<Vec<Listener>>, ListenError> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Ok(None);
    }
    let listeners = (0..passed.len()).map(|index| {
        take(&mut passed, index)
            .map_err(|error| ListenError::Inherited(format!("socket {index}: {error}")))
    });
    listeners.collect::<Result<Vec<_>, _>>().map(Some)
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<Listener> {
    if let Ok(Some(listener)) = passed.take_unix_listener(index) {
        return Listener::new(listener.into(), Security::Plain);
    }
    match passed.take_tcp_listener(index)? {
        Some(listener) => Listener::new(listener.into(), Security::Usual),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}
