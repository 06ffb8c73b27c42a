//! What is done on a new connection before it is used: the handshake of TLS, then the login.

use crate::core::connection::Connection;
use crate::core::endpoint::login::Login;
use crate::core::endpoint::tls::{Connector, Session};
use crate::error::ErrorKind;
use crate::waiter::Readiness;
use std::io::{self, Read, Write};

/// A longer answer to a login is refused: one without an end would be read beyond any deadline.
const ANSWER_LEN_MAX: usize = 1024;

/// What connections to a server begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) tls: Option<Connector>,
    pub(crate) login: Option<Login>,
}

/// The beginning of one connection.
#[derive(Debug)]
pub(crate) struct Entering {
    tls: Option<Box<Session>>,
    login: Option<Connection>,
    /// How many bytes of the answer to the login have come.
    answer_len: usize,
    is_encrypted: bool,
}

impl Entry {
    /// # Errors
    /// `Connect`: the configuration of TLS allows no session.
    pub(crate) fn begin(&self) -> Result<Entering, ErrorKind> {
        let session = self.tls.as_ref().map(Connector::session).transpose();
        let tls = session.map_err(ErrorKind::connect)?.map(Box::new);
        let login = self.login.as_ref().map(Login::begin);
        Ok(Entering { tls, login, answer_len: 0, is_encrypted: false })
    }
}

impl Entering {
    /// Goes on as far as is possible now, over a socket that never blocks. `None`: it is complete. Otherwise, what the
    /// socket has to be ready for.
    ///
    /// # Errors
    /// `Connect`, `Login`.
    pub(crate) fn proceed(
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
                    let error = "the server closed the connection during the login";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, error);
                    return Err(ErrorKind::connect(error));
                }
                Ok(len) if sends => connection.sent(len),
                Ok(len) => {
                    connection.received(len);
                    self.answer_len += len;
                    if self.answer_len > ANSWER_LEN_MAX {
                        let error = "the server's answer to the login is longer than 1024 bytes";
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

    /// The error if it is not complete in time.
    pub(crate) fn late(&self) -> ErrorKind {
        let awaited = if self.is_encrypted { "answer to the login" } else { "TLS handshake" };
        let error = format!("there was no {awaited} in time");
        ErrorKind::connect(io::Error::new(io::ErrorKind::TimedOut, error))
    }

    /// The session, once it is complete.
    pub(crate) fn session(self) -> Option<Box<Session>> {
        self.tls
    }
}
