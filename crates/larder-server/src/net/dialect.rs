//! Chooses the parser for the first request of a connection. The choice depends on the dialect, and
//! on whether clients must log in.

use crate::options::Options;
use larder_protocol::Parser;

/// A dialect of memcached's protocol, as a prefix in `-l`: `proto[ascii]:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `negotiating`: the client's first byte selects the dialect.
    Negotiating,
    /// `ascii`
    Ascii,
    /// `binary`
    Binary,
}

/// Returns the first parser of a conversation under these options.
#[must_use]
pub fn opening(options: &Options) -> Parser {
    match options.protocol.as_deref() {
        _ if options.auth_file.is_some() => Parser::TEXT_LOGIN,
        _ if options.enable_sasl => Parser::BINARY_LOGIN,
        Some("ascii") => Parser::TEXT,
        Some("binary") => Parser::BINARY,
        _ => Parser::default(),
    }
}

/// Returns whether clients of every protocol must log in.
pub(crate) fn requires_login(options: &Options) -> bool {
    options.auth_file.is_some() || options.enable_sasl
}

/// Returns the first parser of a conversation at a listener with a dialect in `-l`, which overrides
/// `-B`. Returns `None` if the options require a login that the dialect does not support.
pub(crate) fn opening_in(dialect: Dialect, options: &Options) -> Option<Parser> {
    let usual = opening(options);
    match (usual, dialect) {
        (Parser::TEXT_LOGIN, Dialect::Binary) | (Parser::BINARY_LOGIN, Dialect::Ascii) => None,
        (Parser::TEXT_LOGIN | Parser::BINARY_LOGIN, _) => Some(usual),
        (_, Dialect::Negotiating) => Some(Parser::default()),
        (_, Dialect::Ascii) => Some(Parser::TEXT),
        (_, Dialect::Binary) => Some(Parser::BINARY),
    }
}
