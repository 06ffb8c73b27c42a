//! Sets of meta flags without arguments, stored as the bytes to send.

/// The maximum number of flags in a set. `mg` has ten flags. Twelve flags of two bytes each fill
/// three machine words.
const FLAGS_MAX: usize = 12;

/// Flags in the order in which they were added, each after a space. The set is usually a constant,
/// so that a request copies a few bytes instead of testing each flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlagText {
    bytes: [u8; 2 * FLAGS_MAX],
    len: u8,
}

impl FlagText {
    pub(super) const NONE: Self = Self { bytes: [0; _], len: 0 };

    /// Returns the set with this flag added, unless the set already has it.
    #[expect(clippy::indexing_slicing, reason = "a set has room for all flags of a command")]
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

    /// Writes the flags. Copies the whole array and truncates `out`, because a copy of constant
    /// length is faster.
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

/// Defines the set of flags of one command.
macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident: $letter:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(FlagText);

        impl $name {
            /// No flags.
            pub const NONE: Self = Self(FlagText::NONE);

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
