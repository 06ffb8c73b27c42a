//! Dumps: `lru_crawler metadump` and `mgdump`, `stats cachedump` and `stats sizes`. A dump writes
//! some items in each poll, and no faster than its client reads.

use crate::Host;
use crate::context::Context;
use larder_protocol::dump::{self, DumpItem};
use larder_protocol::reply;
use larder_protocol::{Classic, ReplyFormat, Selection};
use larder_store::{Engine, Item, Lease, Now, SizeClasses, WalkState};
use std::collections::BTreeMap;

/// The form of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `lru_crawler metadump`.
    Meta,
    /// `lru_crawler mgdump`.
    Keys,
    /// `stats cachedump`.
    Cache,
    /// `stats sizes`, which counts items by size instead of listing them.
    Sizes,
}

/// A dump in progress.
pub(crate) struct Dump<E: Engine> {
    walk: E::Walk,
    style: Style,
    selection: Selection,
    /// The number of items that the dump may still write.
    items_left: u64,
    /// The number of bytes that the dump may still write.
    bytes_left: usize,
    /// The number of items per size class. The key is the size in units of [`SIZE_STEP`], rounded
    /// up.
    sizes: BTreeMap<usize, u64>,
    /// The reply format for `stats sizes` lines and for the end of the dump.
    format: ReplyFormat<'static>,
}

/// The approximate number of items that one step examines.
const ITEMS_PER_STEP: usize = 256;
/// The width of a size class in `stats sizes`, in bytes, as in memcached.
const SIZE_STEP: usize = 32;
/// The maximum output length of `stats cachedump`, in bytes, as in memcached.
const CACHEDUMP_LEN_MAX: usize = 2 << 20;

impl<E: Engine> Dump<E> {
    pub(crate) fn new(engine: &E, style: Style, selection: Selection, items_max: u64) -> Self {
        let bytes_left = if style == Style::Cache { CACHEDUMP_LEN_MAX } else { usize::MAX };
        Self {
            walk: engine.walk(),
            style,
            selection,
            items_left: items_max,
            bytes_left,
            sizes: BTreeMap::new(),
            format: ReplyFormat::Classic(Classic::default()),
        }
    }

    /// Returns a dump for `stats sizes`.
    pub(crate) fn sizes(engine: &E, format: ReplyFormat<'static>) -> Self {
        Self { format, ..Self::new(engine, Style::Sizes, Selection::Hash, u64::MAX) }
    }

    /// Returns whether an `lru_crawler` command started the dump. The host counts these dumps.
    pub(crate) fn is_crawl(&self) -> bool {
        matches!(self.style, Style::Meta | Style::Keys)
    }

    /// Writes the next items. After the last item, writes the end of the dump.
    pub(crate) fn proceed<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        output: &mut Vec<u8>,
    ) -> WalkState {
        let Self { walk, style, selection, items_left, bytes_left, sizes, format } = self;
        let (classes, now) = (&cx.operations.limits.classes, cx.operations.now);
        let waker = (cx.waker)();
        let mut state =
            cx.operations.engine.continue_walk(walk, ITEMS_PER_STEP, &waker, |key, item| {
                let item = describe(key, item, classes, now);
                if *items_left == 0 || !selection.includes(item.class.into()) {
                    return;
                }
                if *style == Style::Sizes {
                    *sizes.entry(item.size.div_ceil(SIZE_STEP)).or_default() += 1;
                    return;
                }
                let before = output.len();
                show(*style, &item, output);
                let len = output.len() - before;
                if len > *bytes_left {
                    output.truncate(before);
                    *items_left = 0;
                } else if len > 0 {
                    *bytes_left -= len;
                    *items_left -= 1;
                }
            });
        if *items_left == 0 {
            state = WalkState::End;
        }
        if state == WalkState::End {
            for (step, items) in &*sizes {
                let size = (step * SIZE_STEP).to_string();
                reply::stat(format, &size, &items.to_string(), output);
            }
            match style {
                Style::Keys => reply::mgdump_end(output),
                Style::Meta | Style::Cache | Style::Sizes => reply::stats_end(format, output),
            }
        }
        state
    }
}

fn show(style: Style, item: &DumpItem<'_>, output: &mut Vec<u8>) {
    match style {
        Style::Meta => dump::metadump(item, output),
        // Clients use these keys in later requests. The dump omits keys that the protocol cannot
        // express.
        Style::Keys if dump::can_be_sent(item) => dump::mgdump(item, output),
        Style::Cache if dump::can_be_sent(item) && !item.binary_key => {
            dump::cachedump(item, output)
        }
        Style::Keys | Style::Cache | Style::Sizes => (),
    }
}

fn describe<'k, L: Lease>(
    key: &'k [u8],
    item: &Item<'_, L>,
    classes: &SizeClasses,
    now: Now,
) -> DumpItem<'k> {
    let attributes = &item.attributes;
    let size = classes.footprint(key.len(), item.value.len(), attributes.client_flags);
    DumpItem {
        key,
        binary_key: attributes.binary_key,
        expires: attributes.expiry.second().map(|at| now.unix_of(at)),
        accessed: now.unix_of(item.accessed),
        cas: item.cas,
        fetched: item.fetched,
        class: u8::try_from(classes.class_of(size) + 1).unwrap_or(u8::MAX),
        size,
        value_len: item.value.len(),
        client_flags: attributes.client_flags,
        flash_location: item.flash_location.map(|at| (at.page, at.offset)),
    }
}
