//! Logins: who a peer claims to be.

use super::format::ReplyFormat;
use std::fmt;

/// A peer's claim, and how to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login<'b> {
    /// What it says.
    pub claim: Claim<'b>,
    /// How to answer.
    pub format: ReplyFormat<'b>,
}

/// What a login says. The parser has taken its steps already, but for the one that the server
/// decides on: [`crate::Parser::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'b> {
    /// Find out whether this is right.
    Credentials(Credentials<'b>),
    /// It can't be right, whatever the passwords are: a mechanism that is not there, a message that
    /// is none of the mechanism's, a login after a login (SASL).
    Invalid,
    /// A mechanism was chosen, its message is to follow (SASL).
    Begun,
    /// Which mechanisms there are (SASL).
    Mechanisms,
}

/// A name and a password, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials<'b> {
    /// The name.
    pub user: &'b [u8],
    /// The password.
    pub password: Password<'b>,
}

/// A password that `Debug` does not show. Compare its bytes in constant time: `==` is for tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Password<'b>(pub &'b [u8]);

impl fmt::Debug for Password<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
