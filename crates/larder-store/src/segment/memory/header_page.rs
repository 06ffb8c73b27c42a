//! The first page of the region. It describes the region to a later process.
//!
//! ```text
//! byte    0  magic, versions, sizes, seed, settings, boot, checksum              written once
//!       128  index length, flush floor, pending flush                          read by every request
//!       256  sequence, flush generation, ghost epoch                           written once a segment
//!       384  next CAS, CAS floor                                               written once a block
//!       512  use by processes: running, panics, attempts, note, run, …           written rarely
//!       640  flash: its content's id, pages                                     written rarely
//!       768  tags: buckets, drops                                              written rarely
//!       896  path of the image                                                 written rarely
//! ```
//! Frequently written words are on other cache lines than words that every request reads.

#![expect(clippy::cast_possible_truncation, reason = "words are cut into fields")]

use super::layout::{self, HEADER_PAGE_LEN};
use crate::segment::sync::{AtomicU64, Ordering};

/// The first word of every region.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"larder\0\0");
/// The layout version. A change of the meaning of any byte in the region requires a new version.
const LAYOUT_VERSION: u64 = 7;

/// The header page. A new region is all zeroes.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct HeaderPage {
    identity: Identity,
    pub(crate) shared: HotWords,
    pub(crate) order: OrderWords,
    pub(crate) cas: CasWords,
    pub(crate) uses: ProcessWords,
    pub(crate) flash: FlashWords,
    pub(crate) tags: TagWords,
    pub(crate) image: ImageWords,
}

const _: () = assert!(size_of::<HeaderPage>() <= HEADER_PAGE_LEN);

#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Identity {
    magic: AtomicU64,
    layout_version: AtomicU64,
    /// The result of [`layout::constants`].
    constants: AtomicU64,
    segment_len: AtomicU64,
    segments: AtomicU64,
    seed: AtomicU64,
    /// The settings: bit 0 is 1 if items have a CAS, and the bits from 8 on contain log2 of the
    /// initial number of buckets.
    settings: AtomicU64,
    /// Low 32 bits: the number of handle blocks. High 32 bits: the number of size classes per
    /// block.
    blocks: AtomicU64,
    /// The identifier of the machine's boot in which the region was made.
    boot: [AtomicU64; 2],
    /// The checksum of the words above.
    checksum: AtomicU64,
}

/// Words that every request reads and that are rarely written.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct HotWords {
    /// The number of buckets in use.
    pub(crate) index_len: AtomicU64,
    /// The flush floor: items in segments with a lower sequence number are flushed; 0 before the
    /// first flush.
    pub(crate) flush_floor: AtomicU64,
    /// The second at which the pending flush is due; 0 if none is pending.
    pub(crate) flush_at: AtomicU64,
}

/// The words that order opened segments and flushes, and the epoch of ghosts. The order changes
/// only under the allocator's lock.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct OrderWords {
    /// The sequence number of the next segment or page to be opened, counted from 1. In practice 64
    /// bits do not wrap.
    pub(crate) sequence: AtomicU64,
    /// The number of flushes that took effect.
    pub(crate) flush_generation: AtomicU64,
    /// The number of the current ghost epoch, 0 to 15.
    pub(crate) ghost_epoch: AtomicU64,
}

/// The source of CAS values.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct CasWords {
    /// The first CAS that no handle has taken yet.
    pub(crate) next: AtomicU64,
    /// A set that replaces an item without reading it draws a CAS above this value. Only caches
    /// with items on flash raise the value.
    pub(crate) floor: AtomicU64,
}

/// State that a process leaves for the next process.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct ProcessWords {
    /// 1 while a process has handles; 0 after its last handle was dropped.
    pub(crate) running: AtomicU64,
    /// The number of processes in succession that panicked soon after their start.
    pub(crate) panics: AtomicU64,
    /// The number of processes in succession that have started to restore the region and have not
    /// finished.
    pub(crate) attempts: AtomicU64,
    /// A number for the owner of the cache; see [`crate::segment::Cache::note`].
    pub(crate) note: AtomicU64,
    /// A hash of the size classes by which items are counted.
    pub(crate) classes: AtomicU64,
    /// The number of the first segment that was never within the limit. No later segment was within
    /// it either.
    pub(crate) segments_seen: AtomicU64,
    /// 1 if a handle has used the shared handle block since the region was created or last
    /// restored.
    pub(crate) has_shared_block: AtomicU64,
    /// The number of the last process that used the region; see [`crate::segment::Cache::run`].
    pub(crate) run: AtomicU64,
}

/// The tag table.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct TagWords {
    /// The number of buckets; 0 before the table exists.
    pub(crate) buckets: AtomicU64,
    /// The number of dropped tags, including tags displaced by other tags.
    pub(crate) drops: AtomicU64,
    /// The number of tags displaced by other tags.
    pub(crate) displaced: AtomicU64,
}

/// The path of the image that a process with this region has written.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct ImageWords {
    /// The length of the path in bytes; 0 if there is no image.
    len: AtomicU64,
    path: [AtomicU64; IMAGE_PATH_WORDS],
}

const IMAGE_PATH_WORDS: usize = 31;

/// The maximum length in bytes of an image's path.
pub const IMAGE_PATH_LEN_MAX: usize = 8 * IMAGE_PATH_WORDS;

