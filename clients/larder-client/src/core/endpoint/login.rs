//! The login of memcached's text protocol (memcached's option `-Y`). The first command of a
//! connection is a store whose value contains the user name and the password. The key has no
//! meaning.

use crate::core::connection::{
    Answers, Connection, Frame, InvalidReply, REQUIRES_TLS, ReplyCheck, shown,
};
use crate::error::ErrorKind;
use larder_protocol::answer::Answer;
use std::fmt;
use std::io::{self, Write};

/// A user name and a password. `Debug` omits the password.
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

    /// Checks the user name. A space ends the name in the protocol, so the name must not contain a
    /// space.
    ///
    /// # Errors
    /// `Login`: the name is empty or contains a space.
    pub(crate) fn check(&self) -> Result<(), ErrorKind> {
        let refused = "the user name is empty or contains a space";
        let is_good = !self.user.is_empty() && !self.user.contains(' ');
        if is_good { Ok(()) } else { Err(ErrorKind::Login(refused.into())) }
    }

    /// Returns a connection with the login request as its only request.
    pub(crate) fn connection(&self) -> Connection {
        let mut connection = Connection::default();
        let Self { user, password } = self;
        let len = user.len() + 1 + password.len();
        let check = || ReplyCheck::new(std::iter::empty(), |_| true);
        connection.push_request(Frame::One, check, |out| {
            // A server without logins stores the item. The negative expiry makes the item expire at
            // once.
            let written = write!(out, "set login 0 -1 {len}\r\n{user} {password}\r\n");
            written.expect("a vector takes everything");
        });
        connection
    }

    /// Returns whether the server has accepted the login.
    ///
    /// # Errors
    /// `Login`: the server refused the login. `Connect`: the reply is not a valid reply to a login.
    /// The `Connect` error omits the reply, because the reply may repeat the password.
    pub(crate) fn is_done(connection: &mut Connection) -> Result<bool, ErrorKind> {
        let unexpected =
            |error| ErrorKind::connect(io::Error::new(io::ErrorKind::InvalidData, error));
        let reply = match connection.next_reply() {
            Ok(None) => return Ok(false),
            Err(InvalidReply(text)) if &*text == REQUIRES_TLS => {
                return Err(unexpected(REQUIRES_TLS));
            }
            reply => reply.ok().flatten(),
        };
        match reply.as_deref().and_then(|reply| Answers(reply).next()) {
            Some(Answer::Stored { .. }) if connection.is_settled() => Ok(true),
            Some(Answer::Error { line, .. }) if line.starts_with(b"CLIENT_ERROR") => {
                Err(ErrorKind::Login(shown(line).into()))
            }
            _ => Err(unexpected("the reply to the login is neither STORED nor CLIENT_ERROR")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_replies_are_classified_without_showing_the_password() {
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
            (
                "\x15\x03\x03\0\x02\x02\x32",
                "Err(Connect(Custom { kind: InvalidData, error: \"a TLS alert",
            ),
        ] {
            let mut connection = login.connection();
            assert_eq!(connection.output(), b"set login 0 -1 13\r\nann pass word\r\n");
            connection.sent(connection.output().len());
            connection.room()[..answer.len()].copy_from_slice(answer.as_bytes());
            connection.received(answer.len());
            let shown = format!("{:?}", Login::is_done(&mut connection));
            assert!(shown.starts_with(expected) && !shown.contains("pass"), "{answer:?}: {shown}");
        }
        assert!(!format!("{login:?}").contains("pass"));
        for (user, is_good) in [("ann", true), ("", false), ("ann b", false)] {
            assert_eq!(Login::new(user.to_owned(), String::new()).check().is_ok(), is_good);
        }
    }
}
