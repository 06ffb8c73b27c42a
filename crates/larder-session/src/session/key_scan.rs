//! `SCAN` and `KEYS`, which list keys. A scan examines some items in each poll. The session writes
//! the reply only when all keys are collected, because the reply starts with the number of keys.

use crate::Host;
use crate::context::Context;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{self as protocol, CommandError, Scan};
use larder_store::{Engine, WalkPosition, WalkState};

/// The approximate number of items that one step examines.
const ITEMS_PER_STEP: usize = 256;
/// The maximum total length of the encoded keys in one reply, in bytes.
const KEYS_LEN_MAX: usize = 16 << 20;

/// A `SCAN` or `KEYS` in progress.
pub(crate) struct KeyScan<E: Engine> {
    walk: E::Walk,
    /// The pattern that keys must match; `None` if every key matches.
    pattern: Option<Vec<u8>>,
    /// Whether the command is a `SCAN` for a type other than strings. No item has such a type.
    finds_nothing: bool,
    /// The number of items that the scan still has to examine before its reply. `None` if the scan
    /// examines all items.
    left: Option<usize>,
    is_scan: bool,
    /// The collected keys, encoded as RESP bulk strings.
    keys: Vec<u8>,
    /// The number of keys in `keys`.
    count: usize,
    /// The offset in `keys` of the next byte to write; `None` while the scan collects keys.
    sent: Option<usize>,
    /// The number of bytes reserved at the host.
    pub(crate) reserved: usize,
}

impl<E: Engine> KeyScan<E> {
    pub(crate) fn scan(engine: &E, scan: &Scan<'_>) -> Self {
        let mut key_scan = Self::new(engine.walk_from(scan.cursor), scan.pattern);
        key_scan.finds_nothing = scan.finds_nothing;
        key_scan.left = Some(scan.count);
        key_scan.is_scan = true;
        key_scan
    }

    pub(crate) fn keys(engine: &E, pattern: &[u8]) -> Self {
        Self::new(engine.walk(), Some(pattern))
    }

    fn new(walk: E::Walk, pattern: Option<&[u8]>) -> Self {
        Self {
            walk,
            pattern: pattern.map(<[u8]>::to_vec),
            finds_nothing: false,
            left: None,
            is_scan: false,
            keys: Vec::new(),
            count: 0,
            sent: None,
            reserved: 0,
        }
    }

    /// Examines the items of one step. Once all keys are collected, writes a part of the reply.
    pub(crate) fn proceed<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
    ) -> WalkState {
        if self.sent.is_some() {
            return self.send(cx, output);
        }
        let state = self.poll_lookups(cx);
        let cursor = match state {
            WalkState::End => Some(0),
            _ if self.left == Some(0) => match cx.operations.engine.walk_position(&self.walk) {
                WalkPosition::At(position) => Some(position),
                WalkPosition::Unsettled => None,
                WalkPosition::Unsupported => {
                    self.left = None;
                    None
                }
            },
            _ => None,
        };
        if self.keys.len() > KEYS_LEN_MAX || !self.reserve(cx.host) {
            reply::error(&CommandError::TooManyKeys, output);
            self.release(cx.host);
            return WalkState::End;
        }
        let Some(cursor) = cursor else { return state };
        if self.is_scan {
            reply::scan_head(cursor, output);
        }
        reply::array(self.count, output);
        self.sent = Some(0);
        self.send(cx, output)
    }

    /// Examines the next items, and collects the keys that match.
    fn poll_lookups<H: Host>(&mut self, cx: &mut Context<'_, E, H>) -> WalkState {
        let Self { walk, pattern, finds_nothing, left, keys, count, .. } = self;
        let items = left.unwrap_or(usize::MAX).min(ITEMS_PER_STEP);
        let mut seen = 0;
        let waker = (cx.waker)();
        let state = cx.operations.engine.continue_walk(walk, items, &waker, |key, _| {
            seen += 1;
            let is_wanted =
                || pattern.as_ref().is_none_or(|pattern| protocol::matches(pattern, key));
            if !*finds_nothing && is_wanted() {
                reply::bulk(key, keys);
                *count += 1;
            }
        });
        if let Some(left) = left {
            // Count a step without items as one item, so that a sparse index does not prolong a
            // `SCAN`.
            *left = left.saturating_sub(seen.max(1));
        }
        state
    }

    /// Writes the next bytes of the keys.
    fn send<H: Host>(&mut self, cx: &Context<'_, E, H>, output: &mut Vec<u8>) -> WalkState {
        let at = self.sent.unwrap_or_default();
        let rest = self.keys.get(at..).unwrap_or_default();
        let part = rest.get(..cx.settings.output_max).unwrap_or(rest);
        output.extend_from_slice(part);
        if part.len() == rest.len() {
            self.release(cx.host);
            return WalkState::End;
        }
        self.sent = Some(at + part.len());
        WalkState::More
    }

    /// Reserves memory for the keys. Returns false if the host refuses.
    fn reserve(&mut self, host: &impl Host) -> bool {
        let more = self.keys.capacity().saturating_sub(self.reserved);
        let fits = more == 0 || host.reserve(more);
        if fits {
            self.reserved += more;
        }
        fits
    }

    fn release(&mut self, host: &impl Host) {
        host.release(std::mem::take(&mut self.reserved));
        self.keys = Vec::new();
    }
}
