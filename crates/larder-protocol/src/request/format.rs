//! Reply formats: the properties of a request on which its reply depends.

use crate::text::letters::Letters;

/// The dialect of a reply, and the properties of the request that shape the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat<'b> {
    /// Classic text.
    Classic(Classic),
    /// Meta text. The reply encoder reads the flags again, in the order of the request.
    Meta(MetaFlags<'b>),
    /// Binary.
    Binary(BinaryHead),
}

impl<'b> ReplyFormat<'b> {
    /// Returns the flags of a meta request, or `None` for other formats.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> Option<&MetaFlags<'b>> {
        if let Self::Meta(flags) = self { Some(flags) } else { None }
    }
}

/// The reply format of a classic request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classic {
    /// Whether the reply is suppressed.
    pub noreply: bool,
    /// Whether the reply has a CAS: `gets`, `gats`.
    pub with_cas: bool,
    /// Whether the parser knows that the key is the last of its line. If it does, `END` follows the
    /// reply.
    pub last: bool,
}

/// The validated flags of a meta request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags<'b> {
    /// The flag tokens as sent, separated by spaces, without the line's end.
    pub raw: &'b [u8],
    pub(crate) letters: Letters,
}

/// The reply format of a binary request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryHead {
    /// The opcode as sent, which the reply repeats even if the opcode is quiet.
    pub opcode: u8,
    /// The opaque, which the reply repeats in wire order.
    pub opaque: [u8; 4],
    /// Whether the opcode is quiet.
    pub quiet: bool,
    /// Whether the reply has the key: `getk`, `gatk`.
    pub with_key: bool,
}
