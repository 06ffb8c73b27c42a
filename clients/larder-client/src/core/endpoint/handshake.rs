//! The handshake of a new connection: the TLS handshake, then the login.

use crate::core::connection::Connection;
use crate::core::endpoint::login::Login;
use crate::core::endpoint::tls::{Connector, Session};
use crate::error::ErrorKind;
use crate::waiter::Readiness;
use std::io::{self, Read, Write};

/// The maximum length of a login reply, in bytes. Without this limit, an endless reply could
/// prolong the handshake past its deadline.
const REPLY_LEN_MAX: usize = 1024;

/// Handshake settings for one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandshakeConfig {
    pub(crate) tls: Option<Connector>,
    pub(crate) login: Option<Login>,
}

/// The handshake of one connection.
#[derive(Debug)]
pub(crate) struct Handshake {
    tls: Option<Box<Session>>,
    login: Option<Connection>,
    /// The number of login-reply bytes received so far.
    reply_len: usize,
    /// Whether the TLS handshake is complete or not needed.
    is_encrypted: bool,
}

impl HandshakeConfig {
    /// Starts the handshake of a new connection.
    ///
    /// # Errors
    /// `Connect`: rustls rejects the TLS configuration.
    pub(crate) fn start(&self) -> Result<Handshake, ErrorKind> {
        let session = self.tls.as_ref().map(Connector::session).transpose();
        let tls = session.map_err(ErrorKind::connect)?.map(Box::new);
        let login = self.login.as_ref().map(Login::connection);
        Ok(Handshake { tls, login, reply_len: 0, is_encrypted: false })
    }
}

impl Handshake {
    /// Continues the handshake until the nonblocking socket would block. Returns the readiness to
    /// wait for, or `None` when the handshake is complete.
    ///
    /// # Errors
    /// `Connect`: the handshake failed. `Login`: the server refused the login.
    pub(crate) fn poll(
        &mut self,
        socket: &mut (impl Read + Write),
    ) -> Result<Option<Readiness>, ErrorKind> {
        if let Some(tls) = &mut self.tls {
            let wanted = tls.handshake(socket).map_err(ErrorKind::connect)?;
            if wanted.is_some() {
                return Ok(wanted);
            }
        }
        self.is_encrypted = true;
        let Some(connection) = &mut self.login else { return Ok(None) };
        while !Login::is_done(connection)? {
            let sends = !connection.output().is_empty();
            let moved = match (&mut self.tls, sends) {
                (None, true) => socket.write(connection.output()),
                (None, false) => socket.read(connection.room()),
                (Some(tls), true) => tls.write(socket, connection.output()),
                (Some(tls), false) => tls.read(socket, connection.room()),
            };
            match moved {
                Ok(0) => {
                    let error = "connection closed by the server during the login";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, error);
                    return Err(ErrorKind::connect(error));
                }
                Ok(len) if sends => connection.sent(len),
                Ok(len) => {
                    connection.received(len);
                    self.reply_len += len;
                    if self.reply_len > REPLY_LEN_MAX {
                        let error = "the reply to the login is longer than 1024 bytes";
                        let error = io::Error::new(io::ErrorKind::InvalidData, error);
                        return Err(ErrorKind::connect(error));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(if sends { Readiness::Write } else { Readiness::Read }));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(ErrorKind::connect(error)),
            }
        }
        Ok(None)
    }

    /// Returns the error of a handshake that missed its deadline.
    pub(crate) fn timeout_error(&self) -> ErrorKind {
        let awaited = if self.is_encrypted { "reply to the login" } else { "TLS handshake" };
        let error = format!("timeout: no {awaited} by the deadline");
        ErrorKind::connect(io::Error::new(io::ErrorKind::TimedOut, error))
    }

    /// Returns the TLS session after the handshake, or `None` without TLS.
    pub(crate) fn session(self) -> Option<Box<Session>> {
        self.tls
    }
}
