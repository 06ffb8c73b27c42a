//! How a listener is encrypted.

/// Whether a listener's connections use TLS, from the prefix of its address in `-l`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// No prefix: under `-Z`, as the options say.
    Usual,
    /// `notls:`: connections are not encrypted.
    Plain,
    /// `btls:`: clients present no certificate.
    Anonymous,
    /// `mtls:`: clients have to present a valid certificate.
    Certified,
}

impl Security {
    /// What the prefix of an address says, and the rest of the text.
    pub(crate) fn of(entry: &str) -> (Self, &str) {
        let named =
            [("notls:", Self::Plain), ("btls:", Self::Anonymous), ("mtls:", Self::Certified)];
        let found = named
            .into_iter()
            .find_map(|(prefix, security)| entry.strip_prefix(prefix).map(|rest| (security, rest)));
        found.unwrap_or((Self::Usual, entry))
    }
}
