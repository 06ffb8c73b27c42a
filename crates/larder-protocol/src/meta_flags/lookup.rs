//! Lookup tables of flags, indexed by letter and computed at compile time.
#![expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, except one index with the number of a command"
)]

use super::table::{Argument, Command, FLAGS, Flag, ReplyEffect};
use crate::text::letters::{LETTERS, Letters, index};

/// The parsing rule of a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) argument: Argument,
    /// The index at which the parser stores the numeric argument of the flag, below [`SLOTS`].
    /// Flags without a numeric argument do not use the index.
    pub(crate) slot: u8,
}

impl Entry {
    /// Finds the rule of a flag; `None` if there is no such flag.
    #[inline]
    pub(crate) fn of(letter: u8) -> Option<Self> {
        static ENTRIES: [Option<Entry>; LETTERS] = entries();
        *ENTRIES.get(index(letter))?
    }
}

/// Returns the effect of a flag on a reply to `command`.
#[inline]
pub(super) fn shows(command: Command, letter: u8) -> ReplyEffect {
    static EFFECTS: [[ReplyEffect; LETTERS]; 5] = [
        effects_of(Command::Mg),
        effects_of(Command::Ms),
        effects_of(Command::Md),
        effects_of(Command::Ma),
        effects_of(Command::Me),
    ];
    let effects = &EFFECTS[command as usize];
    effects.get(index(letter)).copied().unwrap_or(ReplyEffect::Nothing)
}

/// The number of flags with a numeric argument.
pub(crate) const SLOTS: usize = slots(FLAGS.len());

/// The flags of `mg` that the fast path can answer: they have no argument, change nothing, and show
/// no access history.
pub(crate) const FAST: Letters = fast_letters();

#[expect(clippy::cast_possible_truncation, reason = "there are fewer slots than letters")]
const fn entries() -> [Option<Entry>; LETTERS] {
    let mut entries = [None; LETTERS];
    let mut at = 0;
    while at < FLAGS.len() {
        let Flag { letter, argument, .. } = FLAGS[at];
        assert!(entries[index(letter)].is_none(), "the table has a letter twice");
        entries[index(letter)] = Some(Entry { argument, slot: slots(at) as u8 });
        at += 1;
    }
    entries
}

/// Returns the number of flags with a numeric argument among the first `flags` of the table.
const fn slots(flags: usize) -> usize {
    let (mut slots, mut at) = (0, 0);
    while at < flags {
        slots += FLAGS[at].argument.is_number() as usize;
        at += 1;
    }
    slots
}

const fn effects_of(command: Command) -> [ReplyEffect; LETTERS] {
    let mut effects = [ReplyEffect::Nothing; LETTERS];
    let mut at = 0;
    while at < FLAGS.len() {
        let Flag { letter, shows, .. } = FLAGS[at];
        if FLAGS[at].is_of(command) {
            effects[index(letter)] = shows;
        }
        at += 1;
    }
    effects
}

const fn fast_letters() -> Letters {
    let (mut letters, mut at) = (Letters::NONE, 0);
    while at < FLAGS.len() {
        let Flag { letter, argument, shows, .. } = FLAGS[at];
        let is_bare = matches!(argument, Argument::None);
        if is_bare && shows.is_fast() && FLAGS[at].is_of(Command::Mg) {
            letters = letters.with(Letters::of(letter));
        }
        at += 1;
    }
    letters
}

impl Flag {
    /// Returns whether `command` supports the flag.
    const fn is_of(&self, command: Command) -> bool {
        let mut at = 0;
        while at < self.commands.len() {
            if self.commands[at] as u8 == command as u8 {
                return true;
            }
            at += 1;
        }
        false
    }
}
