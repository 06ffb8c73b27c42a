//! What the answer to a request depends on, beside its outcome.

use crate::text::letters::Letters;

/// How the answer to a request is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat<'b> {
    /// Classic text.
    Classic(Classic),
    /// Meta text: the flags are walked again when the answer is written, in the order of the request.
    Meta(MetaFlags<'b>),
    /// Binary.
    Binary(BinaryHead),
}

impl<'b> ReplyFormat<'b> {
    /// The flags of a meta request.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> Option<&MetaFlags<'b>> {
        if let Self::Meta(flags) = self { Some(flags) } else { None }
    }
}

/// What the answer to a classic request depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classic {
    /// Send nothing.
    pub noreply: bool,
    /// `gets`, `gats`: show the CAS.
    pub with_cas: bool,
    /// This key is known to be the last of its line: `END` follows.
    pub last: bool,
}

/// The flags of a meta request, already validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags<'b> {
    /// The flag tokens as sent, separated by spaces, without the line's end.
    pub raw: &'b [u8],
    pub(crate) letters: Letters,
}

/// What the answer to a binary request repeats or depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryHead {
    /// As sent: quiet opcodes keep their number in the answer.
    pub opcode: u8,
    /// Echoed, in wire order.
    pub opaque: [u8; 4],
    /// A quiet opcode.
    pub quiet: bool,
    /// `getk`, `gatk`: the answer carries the key.
    pub with_key: bool,
}
