//! Opening a region in a file: a new region, or the region of an earlier process.

use super::attach::{AttachError, RestoredRegion, attach};
use super::survey::CorruptRegion;
use crate::segment::cache::config::{Config, ConfigError};
use crate::segment::cache::shared::Shared;
use crate::segment::flash::format::Format;
use crate::segment::flash::tier::Flash;
use crate::segment::memory::allocator::{INDEX_SHARE_FLASH, RestoredUse};
use crate::segment::memory::header_page::{FlashContent, MAGIC, RegionMismatch, RegionParameters};
use crate::segment::memory::layout::{HEADER_PAGE_LEN, Layout, Shape};
use crate::segment::memory::raw::Region;
use crate::segment::memory::raw::hardware::page_len;
use crate::segment::memory::table::{SegmentState, Table};
use crate::segment::sync::Ordering;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// How a cache started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The cache has started without items. Contains the reason if the file contained a region that
    /// could not be used.
    Cold(Option<ColdStartReason>),
    /// The cache has the items of an earlier process that ended normally.
    Warm,
    /// The cache has the items of an earlier process that died. Each unfinished change of that
    /// process is either completely done or not done at all.
    Repaired,
}

/// The reason why a cache starts without the items of an existing region or image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdStartReason {
    /// The file contains no region.
    NoRegion,
    /// The region was made by another version of Larder, or on another kind of machine.
    OtherVersion,
    /// The machine has rebooted since the region was made.
    OtherBoot,
    /// The region's items have a CAS and this cache's items have none, or the reverse.
    OtherCas,
    /// The region's index and bookkeeping do not fit under this limit.
    LimitTooLow,
    /// The cache has a flash tier, but the region has no free segments for it, or its index has
    /// grown too far to refer to flash.
    NoRoomForFlash,
    /// Another process has used the flash devices since the image was written, so it may have
    /// replaced or removed the items of the image.
    OlderThanFlash,
    /// Two processes in succession panicked soon after their start, or three in succession ended
    /// while they restored the region.
    Panics,
    /// The region contradicts itself or has counters for too few size classes, or the image is
    /// incomplete or was modified.
    Damaged(&'static str),
}

impl fmt::Display for ColdStartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRegion => "it does not contain the memory of a cache",
            Self::OtherVersion => "another version of Larder has made it",
            Self::OtherBoot => "the machine was started again since it was made",
            Self::OtherCas => "it was made with another setting of -C",
            Self::LimitTooLow => "the index in it does not fit under this memory limit",
            Self::NoRoomForFlash => "it has no room for a flash tier",
            Self::OlderThanFlash => "another server has used the files of -o ext_path since",
            Self::Panics => "processes that used it have failed at their start or soon after it",
            Self::Damaged(what) => return write!(f, "it is damaged: {what}"),
        })
    }
}

impl From<RegionMismatch> for ColdStartReason {
    fn from(foreign: RegionMismatch) -> Self {
        match foreign {
            RegionMismatch::Magic => Self::NoRegion,
            RegionMismatch::Version => Self::OtherVersion,
            RegionMismatch::Checksum => Self::Damaged("its first words were changed"),
        }
    }
}

/// The number of successive processes that may panic before their region is discarded.
const PANICS_MAX: u64 = 2;
/// The number of successive processes that may end while they restore a region, before the region
/// is discarded.
const ATTEMPTS_MAX: u64 = 3;

/// Opens the region in a file that only this process uses. Makes a new region if the file is empty,
/// if its region was never completed (its first word is 0), or if its region is unusable.
///
/// # Errors
/// [`ConfigError::Occupied`] if the file contains other data. It is then left unchanged. After
/// another [`ConfigError`] the file may be empty.
pub(crate) fn open(
    config: Config,
    limit_bytes_max: usize,
    file: File,
    boot: u128,
) -> Result<(Shared, Restart), ConfigError> {
    let unusable = match reopen(&config, &file, boot) {
        Ok(Some((shared, restart))) => return Ok((shared, restart)),
        Ok(None) => None,
        Err(ReopenError::Unusable(unusable)) => Some(unusable),
        Err(ReopenError::Config(error)) => return Err(error),
    };
    let shape = config.shape(limit_bytes_max)?;
    let layout = Layout::new(shape, config.limit_bytes, page_len());
    let region = begin_file(&file, layout.region_len()).map_err(ConfigError::Map)?;
    match Shared::begin(config, Table::new(region, layout), shape, boot) {
        Ok(shared) => Ok((shared, Restart::Cold(unusable))),
        Err(error) => {
            // Empties the file, which the failed cache does not map any more.
            file.set_len(0).map_err(ConfigError::Map)?;
            Err(error)
        }
    }
}

