//! Logins of clients.

use super::format::ReplyFormat;
use std::fmt;

/// A login request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login<'b> {
    /// The credentials, or another step of the login.
    pub claim: Claim<'b>,
    /// The dialect of the reply: binary for SASL, otherwise classic text.
    pub format: ReplyFormat<'b>,
}

/// The claim of a login request. If the caller accepts the credentials, it must call
/// [`crate::Parser::admit`]. For all other outcomes, the parser has already updated its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'b> {
    /// Credentials to check.
    Credentials(Credentials<'b>),
    /// A login that fails with any credentials: an unknown mechanism, a malformed message, a second
    /// login, or a step without a started mechanism (SASL).
    Invalid,
    /// The choice of a mechanism (SASL). The client has to send the mechanism's message next.
    Started,
    /// A request for the list of mechanisms (SASL).
    Mechanisms,
}

/// A user name and password, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials<'b> {
    /// The user name, which may be empty.
    pub user: &'b [u8],
    /// The password, which `Debug` does not show.
    pub password: Password<'b>,
}

/// A password, hidden from `Debug`. Compare its bytes in constant time: `==` is for tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Password<'b>(pub &'b [u8]);

impl fmt::Debug for Password<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
