//! Keys, as they are sent: plain where every server can have them, otherwise in base64 by the meta commands.

use larder_protocol::encode::{InvalidKey, MetaKey, WireKey};

/// A key that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'k> {
    /// Sent as it is, by classic commands.
    Plain(WireKey<'k>),
    /// Sent in base64, by meta commands.
    Base64(MetaKey<'k>),
}

impl<'k> Key<'k> {
    /// # Errors
    /// No request can have this key.
    pub(crate) fn new(bytes: &'k [u8]) -> Result<Self, InvalidKey> {
        match WireKey::new(bytes) {
            Ok(key) => Ok(Self::Plain(key)),
            Err(InvalidKey::BlankOrControl) => MetaKey::new(bytes).map(Self::Base64),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn bytes(self) -> &'k [u8] {
        match self {
            Self::Plain(key) => key.bytes(),
            Self::Base64(key) => key.bytes(),
        }
    }

    /// For commands that only meta has.
    pub(crate) fn meta(self) -> MetaKey<'k> {
        match self {
            Self::Plain(key) => key.into(),
            Self::Base64(key) => key,
        }
    }
}
