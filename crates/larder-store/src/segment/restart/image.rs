//! The region as an image on disk, from which a later process restores it after a planned reboot.
//!
//! ```text
//! header ─ pieces ─ 0, 0 ─ checksum of all checksums
//! │         └─ offset, length, checksum, bytes (at most a MiB)
//! └─ magic, version, region length, note, boot (2), run, checksum
//! ```
//! All numbers are words of 8 bytes, little-endian. Free segments and memory that was never used
//! are left out.

use super::region_file::{self, ColdStartReason, ReopenError};
use crate::segment::cache::config::{Config, ConfigError};
use crate::segment::cache::shared::Shared;
use crate::segment::index::word::REGION_MAX;
use crate::segment::memory::allocator::RestoredUse;
use crate::segment::memory::header_page::RegionParameters;
use crate::segment::memory::layout::checksum;
use crate::segment::memory::raw::Region;
use crate::segment::memory::raw::hardware::page_len;
use crate::segment::memory::table::SegmentState;
use crate::segment::sync::Ordering;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;

const MAGIC: u64 = u64::from_le_bytes(*b"larderim");
const VERSION: u64 = 3;
/// The number of words before the header's checksum.
const HEADER_WORDS: usize = 7;
/// The maximum length of a piece in bytes.
const PIECE_LEN: usize = 1 << 20;

fn sum_of(bytes: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(bytes)
}

fn write_words(to: &mut impl Write, words: &[u64]) -> io::Result<()> {
    words.iter().try_for_each(|word| to.write_all(&word.to_le_bytes()))
}

fn read_words<const N: usize>(from: &mut impl Read) -> io::Result<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

impl Shared {
    /// Writes an image of the region. No thread may change the region until this function returns.
    /// `note` is a number that [`load`] returns. `boot` identifies the machine's current boot.
    pub(crate) fn write_image(&self, note: u64, boot: u128, to: &mut impl Write) -> io::Result<()> {
        let (table, layout) = (self.table(), &self.table().layout);
        if let Some(flash) = &self.flash {
            // Index words in the image refer to items on flash, so the items must be durable first.
            flash.device.sync()?;
        }
        let [boot_low, boot_high] = halves(boot);
        let run = table.header_page().uses.run.load(Ordering::Relaxed);
        let len = layout.region_len() as u64;
        let header: [u64; HEADER_WORDS] = [MAGIC, VERSION, len, note, boot_low, boot_high, run];
        let sum = checksum(&header);
        write_words(to, &header)?;
        write_words(to, &[sum])?;
        let mut sums = vec![sum];
        let mut write = |range: Range<usize>| {
            for offset in range.clone().step_by(PIECE_LEN) {
                let len = PIECE_LEN.min(range.end - offset);
                // SAFETY: the caller guarantees that no thread changes the region.
                let bytes = unsafe { table.region.bytes(offset, len) };
                let sum = sum_of(bytes);
                sums.push(sum);
                write_words(to, &[offset as u64, len as u64, sum])?;
                to.write_all(bytes)?;
            }
            io::Result::Ok(())
        };
        let seen = self.segments_seen();
        layout.bookkeeping(seen).into_iter().try_for_each(&mut write)?;
        for segment in 0..u32::try_from(seen).unwrap_or(u32::MAX) {
            let state = table.entry(segment).state();
            if !matches!(state, None | Some(SegmentState::Fresh | SegmentState::Free)) {
                let start = layout.start(segment);
                write(start..start + layout.segment_len)?;
            }
        }
        write_words(to, &[0, 0, checksum(&sums)])
    }
}

