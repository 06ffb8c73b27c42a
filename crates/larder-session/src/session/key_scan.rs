//! `SCAN` and `KEYS`: the keys of some items, or of all. They are looked for in short steps, between the turns of
//! other connections, and the answer is sent when all of them are there.

use crate::Host;
use crate::context::Context;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{self as protocol, CommandError, Scan};
use larder_store::{Engine, WalkPlace, WalkState};

/// About how many items are looked at in one step.
const ITEMS_PER_STEP: usize = 256;
/// The most that the keys of one answer may take, in bytes.
const KEYS_LEN_MAX: usize = 16 << 20;

/// A `SCAN` or `KEYS` that has begun.
pub(crate) struct Scanning<E: Engine> {
    walk: E::Walk,
    /// What keys have to match; any key if there is none.
    pattern: Option<Vec<u8>>,
    /// `SCAN` for another type than strings, which no item has.
    finds_nothing: bool,
    /// How many items are still to be looked at before the answer; `None`: all.
    left: Option<usize>,
    is_scan: bool,
    /// The keys, as they are sent, and their number.
    keys: Vec<u8>,
    count: usize,
    /// Where in the answer the next part to send begins, when it is complete.
    sent: Option<usize>,
    /// The bytes that are reserved at the host.
    pub(crate) reserved: usize,
}

impl<E: Engine> Scanning<E> {
    pub(crate) fn scan(engine: &E, scan: &Scan<'_>) -> Self {
        let mut scanning = Self::new(engine.walk_from(scan.cursor), scan.pattern);
        scanning.finds_nothing = scan.finds_nothing;
        scanning.left = Some(scan.count);
        scanning.is_scan = true;
        scanning
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

    /// Does a step, and writes a part of the answer if it is there.
    pub(crate) fn proceed<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
    ) -> WalkState {
        if self.sent.is_some() {
            return self.send(cx, output);
        }
        let state = self.look(cx);
        let cursor = match state {
            WalkState::End => Some(0),
            _ if self.left == Some(0) => match cx.operations.engine.walk_place(&self.walk) {
                WalkPlace::At(place) => Some(place),
                WalkPlace::Unsettled => None,
                WalkPlace::Nowhere => {
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

    /// Looks at the next items.
    fn look<H: Host>(&mut self, cx: &mut Context<'_, E, H>) -> WalkState {
        let Self { walk, pattern, finds_nothing, left, keys, count, .. } = self;
        let items = left.unwrap_or(usize::MAX).min(ITEMS_PER_STEP);
        let mut seen = 0;
        let waker = (cx.waker)();
        let state = cx.operations.engine.walk_on(walk, items, &waker, |key, _| {
            seen += 1;
            let is_wanted =
                || pattern.as_ref().is_none_or(|pattern| protocol::matches(pattern, key));
            if !*finds_nothing && is_wanted() {
                reply::bulk(key, keys);
                *count += 1;
            }
        });
        if let Some(left) = left {
            // Steps through an empty index count, too.
            *left = left.saturating_sub(seen.max(1));
        }
        state
    }

    /// Writes the next part of the keys.
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

    /// Reserves the memory of the keys. Returns false if the host has no room for it.
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
