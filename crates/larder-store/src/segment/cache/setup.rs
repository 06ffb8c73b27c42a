//! Creates the shared state, over a region of zeroes or over a restored region.

use super::config::{Config, ConfigError};
use super::counters::HandleStats;
use super::shared::{Shared, class_fingerprint, narrow, stripes_for};
use crate::eviction::{Kind, Queue, SizeClass};
use crate::segment::flash::format::Format;
use crate::segment::flash::pages::Lists;
use crate::segment::flash::tier::Flash;
use crate::segment::index::buckets::Index;
use crate::segment::memory::allocator::{Alloc, INDEX_SHARE_FLASH};
use crate::segment::memory::cas::CasLimit;
use crate::segment::memory::epoch::Epoch;
use crate::segment::memory::free_lists::Pool;
use crate::segment::memory::header_page::RegionParameters;
use crate::segment::memory::layout::{Layout, Shape};
use crate::segment::memory::raw::Region;
use crate::segment::memory::raw::hardware::page_len;
use crate::segment::memory::read_buffers::{Buffers, segments_for};
use crate::segment::memory::table::Table;
use crate::segment::miss_ratio::curve::Mrc;
use crate::segment::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::{FlashConfig, Seconds};
use rapidhash::v3::RapidSecrets;
use std::sync::OnceLock;

impl Shared {
    /// Returns a cache in anonymous memory, which does not outlive the process.
    pub(crate) fn new(config: Config, limit_bytes_max: usize) -> Result<Self, ConfigError> {
        let layout_for = |max| {
            let shape = config.shape(max)?;
            Ok::<_, ConfigError>((shape, Layout::new(shape, config.limit_bytes, page_len())))
        };
        let (shape, layout) = layout_for(limit_bytes_max)?;
        // A system that does not overcommit address space may still grant enough for the initial
        // limit.
        let (shape, layout, region) = match Region::new(layout.region_len()) {
            Ok(region) => (shape, layout, region),
            Err(_) => {
                let (shape, layout) = layout_for(0)?;
                (shape, layout, Region::new(layout.region_len()).map_err(ConfigError::Map)?)
            }
        };
        Self::begin(config, Table::new(region, layout), shape, 0)
    }

    /// Returns a new cache in a region that contains only zeroes.
    pub(crate) fn begin(
        config: Config,
        table: Table,
        shape: Shape,
        boot: u128,
    ) -> Result<Self, ConfigError> {
        let layout = table.layout;
        let (limit, segments) = (narrow(layout.segments_first), narrow(layout.segments));
        table.commit_bookkeeping(layout.segments_first).map_err(ConfigError::Map)?;
        let mut alloc = Alloc::new(limit, segments, config.size_exponent);
        let buckets =
            layout.buckets_per_segment() * layout.index_segments_first(config.flash.is_some());
        for bucket in (0..buckets).step_by(layout.buckets_per_segment()) {
            let wants = table.wants(bucket);
            let taken: Vec<u32> = std::iter::from_fn(|| alloc.take(0)).take(wants).collect();
            for segment in &taken {
                table.commit(*segment).map_err(ConfigError::Map)?;
            }
            table.extend(bucket, taken.into_iter());
            alloc.indexing += wants;
        }
        let page = table.header_page();
        page.begin(RegionParameters {
            segment_len: layout.segment_len,
            segments: layout.segments,
            seed: config.seed,
            cas: config.cas,
            buckets_first: buckets,
            blocks: shape.blocks,
            classes: shape.classes,
            boot,
            page_len: page_len(),
        });
        page.uses.classes.store(class_fingerprint(&config.classes), Ordering::Relaxed);
        page.complete();
        let index = Index::new(table, buckets, stripes_for(buckets));
        let flash = match &config.flash {
            Some(flash) => Some(Self::begin_flash(flash, &config, &index.buckets, &mut alloc)?),
            None => None,
        };
        Ok(Self::assemble(config, index, alloc, 0, flash))
    }

