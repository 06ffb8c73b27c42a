//! Sets of meta flags without arguments, kept as the bytes that are sent.

/// The most flags of a set: `mg` has ten, and twelve fill three words.
const FLAGS_MAX: usize = 12;

/// Flags in the order in which they were added, each behind a space. Made in constants mostly, so
/// that a request copies a few bytes instead of looking at each flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spelled {
    bytes: [u8; 2 * FLAGS_MAX],
    len: u8,
}

impl Spelled {
    pub(super) const NONE: Self = Self { bytes: [0; _], len: 0 };

    /// The same with this flag; a flag that is there already is not added again.
    #[expect(clippy::indexing_slicing, reason = "a set has room for all flags that there are")]
    pub(super) const fn with(mut self, letter: u8) -> Self {
        let mut at = 0;
        while at < self.len as usize {
            if self.bytes[at + 1] == letter {
                return self;
            }
            at += 2;
        }
        self.bytes[at] = b' ';
        self.bytes[at + 1] = letter;
        self.len += 2;
        self
    }

    /// Writes the flags: all bytes, because a copy of known length is the fastest, of which those
    /// that are flags stay.
    #[inline]
    pub(super) fn push(self, out: &mut Vec<u8>) {
        if self.len == 0 {
            return;
        }
        let end = out.len() + usize::from(self.len);
        out.extend_from_slice(&self.bytes);
        out.truncate(end);
    }
}

/// A set of flags that one command gives a meaning.
macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident: $letter:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(Spelled);

        impl $name {
            /// No flags.
            pub const NONE: Self = Self(Spelled::NONE);

            $(
                $(#[$flag_doc])*
                #[must_use]
                pub const fn $flag(self) -> Self {
                    Self(self.0.with($letter))
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NONE
            }
        }
    };
}
pub(super) use flag_set;