impl ImageWords {
    /// Stores the path, or an empty path if it is longer than [`IMAGE_PATH_LEN_MAX`].
    pub(crate) fn store(&self, path: &[u8]) {
        self.len.store(0, Ordering::Release);
        if path.len() > IMAGE_PATH_LEN_MAX {
            return;
        }
        for (word, bytes) in self.path.iter().zip(path.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.len.store(path.len() as u64, Ordering::Release);
    }

    /// Returns the path, or an empty path if there is no image.
    pub(crate) fn read(&self) -> Vec<u8> {
        let len = self.len.load(Ordering::Acquire) as usize;
        let words = self.path.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        words.take(len).collect()
    }
}

/// The content of the flash device to which index words refer.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct FlashWords {
    id: [AtomicU64; 2],
    pages: AtomicU64,
    page_len: AtomicU64,
    head_len: AtomicU64,
}

/// The content of a flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashContent {
    /// The identifier of the content; 0 if there is none.
    pub(crate) id: u128,
    pub(crate) pages: u64,
    pub(crate) page_len: u64,
    /// The length in bytes of the head before a large item's value.
    pub(crate) head_len: u64,
}

impl FlashContent {
    pub(crate) const NONE: Self = Self { id: 0, pages: 0, page_len: 0, head_len: 0 };
}

impl FlashWords {
    pub(crate) fn read(&self) -> FlashContent {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let [low, high] = self.id.each_ref().map(word);
        let id = u128::from(low) | u128::from(high) << 64;
        FlashContent {
            id,
            pages: word(&self.pages),
            page_len: word(&self.page_len),
            head_len: word(&self.head_len),
        }
    }

    pub(crate) fn store(&self, content: FlashContent) {
        let FlashContent { id, pages, page_len, head_len } = content;
        for (word, value) in [
            (&self.id[0], id as u64),
            (&self.id[1], (id >> 64) as u64),
            (&self.pages, pages),
            (&self.page_len, page_len),
            (&self.head_len, head_len),
        ] {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// The parameters of a region. They change only when an image of the region is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionParameters {
    pub(crate) segment_len: usize,
    pub(crate) segments: usize,
    pub(crate) seed: u64,
    pub(crate) cas: bool,
    pub(crate) buckets_first: usize,
    /// The number of handle blocks.
    pub(crate) blocks: usize,
    /// The number of size classes per handle block.
    pub(crate) classes: usize,
    /// The identifier of the machine's boot in which the region was made.
    pub(crate) boot: u128,
    /// The length in bytes of the system's pages.
    pub(crate) page_len: usize,
}

/// The reason why a region can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionMismatch {
    /// The file contains no region.
    Magic,
    /// The region was made by another version of Larder, or on another kind of machine.
    Version,
    /// The checksum of the parameters is wrong.
    Checksum,
}

impl RegionParameters {
    fn words(&self) -> [u64; 9] {
        [
            LAYOUT_VERSION,
            layout::constants(self.page_len),
            self.segment_len as u64,
            self.segments as u64,
            self.seed,
            u64::from(self.cas) | u64::from(self.buckets_first.ilog2()) << 8,
            self.blocks as u64 | (self.classes as u64) << 32,
            self.boot as u64,
            (self.boot >> 64) as u64,
        ]
    }
}

impl Identity {
    /// Returns all words except the magic and the checksum.
    fn words(&self) -> [&AtomicU64; 9] {
        let [boot_low, boot_high] = &self.boot;
        [
            &self.layout_version,
            &self.constants,
            &self.segment_len,
            &self.segments,
            &self.seed,
            &self.settings,
            &self.blocks,
            boot_low,
            boot_high,
        ]
    }
}

impl HeaderPage {
    /// Stores the parameters. In a region that was copied from an image, they replace the earlier
    /// parameters.
    pub(crate) fn begin_again(&self, parameters: RegionParameters) {
        let words = parameters.words();
        for (word, value) in self.identity.words().into_iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.identity.checksum.store(layout::checksum(&words), Ordering::Relaxed);
    }

    /// Initialises the page of a new region.
    pub(crate) fn begin(&self, parameters: RegionParameters) {
        self.begin_again(parameters);
        for (word, value) in [
            (&self.shared.index_len, parameters.buckets_first as u64),
            (&self.order.sequence, 1),
            (&self.cas.next, 1),
        ] {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Marks the region as complete.
    pub(crate) fn complete(&self) {
        self.identity.magic.store(MAGIC, Ordering::Release);
    }

    /// Returns the region's parameters, for a machine whose pages have `page_len` bytes.
    ///
    /// # Errors
    /// [`RegionMismatch`]: the region can't be used.
    pub(crate) fn read(&self, page_len: usize) -> Result<RegionParameters, RegionMismatch> {
        let identity = &self.identity;
        if identity.magic.load(Ordering::Acquire) != MAGIC {
            return Err(RegionMismatch::Magic);
        }
        let words = identity.words().map(|word| word.load(Ordering::Relaxed));
        let [version, constants, segment_len, segments, seed, settings, blocks, low, high] = words;
        if version != LAYOUT_VERSION || constants != layout::constants(page_len) {
            return Err(RegionMismatch::Version);
        }
        if identity.checksum.load(Ordering::Relaxed) != layout::checksum(&words) {
            return Err(RegionMismatch::Checksum);
        }
        Ok(RegionParameters {
            segment_len: segment_len as usize,
            segments: segments as usize,
            seed,
            cas: settings & 1 != 0,
            buckets_first: 1 << (settings >> 8 & 63),
            blocks: blocks as u32 as usize,
            classes: (blocks >> 32) as usize,
            boot: u128::from(low) | u128::from(high) << 64,
            page_len,
        })
    }
}
