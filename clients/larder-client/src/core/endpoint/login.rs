//! The login of memcached's text protocol (`-Y`): the first command of a connection stores a user and a password, under
//! any key.

use crate::core::connection::{Answers, Check, Connection, Frame, shown};
use crate::error::ErrorKind;
use larder_protocol::answer::Answer;
use std::fmt;
use std::io::{self, Write};

/// A user and a password, which is never shown.
#[derive(Clone)]
pub(crate) struct Login {
    user: String,
    password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    pub(crate) fn new(user: String, password: String) -> Self {
        Self { user, password }
    }

    /// Whether it can be sent: a blank ends the user's name.
    ///
    /// # Errors
    /// `Login`.
    pub(crate) fn check(&self) -> Result<(), ErrorKind> {
        let refused = "a user's name has one character at least, and no blanks";
        let is_good = !self.user.is_empty() && !self.user.contains(' ');
        if is_good { Ok(()) } else { Err(ErrorKind::Login(refused.into())) }
    }

    /// The request, on a connection of its own.
    pub(crate) fn begin(&self) -> Connection {
        let mut connection = Connection::default();
        let Self { user, password } = self;
        let len = user.len() + 1 + password.len();
        let check = || Check::new(std::iter::empty(), |_| true);
        connection.begin(Frame::One, check, |out| {
            // A server without logins stores it. As it has expired, nobody can read it there.
            let written = write!(out, "set login 0 -1 {len}\r\n{user} {password}\r\n");
            written.expect("a vector takes everything");
        });
        connection
    }

    /// Whether the server has answered.
    ///
    /// # Errors
    /// `Login`: it refused. `Connect`: its answer is none to a login; it is not shown, as it may repeat the password.
    pub(crate) fn is_done(connection: &mut Connection) -> Result<bool, ErrorKind> {
        let reply = connection.next_reply();
        if matches!(reply, Ok(None)) {
            return Ok(false);
        }
        match reply.ok().flatten().as_deref().and_then(|reply| Answers(reply).next()) {
            Some(Answer::Stored { .. }) if connection.is_settled() => Ok(true),
            Some(Answer::Error { line, .. }) if line.starts_with(b"CLIENT_ERROR") => {
                Err(ErrorKind::Login(shown(line).into()))
            }
            _ => {
                let error = "the server's answer to the login is neither a refusal nor STORED";
                Err(ErrorKind::connect(io::Error::new(io::ErrorKind::InvalidData, error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let login = Login::new("ann".to_owned(), "pass word".to_owned());
        for (answer, expected) in [
            ("STORED\r\n", "Ok(true)"),
            ("STOR", "Ok(false)"),
            (
                "CLIENT_ERROR authentication failure\r\n",
                "Err(Login(\"CLIENT_ERROR authentication failure\"))",
            ),
            ("STORED\r\nEND\r\n", "Err(Connect("),
            ("ERROR Too many open connections\r\n", "Err(Connect("),
            ("set login 0 -1 13\r\nann pass word\r\n", "Err(Connect("),
            ("\0\0\r\n", "Err(Connect("),
        ] {
            let mut connection = login.begin();
            assert_eq!(connection.output(), b"set login 0 -1 13\r\nann pass word\r\n");
            connection.sent(connection.output().len());
            connection.room()[..answer.len()].copy_from_slice(answer.as_bytes());
            connection.received(answer.len());
            let said = format!("{:?}", Login::is_done(&mut connection));
            assert!(said.starts_with(expected) && !said.contains("pass"), "{answer:?}: {said}");
        }
        assert!(!format!("{login:?}").contains("pass"));
        for (user, is_good) in [("ann", true), ("", false), ("ann b", false)] {
            assert_eq!(Login::new(user.to_owned(), String::new()).check().is_ok(), is_good);
        }
    }
}
