//! Lookups of one or several keys.

use super::interface::{Operation, ReplyFailure, check};
use crate::core::connection::{Answers, Connection, Frame, hash};
use crate::core::key::Key;
use crate::item::Item;
use crate::metrics::Command;
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::{Answer, AnswerFields, Flag};
use larder_protocol::encode::{classic, meta};

/// The maximum number of keys per request line.
const KEYS_PER_LINE: usize = 100;

/// Returns the item of a hit, or `None` if the hit is for a key other than `key`. The value shares
/// the memory of the reply.
fn item(reply: &Bytes, key: Key<'_>, value: &[u8], returned: &AnswerFields<'_>) -> Option<Item> {
    let is_right = match (returned, key) {
        (AnswerFields::Classic { key: name, .. }, Key::Plain(key)) => *name == key.bytes(),
        (AnswerFields::Meta(_), Key::Base64(_)) => {
            let expected = opaque(key);
            let is_mine = |digits: &[u8]| digits == itoa::Buffer::new().format(expected).as_bytes();
            returned.flags().any(|flag| matches!(flag, Flag::Opaque(digits) if is_mine(digits)))
        }
        _ => false,
    };
    let flags = returned.client_flags().unwrap_or(0);
    is_right.then(|| Item { value: reply.slice_ref(value), flags, cas: returned.cas() })
}

/// Returns the opaque for meta lookups of a key. The opaque is a hash of the key, and the server
/// returns it with the reply. The client compares the opaque instead of a base64 key, because some
/// versions of memcached return such keys as raw bytes.
pub(crate) fn opaque(key: Key<'_>) -> u64 {
    hash(key.bytes())
}

/// A lookup of one key.
pub(crate) struct Get<'k> {
    pub(crate) key: Key<'k>,
    /// Whether to request the CAS.
    pub(crate) cas: bool,
    /// The new expiry of the item. `None` leaves the expiry unchanged.
    pub(crate) touch: Option<Exptime>,
}

impl Operation for Get<'_> {
    type Output = Option<Item>;
    fn reads(&self) -> bool {
        self.touch.is_none()
    }

    fn command(&self) -> Command {
        if self.touch.is_some() { Command::Touch } else { Command::Get }
    }

    fn empty_output(&self) -> Option<Self::Output> {
        Some(None)
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Hit { .. } | Answer::End | Answer::NotFound { .. })
    }

    fn encode(&mut self, connection: &mut Connection) {
        let checked = || check::<Self>(&[self.key]);
        match self.key {
            Key::Plain(key) => connection.push_request(Frame::Last, checked, |out| {
                match (self.cas, self.touch) {
                    (false, None) => classic::get([key], out),
                    (true, None) => classic::gets([key], out),
                    (false, Some(expiry)) => classic::gat(expiry, [key], out),
                    (true, Some(expiry)) => classic::gats(expiry, [key], out),
                };
            }),
            Key::Base64(_) => connection.push_request(Frame::One, checked, |out| {
                write_meta_get(self.key, self.cas, self.touch, out);
            }),
        }
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, ReplyFailure> {
        let mut answers = Answers(reply);
        let first = answers.next();
        match (&first, answers.next()) {
            (Some(Answer::End | Answer::NotFound { .. }), None) => Ok(Some(None)),
            (Some(Answer::Hit { value, returned }), None | Some(Answer::End)) => {
                let item = item(reply, self.key, value, returned);
                item.map(|item| Some(Some(item)))
                    .ok_or_else(|| ReplyFailure::of(first.as_ref(), reply))
            }
            _ => Err(ReplyFailure::of(first.as_ref(), reply)),
        }
    }
}

fn write_meta_get(key: Key<'_>, cas: bool, touch: Option<Exptime>, out: &mut Vec<u8>) {
    const FLAGS: meta::GetFlags = meta::GetFlags::NONE.client_flags().value();
    let flags = if cas { FLAGS.cas() } else { FLAGS };
    let opaque = Some(opaque(key));
    meta::get(key.meta(), flags, &meta::GetOptions { touch, opaque, ..Default::default() }, out);
}

/// Lookups of several keys. The output has an item or `None` for each key, in the order of the
/// keys.
pub(crate) struct GetMany<'k, 'a> {
    keys: &'a [Key<'k>],
    cas: bool,
    found: Vec<Option<Item>>,
    /// The number of replies that have not arrived.
    left: usize,
}

impl<'k, 'a> GetMany<'k, 'a> {
    pub(crate) fn new(keys: &'a [Key<'k>], cas: bool) -> Self {
        Self { keys, cas, found: Vec::new(), left: 0 }
    }

    /// Returns the state of a lookup whose requests have been sent. `replies` is the number of
    /// pending replies.
    #[cfg(feature = "pipeline")]
    pub(crate) fn sent(keys: &'a [Key<'k>], replies: usize) -> Self {
        Self { left: replies, ..Self::new(keys, false) }
    }

    /// Returns the keys of the first request: up to [`KEYS_PER_LINE`] plain keys, or one base64
    /// key.
    fn group(keys: &'a [Key<'k>]) -> &'a [Key<'k>] {
        let is_plain = |key: &&Key<'k>| matches!(key, Key::Plain(_));
        let plain = keys.iter().take(KEYS_PER_LINE).take_while(is_plain).count();
        keys.get(..plain.max(1)).unwrap_or(keys)
    }
}

impl Operation for GetMany<'_, '_> {
    type Output = Vec<Option<Item>>;
    fn reads(&self) -> bool {
        true
    }

    fn command(&self) -> Command {
        Command::GetMany
    }

    fn empty_output(&self) -> Option<Self::Output> {
        Some(vec![None; self.keys.len()])
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Get::fits(answer)
    }

    fn encode(&mut self, connection: &mut Connection) {
        (self.found, self.left) = (Vec::with_capacity(self.keys.len()), 0);
        let mut rest = self.keys;
        while let [first, ..] = rest {
            let group = Self::group(rest);
            let checked = || check::<Self>(group);
            match first {
                Key::Base64(_) => connection.push_request(Frame::One, checked, |out| {
                    write_meta_get(*first, self.cas, None, out);
                }),
                Key::Plain(_) => connection.push_request(Frame::Last, checked, |out| {
                    let keys = group.iter().filter_map(|key| match key {
                        Key::Plain(key) => Some(*key),
                        Key::Base64(_) => None,
                    });
                    if self.cas { classic::gets(keys, out) } else { classic::get(keys, out) }
                }),
            }
            self.left += 1;
            rest = rest.get(group.len()..).unwrap_or_default();
        }
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, ReplyFailure> {
        let start = self.found.len();
        let group = Self::group(self.keys.get(start..).unwrap_or_default());
        self.found.resize(start + group.len(), None);
        let mut next = 0;
        for answer in Answers(reply) {
            match &answer {
                Answer::Hit { value, returned } => {
                    // Servers reply in the order of the keys, but proxies may reply in another
                    // order.
                    let hit = (next..group.len()).chain(0..next).find_map(|n| {
                        let slot = self.found.get_mut(start + n).filter(|slot| slot.is_none())?;
                        *slot = item(reply, *group.get(n)?, value, returned);
                        slot.is_some().then_some(n)
                    });
                    let Some(n) = hit else { return Err(ReplyFailure::of(Some(&answer), reply)) };
                    next = n + 1;
                }
                Answer::End | Answer::NotFound { .. } => break,
                other => return Err(ReplyFailure::of(Some(other), reply)),
            }
        }
        self.left = self.left.saturating_sub(1);
        Ok((self.left == 0).then(|| std::mem::take(&mut self.found)))
    }
}