/// Discards a file's content, and creates an all-zero region in the file.
pub(crate) fn begin_file(file: &File, region_len: usize) -> io::Result<Region> {
    file.set_len(0)?;
    file.set_len(Region::memory_len(region_len) as u64)?;
    Region::of_file(file.try_clone()?, region_len)
}

/// The reason why a region was not opened.
#[derive(Debug)]
pub(crate) enum ReopenError {
    Unusable(ColdStartReason),
    Config(ConfigError),
}

impl From<ColdStartReason> for ReopenError {
    fn from(unusable: ColdStartReason) -> Self {
        Self::Unusable(unusable)
    }
}

/// Returns the first word of a file, or `None` if the file is shorter than a word. Reads the file
/// instead of mapped memory, because the file may have a hole at this offset. An access to mapped
/// memory would fail if a full file system had no space for the page.
fn first_word(file: &File) -> io::Result<Option<u64>> {
    let mut file = file;
    let mut word = [0; 8];
    file.seek(SeekFrom::Start(0))?;
    match file.read_exact(&mut word) {
        Ok(()) => Ok(Some(u64::from_le_bytes(word))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the region in a file in place. Returns `None` if the file is empty, or if its region was
/// never completed.
fn reopen(
    config: &Config,
    file: &File,
    boot: u128,
) -> Result<Option<(Shared, Restart)>, ReopenError> {
    let map = |error| ReopenError::Config(ConfigError::Map(error));
    let len = file.metadata().map_err(map)?.len();
    let len = usize::try_from(len).map_err(|_| ColdStartReason::NoRegion)?;
    match first_word(file).map_err(map)? {
        None if len == 0 => return Ok(None),
        Some(0) => return Ok(None),
        Some(MAGIC) => (),
        None | Some(_) => return Err(ReopenError::Config(ConfigError::Occupied)),
    }
    let region_len = len.checked_sub(Region::memory_len(0)).filter(|len| *len >= HEADER_PAGE_LEN);
    let region_len = region_len.ok_or(ColdStartReason::NoRegion)?;
    let region = Region::of_file(file.try_clone().map_err(map)?, region_len).map_err(map)?;
    Ok(Some(reuse(config.clone(), region, region_len, boot, RestoredUse::Free)?))
}

/// Restores a region in place. `free` is the use that the allocator records for free segments.
pub(crate) fn reuse(
    mut config: Config,
    region: Region,
    region_len: usize,
    boot: u128,
    free: RestoredUse,
) -> Result<(Shared, Restart), ReopenError> {
    let page = region.header_page();
    let parameters = page.read(page_len()).map_err(ColdStartReason::from)?;
    if parameters.boot != boot {
        return Err(ColdStartReason::OtherBoot.into());
    }
    if parameters.cas != config.cas {
        return Err(ColdStartReason::OtherCas.into());
    }
    let uses = &page.uses;
    let (panics, attempts) = (&uses.panics, &uses.attempts);
    if panics.load(Ordering::Relaxed) >= PANICS_MAX
        || attempts.load(Ordering::Relaxed) >= ATTEMPTS_MAX
    {
        return Err(ColdStartReason::Panics.into());
    }
    attempts.fetch_add(1, Ordering::Relaxed);
    let shape = shape_of(&parameters);
    if !shape.is_possible() {
        return Err(ColdStartReason::Damaged("its sizes are impossible").into());
    }
    let largest = Layout::new(shape, usize::MAX, page_len());
    if largest.region_len() != region_len {
        let what = "the file does not have the length of its memory";
        return Err(ColdStartReason::Damaged(what).into());
    }
    // A limit that is too high for the segment table is lowered.
    config.limit_bytes = config.limit_bytes.min(largest.limit_for(largest.segments + 1) - 1);
    let mut layout = Layout::new(shape, config.limit_bytes, page_len());
    if config.classes.count() > parameters.classes {
        return Err(ColdStartReason::Damaged("it counts items in fewer classes").into());
    }
    if !has_room(&region, &layout) {
        // The file system is full: keep the old limit.
        let seen = region.header_page().uses.segments_seen.load(Ordering::Relaxed);
        let seen = usize::try_from(seen).unwrap_or(0).min(layout.segments_first);
        config.limit_bytes = layout.limit_for(seen);
        layout = Layout::new(shape, config.limit_bytes, page_len());
    }
    let table = Table::new(region, layout);
    let seed = config.seed;
    config.seed = parameters.seed;
    let content = table.header_page().flash.read();
    let format = config.flash.as_ref().map(|flash| {
        Format::new(flash, layout.segment_len, parameters.cas, flash.device.id().unwrap_or(0))
    });
    let is_known = content.id != 0 && format.is_some_and(|format| format.content() == content);
    if !is_known {
        // Discard the words and the table of pages of the old flash content. If this process dies
        // now, the next process must not look for the old items.
        table.header_page().flash.store(FlashContent::NONE);
    }
    let mut attached = match attach(table, &parameters, &config, free, (format, is_known)) {
        Ok(attached) => attached,
        Err(AttachError::Corrupt(CorruptRegion(what))) => {
            return Err(ColdStartReason::Damaged(what).into());
        }
        Err(AttachError::NoRoomForFlash) => return Err(no_room_for_flash(&config)),
    };
    if config.flash.is_some() && attached.index.has_forgotten_bits() {
        return Err(no_room_for_flash(&config));
    }
    if config.flash.is_some() {
        attached.alloc.index_share_max = INDEX_SHARE_FLASH;
    }
    if attached.alloc.limit_min() > layout.segments_first {
        return Err(ColdStartReason::LimitTooLow.into());
    }
    let flash = reopen_flash(&config, seed, &mut attached, format.filter(|_| is_known))?;
    let table = &attached.index.buckets;
    table.header_page().uses.attempts.store(0, Ordering::Relaxed);
    let restart = if attached.was_repaired { Restart::Repaired } else { Restart::Warm };
    Ok((Shared::assemble(config, attached.index, attached.alloc, attached.items, flash), restart))
}

/// Returns the error for a restored region that has no free memory for a flash tier. A cache that
/// evicts starts empty. A cache that does not evict refuses to start, and its items stay in the
/// file.
fn no_room_for_flash(config: &Config) -> ReopenError {
    match config.evict {
        true => ColdStartReason::NoRoomForFlash.into(),
        false => ReopenError::Config(ConfigError::NoRoomForFlash),
    }
}

/// Returns the flash tier of a restored region, or `None` if the cache has no flash. If the format
/// `known` is given, the tier has its old content. Otherwise it is empty.
fn reopen_flash(
    config: &Config,
    seed: u64,
    attached: &mut RestoredRegion,
    known: Option<Format>,
) -> Result<Option<Flash>, ReopenError> {
    let table = &attached.index.buckets;
    let Some(flash) = &config.flash else { return Ok(None) };
    let no_room = |_| no_room_for_flash(config);
    let tier = match (known, attached.pages.take()) {
        (Some(format), Some(lists)) => {
            let buffers = Shared::begin_buffers(table, &mut attached.alloc).map_err(no_room)?;
            Flash::new(flash, format, lists, buffers)
        }
        _ => {
            // Use this process's seed for the id of the new content. The region's seed would repeat
            // the id of the old content.
            let config = Config { seed, ..config.clone() };
            Shared::begin_flash(flash, &config, table, &mut attached.alloc).map_err(no_room)?
        }
    };
    for (segment, chained) in &attached.write_buffers {
        tier.queue.push(*segment, *chained);
    }
    Ok(Some(tier))
}

/// Allocates the file space for the bookkeeping of all segments in a layout. Returns false if the
/// file system is full.
fn has_room(region: &Region, layout: &Layout) -> bool {
    let mut ranges = layout.bookkeeping(layout.segments_first).into_iter();
    ranges.all(|range| region.commit(range.start, range.len()).is_ok())
}

fn shape_of(parameters: &RegionParameters) -> Shape {
    let RegionParameters { segment_len, segments, blocks, classes, .. } = *parameters;
    Shape { segment_len, segments, blocks, classes }
}

impl Shared {
    /// Makes the system map the memory of all used segments now. Otherwise the first access to each
    /// page would cause a page fault.
    pub(crate) fn populate(&self) {
        let (table, layout) = (self.table(), &self.table().layout);
        let seen = table.header_page().uses.segments_seen.load(Ordering::Relaxed);
        let is_used = |segment: &u32| {
            let state = table.entry(*segment).state();
            !matches!(state, None | Some(SegmentState::Fresh))
        };
        for segment in (0..u32::try_from(seen).unwrap_or(0)).filter(is_used) {
            table.region.populate(layout.start(segment), layout.segment_len);
        }
    }
}
