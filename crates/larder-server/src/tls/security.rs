//! The TLS requirements of a listener.

/// The TLS requirements of a listener, given by the prefix of its address in `-l`, `--http-listen`
/// or `--grpc-listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// No prefix: TLS if `-Z` is set, with client certificates verified according to
    /// `ssl_verify_mode`; otherwise plaintext.
    Usual,
    /// `notls:`: plaintext.
    Plain,
    /// `btls:`: TLS without client certificates.
    Anonymous,
    /// `mtls:`: TLS with a required client certificate.
    Certified,
}

impl Security {
    /// Splits the TLS prefix off an entry. Returns the requirements that the prefix names, and the
    /// rest of the entry.
    pub(crate) fn of(entry: &str) -> (Self, &str) {
        let named =
            [("notls:", Self::Plain), ("btls:", Self::Anonymous), ("mtls:", Self::Certified)];
        let found = named
            .into_iter()
            .find_map(|(prefix, security)| entry.strip_prefix(prefix).map(|rest| (security, rest)));
        found.unwrap_or((Self::Usual, entry))
    }
}
