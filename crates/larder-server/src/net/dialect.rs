//! The dialect, or login, that a conversation begins with.

use crate::options::Options;
use larder_protocol::Parser;

/// A dialect of memcached's that `-l` names: `proto[ascii]:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `negotiating`: a client's first byte chooses.
    Negotiating,
    /// `ascii`
    Ascii,
    /// `binary`
    Binary,
}

/// How conversations begin under these options.
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

/// Whether clients have to log in, whatever their protocol.
pub(crate) fn requires_login(options: &Options) -> bool {
    options.auth_file.is_some() || options.enable_sasl
}

/// How conversations begin at a listener for which `-l` names a dialect, which overrides `-B`; `None`
/// if a login is required and this dialect has none.
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
