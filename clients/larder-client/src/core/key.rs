//! Keys in requests. The client sends a key unchanged if every server accepts the key. Otherwise,
//! the client sends the key in base64, with meta commands.

use larder_protocol::encode::{InvalidKey, MetaKey, WireKey};

/// A valid key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'k> {
    /// A key that the client sends unchanged, with classic commands.
    Plain(WireKey<'k>),
    /// A key that the client sends in base64, with meta commands.
    Base64(MetaKey<'k>),
}

impl<'k> Key<'k> {
    /// Checks a key and chooses how to send it.
    ///
    /// # Errors
    /// The key is too long or empty.
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

    /// Returns the key for meta commands.
    pub(crate) fn meta(self) -> MetaKey<'k> {
        match self {
            Self::Plain(key) => key.into(),
            Self::Base64(key) => key,
        }
    }
}