    /// Returns an empty flash tier. Its table of pages is in segments.
    pub(crate) fn begin_flash(
        flash: &FlashConfig,
        config: &Config,
        table: &Table,
        alloc: &mut Alloc,
    ) -> Result<Flash, ConfigError> {
        // The program that starts a cache chooses the seed at random, so no earlier content has
        // this id.
        let id = u128::from(config.seed) << 64 | 1;
        let format = Format::new(flash, table.layout.segment_len, config.cas, id);
        let segments = table.segments_for_pages(format.pages);
        if segments * 4 > table.layout.segments_first {
            return Err(ConfigError::Pages {
                max: table.pages_within(table.layout.segments_first / 4),
            });
        }
        for part in 0..segments {
            let segment = alloc.take(0).ok_or(ConfigError::NoRoomForFlash)?;
            table.commit(segment).map_err(ConfigError::Map)?;
            table.extend_pages(part, segment);
        }
        let buffers = Self::begin_buffers(table, alloc)?;
        alloc.index_share_max = INDEX_SHARE_FLASH;
        table.header_page().flash.store(format.content());
        flash.device.set_id(id).map_err(ConfigError::Flash)?;
        Ok(Flash::new(flash, format, Lists::new(narrow(format.pages)), buffers))
    }

    /// Takes the segments for read buffers. Takes one more segment, into which blocks of a page are
    /// read when the page is emptied.
    pub(crate) fn begin_buffers(
        table: &Table,
        alloc: &mut Alloc,
    ) -> Result<(Buffers, u32), ConfigError> {
        let count = segments_for(&table.layout, table.layout.segments_first) + 1;
        let mut segments = Vec::new();
        for _ in 0..count {
            let segment = alloc.take(0).ok_or(ConfigError::NoRoomForFlash)?;
            table.commit(segment).map_err(ConfigError::Map)?;
            let kind = Kind { queue: Queue::Main, lifetime: 0, size: SizeClass::of(0) };
            table.entry(segment).open_for_buffers(kind, Seconds(0));
            segments.push(segment);
        }
        let last = segments.pop().expect("`segments` includes one for blocks");
        Ok((Buffers::new(segments.into_iter()), last))
    }

    /// Assembles a cache from its configuration, index, allocator and flash tier. `items` is the
    /// number of items that the index already has, in memory and on flash.
    pub(crate) fn assemble(
        config: Config,
        index: Index<Table>,
        alloc: Alloc,
        items: usize,
        flash: Option<Flash>,
    ) -> Self {
        let layout = index.buckets.layout;
        let untouched = alloc.untouched();
        let shared = Self {
            index,
            alloc: Mutex::new(alloc),
            growth: Mutex::new(()),
            handle_list: Mutex::default(),
            departed: HandleStats::new(config.classes.count()),
            epoch: Epoch::new(),
            handles: AtomicUsize::new(0),
            evacuating: Mutex::new(()),
            stalled_epoch: AtomicU64::new(0),
            secrets: RapidSecrets::seed(config.seed),
            limit_bytes: AtomicUsize::new(config.limit_bytes),
            limit_segments: AtomicUsize::new(0),
            lifetimes: AtomicU32::new(1),
            open_budget: AtomicUsize::new(0),
            mrc: Mrc::new(config.limit_bytes),
            flash,
            has_unused: AtomicU32::new(1),
            pool: Pool::new(config.limit_bytes),
            config,
            slots_used: AtomicUsize::new(items),
            leased: AtomicUsize::new(0),
            observer: OnceLock::new(),
            change_observer: OnceLock::new(),
            crawls: AtomicU32::new(0),
            limit_changes: AtomicU32::new(0),
            cas_limit: CasLimit::new(),
        };
        shared.divide(layout.segments_first);
        shared.commit_reserve(&shared.alloc(), layout.segments_first);
        shared.note_unused(untouched > shared.reserve());
        shared
    }
}