/// Returns whether the input starts with the magic number of an image.
///
/// # Errors
/// An error of the reader.
pub fn is_image(from: &mut impl Read) -> io::Result<bool> {
    match read_words(from) {
        Ok([magic]) => Ok(magic == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The process that wrote an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOrigin {
    /// The identifier of the machine's boot in which the process ran.
    pub boot: u128,
    /// The number of the process; see [`crate::segment::Cache::run`].
    pub run: u64,
}

/// Returns the origin of an image, or `None` if the input does not start with a valid header of
/// this version.
///
/// # Errors
/// An error of the reader.
pub fn image_origin(from: &mut impl Read) -> io::Result<Option<ImageOrigin>> {
    let words = match read_words::<{ HEADER_WORDS + 1 }>(from) {
        Ok(words) => words,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let [magic, version, _, _, boot_low, boot_high, run, sum] = words;
    let is_valid = magic == MAGIC && version == VERSION && sum == checksum(&words[..HEADER_WORDS]);
    let boot = u128::from(boot_low) | u128::from(boot_high) << 64;
    Ok(is_valid.then_some(ImageOrigin { boot, run }))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of the number")]
fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

/// The reason why an image could not be loaded.
enum ImageError {
    Unusable(ColdStartReason),
    Config(ConfigError),
}

/// Loads an image. Returns a cache with the image's items, and the image's note. The region of the
/// cache replaces the content of `file`. Without a file, the region is in anonymous memory. If the
/// image can't be used, empties the file and returns the reason.
pub(crate) fn load(
    config: &Config,
    file: Option<&File>,
    boot: u128,
    image: &mut impl Read,
) -> Result<Result<(Shared, u64), ColdStartReason>, ConfigError> {
    match load_region(config, file, boot, image) {
        Ok(loaded) => Ok(Ok(loaded)),
        Err(error) => {
            // Empty the file: if loading failed after the region was marked as complete, a later
            // start would mistake it for the region of an earlier process.
            if let Some(file) = file {
                file.set_len(0).map_err(ConfigError::Map)?;
            }
            match error {
                ImageError::Config(error) => Err(error),
                ImageError::Unusable(unusable) => Ok(Err(unusable)),
            }
        }
    }
}

fn load_region(
    config: &Config,
    file: Option<&File>,
    boot: u128,
    image: &mut impl Read,
) -> Result<(Shared, u64), ImageError> {
    let map = |error| ImageError::Config(ConfigError::Map(error));
    let damaged =
        || ImageError::Unusable(ColdStartReason::Damaged("the image is incomplete or was changed"));
    let [magic] = read_words(image).map_err(|_| damaged())?;
    if magic != MAGIC {
        return Err(ImageError::Config(ConfigError::Occupied));
    }
    let [version] = read_words(image).map_err(|_| damaged())?;
    if version != VERSION {
        return Err(ImageError::Unusable(ColdStartReason::OtherVersion));
    }
    let [region_len, note, boot_low, boot_high, run, sum] =
        read_words(image).map_err(|_| damaged())?;
    let header = [magic, version, region_len, note, boot_low, boot_high, run];
    if sum != checksum(&header) {
        return Err(damaged());
    }
    let region_len = usize::try_from(region_len).map_err(|_| damaged())?;
    if region_len as u64 > REGION_MAX || region_len < page_len() {
        return Err(damaged());
    }
    let region = match file {
        Some(file) => region_file::begin_file(file, region_len).map_err(map)?,
        None => Region::new(region_len).map_err(map)?,
    };
    let mut sums = vec![sum];
    let mut bytes = Vec::new();
    loop {
        let [offset, len, sum] = read_words(image).map_err(|_| damaged())?;
        if len == 0 {
            if sum != checksum(&sums) || offset != 0 {
                return Err(damaged());
            }
            break;
        }
        let to_usize = |word: u64| usize::try_from(word).map_err(|_| damaged());
        let (offset, len) = (to_usize(offset)?, to_usize(len)?);
        if len > PIECE_LEN || offset > region_len || len > region_len - offset {
            return Err(damaged());
        }
        bytes.resize(len, 0);
        image.read_exact(&mut bytes).map_err(|_| damaged())?;
        if sum_of(&bytes) != sum {
            return Err(damaged());
        }
        sums.push(sum);
        region.commit(offset, len).map_err(map)?;
        // The first word is written last, so that a half-loaded region is never mistaken for a
        // complete region.
        let skipped = if offset == 0 { 8.min(len) } else { 0 };
        // SAFETY: no other thread has access to the region yet.
        unsafe { region.write(offset + skipped, &bytes[skipped..]) };
    }
    let page = region.header_page();
    page.complete();
    let made = page.read(page_len()).map_err(|foreign| ImageError::Unusable(foreign.into()))?;
    let content = page.flash.read().id;
    let device = config.flash.as_ref().and_then(|flash| flash.device.id());
    if content != 0 && device.is_some_and(|id| id != content) {
        return Err(ImageError::Unusable(ColdStartReason::OlderThanFlash));
    }
    // The loaded region contains the note of the process that wrote the image. This cache must not
    // keep that note. The caller removes the image.
    page.uses.note.store(0, Ordering::Relaxed);
    page.image.store(&[]);
    page.begin_again(RegionParameters { boot, ..made });
    let (shared, _) =
        region_file::reuse(config.clone(), region, region_len, boot, RestoredUse::Untouched)
            .map_err(|error| match error {
                ReopenError::Unusable(unusable) => ImageError::Unusable(unusable),
                ReopenError::Config(error) => ImageError::Config(error),
            })?;
    Ok((shared, note))
}
