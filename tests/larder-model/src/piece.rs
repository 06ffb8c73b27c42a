//! The parts of transcript lines.

/// A part of the sent or expected bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// The CAS with this name, plus an offset.
    Cas {
        /// The name in the transcript.
        name: String,
        /// Number that is added to the CAS when it is sent.
        offset: i64,
        /// The encoding of the CAS in the sent or received bytes.
        form: Form,
    },
    /// Any decimal number, in received bytes only.
    Number,
}

/// The encoding of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Decimal digits.
    Decimal,
    /// Eight bytes, big endian.
    Binary,
}
