//! The shared state of the flash tier.

use super::counters::Counts;
use super::format::Format;
use super::pages::{Lists, Page, PageState};
use super::pending_read::ItemRead;
use super::write_queue::Queue;
use crate::segment::index::word::IndexWord;
use crate::segment::memory::header_page::FlashContent;
use crate::segment::memory::read_buffers::{Buffer, Buffers};
use crate::segment::memory::table::{Sequence, Table};
use crate::segment::sync::{Ordering, fence};
use crate::{Admission, FlashConfig, FlashGauges, FlashPage, FlashSettings, Seconds};
use larder_device::{Device, Pool};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

/// The flash tier of a cache.
pub(crate) struct Flash {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) format: Format,
    pub(crate) counts: Counts,
    pub(crate) queue: Queue,
    /// The threads that read for handles that do not use io_uring.
    pub(crate) pool: Pool,
    /// The maximum number of reads that one handle may have under way.
    pub(crate) depth: usize,
    settings: Mutex<FlashSettings>,
    /// A copy of a setting, like the next four fields. Threads read these copies without the lock
    /// of `settings`.
    item_size: AtomicUsize,
    low_ttl: AtomicU32,
    /// A copy of the setting; `u32::MAX` if the setting is `None`.
    item_age: AtomicU32,
    recache_rate: AtomicU32,
    admits_all: AtomicBool,
    lists: Mutex<Lists>,
    buffers: Mutex<Buffers>,
    /// The segment into which blocks are read when pages are emptied.
    pub(crate) block_segment: u32,
    /// Wakers for requests whose read could not start, in arrival order.
    waiters: Mutex<VecDeque<Waker>>,
    has_waiters: AtomicBool,
    /// The number of events that may have made room for another read: the end of a read or write,
    /// or the return of a buffer.
    room_events: AtomicU64,
    /// The current reads, keyed by the flash offsets of their items.
    reads: [Mutex<HashMap<u64, Weak<dyn ItemRead>>>; READ_MAPS],
    /// The value of `counts.page_allocs` when a page was last chosen for rewriting.
    rewritten_at: AtomicU64,
    /// The number of second hits of items on flash. One in `recache_rate` of these hits copies its
    /// item to memory.
    second_hits: AtomicU32,
    /// The time in seconds, for threads that serve no requests.
    now: AtomicU32,
    is_off: AtomicBool,
    /// The number of pages to which a write has failed since the last successful write.
    failed_writes: AtomicU32,
    /// The second at which the last write ended, or at which the queue was last seen empty.
    written_at: AtomicU32,
    /// The number of the tier's threads.
    threads: Mutex<usize>,
    threads_ended: Condvar,
}

/// The number of maps that contain reads: enough that threads rarely need the same map.
const READ_MAPS: usize = 16;
/// After one failed write, or after this many failed reads since the page was opened, a page rests
/// before its next use.
const PAGE_ERRORS_MAX: u32 = 16;
/// Flash is switched off after this many failed reads and writes within a minute. A read with a
/// wrong checksum counts as failed. The count starts again at each full minute of the server's
/// clock. At most [`Flash::page_errors_counted`] errors of a page count until the page is opened
/// again, so that one defective page does not switch flash off.
const ERRORS_MAX: u64 = 256;
/// Flash is also switched off if writes to this many pages fail without a successful write in
/// between.
const FAILED_WRITES_MAX: u32 = 3;
/// The error count that a failed write stores for its page. It exceeds every limit.
const WRITE_FAILED: u32 = u32::MAX / 2;
/// A device that completes no write for more than this many seconds counts as stopped.
const WRITE_SECONDS_MAX: u32 = 2;

impl std::fmt::Debug for Flash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flash").field("device", &self.device).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds this lock, so the lock is never poisoned.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flash {
    /// Returns the tier of a cache. Emptying a page reads its blocks into
    /// `block_segment`.
    pub(crate) fn new(
        config: &FlashConfig,
        format: Format,
        lists: Lists,
        (buffers, block_segment): (Buffers, u32),
    ) -> Self {
        let flash = Self {
            device: Arc::clone(&config.device),
            format,
            counts: Counts::default(),
            queue: Queue::default(),
            pool: Pool::new(config.threads),
            depth: config.depth.max(1),
            settings: Mutex::new(config.settings),
            item_size: AtomicUsize::new(0),
            low_ttl: AtomicU32::new(0),
            item_age: AtomicU32::new(u32::MAX),
            recache_rate: AtomicU32::new(0),
            admits_all: AtomicBool::new(true),
            lists: Mutex::new(lists),
            buffers: Mutex::new(buffers),
            block_segment,
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            room_events: AtomicU64::new(0),
            reads: Default::default(),
            rewritten_at: AtomicU64::new(0),
            second_hits: AtomicU32::new(0),
            now: AtomicU32::new(0),
            is_off: AtomicBool::new(false),
            failed_writes: AtomicU32::new(0),
            written_at: AtomicU32::new(0),
            threads: Mutex::new(0),
            threads_ended: Condvar::new(),
        };
        flash.set_settings(config.settings);
        flash
    }

    pub(crate) fn settings(&self) -> FlashSettings {
        *lock(&self.settings)
    }

    pub(crate) fn set_settings(&self, settings: FlashSettings) {
        *lock(&self.settings) = settings;
        self.item_size.store(settings.item_size, Relaxed);
        self.low_ttl.store(settings.low_ttl, Relaxed);
        self.item_age.store(settings.item_age.unwrap_or(u32::MAX), Relaxed);
        self.recache_rate.store(settings.recache_rate, Relaxed);
        self.admits_all.store(settings.admit == Admission::All, Relaxed);
        self.queue.notify();
    }

    pub(crate) fn item_size(&self) -> usize {
        self.item_size.load(Relaxed)
    }

    pub(crate) fn low_ttl(&self) -> u32 {
        self.low_ttl.load(Relaxed)
    }

    /// Returns the idle time in seconds after which items are demoted, or `None` if idle items stay
    /// in memory.
    pub(crate) fn item_age(&self) -> Option<u32> {
        Some(self.item_age.load(Relaxed)).filter(|age| *age != u32::MAX)
    }

    pub(crate) fn admits_all(&self) -> bool {
        self.admits_all.load(Relaxed)
    }

    /// Counts a second hit on flash. Returns whether to copy the item to memory: this is true for
    /// one in `recache_rate` hits, and for none if `recache_rate` is 0.
    pub(crate) fn count_second_hit(&self) -> bool {
        let rate = self.recache_rate.load(Relaxed);
        rate != 0 && self.second_hits.fetch_add(1, Relaxed).is_multiple_of(rate)
    }

    pub(crate) fn now(&self) -> Seconds {
        Seconds(self.now.load(Relaxed))
    }

    /// Records the time. Once a second, abandons the reads that take too long, and wakes the
    /// requests that wait for room. Once a minute, resets the count of errors.
    pub(crate) fn note_time(&self, now: Seconds) {
        let before = self.now.swap(now.0, Relaxed);
        if before == now.0 {
            return;
        }
        if before == 0 || self.queue.len() == 0 {
            self.written_at.store(now.0, Relaxed);
        }
        if before / 60 != now.0 / 60 {
            self.counts.errors.set(0);
        }
        for map in &self.reads {
            let reads: Vec<_> = lock(map).values().filter_map(Weak::upgrade).collect();
            reads.iter().filter(|read| read.is_late(now)).for_each(|read| read.give_up());
        }
        // A request that was woken may have ended without waking the next request.
        self.wake(usize::MAX);
        self.queue.notify();
    }

    /// Returns whether a page may be rewritten: at least one page was opened since the last choice
    /// of a page to rewrite. The rewritten items fill less than a page, so rewriting stops
    /// eventually.
    pub(crate) fn may_rewrite(&self) -> bool {
        self.counts.page_allocs.get() > self.rewritten_at.load(Relaxed)
    }

    pub(crate) fn note_rewriting(&self) {
        self.rewritten_at.store(self.counts.page_allocs.get(), Relaxed);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    /// Counts a failed read of a page. Switches flash off after too many errors.
    pub(crate) fn note_failed_read(&self, table: &Table, page: Page<'_>) {
        self.counts.failures.add(1);
        if page.errors().fetch_add(1, Relaxed) < self.page_errors_counted() {
            self.count_error(table);
        }
    }

    /// Returns the maximum number of failed reads of one page that count towards [`ERRORS_MAX`].
    /// The maximum is higher if few pages are in use, so that failures of about half of these pages
    /// switch flash off.
    fn page_errors_counted(&self) -> u32 {
        let used = self.format.pages.saturating_sub(self.lists().free());
        let half = (used as u64 / 2).max(1);
        PAGE_ERRORS_MAX.max(u32::try_from(ERRORS_MAX / half).unwrap_or(u32::MAX))
    }

    /// Records a successful write.
    pub(crate) fn note_write(&self) {
        self.written_at.store(self.now.load(Relaxed), Relaxed);
        self.failed_writes.store(0, Relaxed);
    }

    /// Records a failed write to a page. Switches flash off after failed writes to
    /// [`FAILED_WRITES_MAX`] pages without a successful write in between, or after too many errors.
    /// Several threads may write to a page, so only its first failed write counts.
    pub(crate) fn note_failed_write(&self, table: &Table, page: Page<'_>) {
        self.written_at.store(self.now.load(Relaxed), Relaxed);
        self.counts.failures.add(1);
        if page.errors().swap(WRITE_FAILED, Relaxed) >= WRITE_FAILED {
            return;
        }
        self.count_error(table);
        if self.failed_writes.fetch_add(1, Relaxed) + 1 >= FAILED_WRITES_MAX {
            self.turn_off(table);
        }
    }

    fn count_error(&self, table: &Table) {
        self.counts.errors.add(1);
        if self.counts.errors.get() >= ERRORS_MAX {
            self.turn_off(table);
        }
    }

    /// Prevents further reads and writes. This process may then remove or replace items on flash
    /// without reading them. So a later process does not use the items on flash either.
    fn turn_off(&self, table: &Table) {
        if !self.is_off() {
            // First record that flash has no content. Once `is_off` is set, updates store keys
            // without looking for them on flash. Without this record, a later process would find
            // the old items after a crash.
            table.header_page().flash.store(FlashContent::NONE);
            self.is_off.store(true, Ordering::Release);
        }
    }

    /// Returns whether a write has ended, or the queue was seen empty, in the last
    /// [`WRITE_SECONDS_MAX`] seconds.
    pub(crate) fn is_writing(&self) -> bool {
        self.now.load(Relaxed).saturating_sub(self.written_at.load(Relaxed)) <= WRITE_SECONDS_MAX
    }

    /// Makes [`Flash::is_writing`] return false, as if the device had stopped completing writes.
    #[cfg(all(test, not(any(loom, shuttle, miri))))]
    pub(crate) fn note_stopped_writes(&self) {
        let now = self.now.fetch_max(WRITE_SECONDS_MAX + 1, Relaxed);
        self.written_at.store(now.saturating_sub(WRITE_SECONDS_MAX + 1), Relaxed);
    }

    /// Returns whether a page has failed so often that it rests before its next use.
    pub(crate) fn is_failing(page: Page<'_>) -> bool {
        page.errors().load(Relaxed) >= PAGE_ERRORS_MAX
    }

    pub(crate) fn lists(&self) -> MutexGuard<'_, Lists> {
        lock(&self.lists)
    }

    /// Returns an item's page and the page's sequence, if the item can be read: flash is on, and
    /// the page is in use, not flushed and not expired. Otherwise returns `None`.
    pub(crate) fn readable<'t>(
        &self,
        table: &'t Table,
        word: IndexWord,
        now: Seconds,
    ) -> Option<(Page<'t>, Sequence)> {
        let number = self.format.page_of(word);
        if number >= self.format.pages || self.is_off() {
            return None;
        }
        let page = Page::new(table, number);
        let sequence = page.sequence();
        let is_there = sequence != 0
            && sequence >= table.header_page().flush_floor()
            && page.last_expiry() > now.0;
        is_there.then_some((page, sequence))
    }

    /// Removes a read from the reads that other requests may join, because the read is being
    /// dropped.
    pub(crate) fn forget(&self, word: IndexWord, read: *const ()) {
        let mut reads = lock(self.reads_of(word));
        if reads
            .get(&word.flash_offset())
            .is_some_and(|other| std::ptr::addr_eq(other.as_ptr(), read))
        {
            reads.remove(&word.flash_offset());
        }
    }

    fn reads_of(&self, word: IndexWord) -> &Mutex<HashMap<u64, Weak<dyn ItemRead>>> {
        let number = word.flash_offset().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.reads[usize::try_from(number).expect("four bits fit usize") % READ_MAPS]
    }

    /// Returns the current read of the same item, or `None` if there is no such read.
    pub(crate) fn known_read(&self, word: IndexWord) -> Option<Arc<dyn ItemRead>> {
        lock(self.reads_of(word)).get(&word.flash_offset()).and_then(Weak::upgrade)
    }

    /// Registers a read so that other requests can join it, and returns `None`. If they can already
    /// join another read of the same item, returns the other read instead.
    pub(crate) fn register_or_join(&self, read: &Arc<dyn ItemRead>) -> Option<Arc<dyn ItemRead>> {
        let word = read.word();
        let mut reads = lock(self.reads_of(word));
        let other = reads.get(&word.flash_offset()).and_then(Weak::upgrade);
        if other.as_ref().is_none_or(|other| !other.can_be_joined()) {
            reads.insert(word.flash_offset(), Arc::downgrade(read));
            drop(reads);
            return None;
        }
        drop(reads);
        other
    }

    /// Aborts reads whose items no batch uses, if the reads have ended or wait for a request to
    /// continue them. Considers only reads that started before the second `before`, and only reads
    /// of `page` unless it is `None`. Returns true if it aborted any.
    pub(crate) fn abort_reads(&self, before: Seconds, page: Option<usize>) -> bool {
        let is_wanted = |read: &&Arc<dyn ItemRead>| {
            read.begun() < before
                && page.is_none_or(|page| self.format.page_of(read.word()) == page)
        };
        let mut any = false;
        for map in &self.reads {
            // The reads are dropped after the lock is released, because dropping a read acquires
            // the lock, too.
            let reads: Vec<_> = lock(map).values().filter_map(Weak::upgrade).collect();
            any |= reads.iter().filter(is_wanted).filter(|read| read.abort()).count() > 0;
        }
        any
    }

    /// Takes a buffer of at least `len` bytes, or returns `None` if none is free. If none is free
    /// and the read is not a read-ahead, makes room in two ways. First, if the read is short, stops
    /// taking buffers from one of the segments that contain buffers of another length. When all
    /// buffers of that segment are free, later reads can divide the segment into buffers of their
    /// own length. Second, [`Flash::abort_reads`] aborts reads that started in an earlier second
    /// and whose requests did not continue in time. If any read was aborted, tries once more to
    /// take a buffer.
    pub(crate) fn take_buffer(
        &self,
        table: &Table,
        len: usize,
        now: Seconds,
        is_read_ahead: bool,
    ) -> Option<Buffer> {
        let begin = |segment| table.entry(segment).begin_buffers(now);
        let take = || lock(&self.buffers).take(&table.layout, len, begin);
        let taken = take();
        if taken.is_some() || is_read_ahead {
            return taken;
        }
        lock(&self.buffers).make_room(&table.layout, len);
        if self.abort_reads(now, None) { take() } else { None }
    }

    /// Frees the buffer of a read, releases its page, and wakes a request that waits for room.
    pub(crate) fn end_read(&self, table: &Table, word: IndexWord, buffer: Buffer) {
        lock(&self.buffers).give(&table.layout, buffer);
        Page::new(table, self.format.page_of(word)).reads().fetch_sub(1, Ordering::AcqRel);
        self.wake_waiters();
    }

    /// Returns the number of events since the start that may have made room for another read.
    pub(crate) fn room_events(&self) -> u64 {
        self.room_events.load(Ordering::SeqCst)
    }

    /// Queues `waker`. It is called when there is room for another read and all wakers before it
    /// have been called. `seen` is the value of [`Flash::room_events`] before an attempt that found
    /// no room.
    pub(crate) fn wait_for_reads(&self, waker: &Waker, seen: u64) {
        lock(&self.waiters).push_back(waker.clone());
        self.has_waiters.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A read may have ended, or a buffer may have been returned, before the waker was added.
        if self.room_events() != seen {
            self.wake_next();
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.has_waiters.load(Relaxed)
    }

    /// Announces the end of a write, which may make room for a large value: wakes the request that
    /// has waited longest.
    pub(crate) fn note_room_by_write(&self) {
        self.room_events.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.has_waiters.load(Ordering::SeqCst) {
            self.wake(1);
        }
    }

    /// Announces room for another read: wakes the request that has waited longest. If no read is
    /// under way, wakes all requests, because no end of a read would wake the next request.
    pub(crate) fn wake_waiters(&self) {
        self.room_events.fetch_add(1, Ordering::SeqCst);
        self.wake_next();
    }

    fn wake_next(&self) {
        fence(Ordering::SeqCst);
        if !self.has_waiters.load(Ordering::SeqCst) {
            return;
        }
        let count = if self.counts.reading.get() == 0 { usize::MAX } else { 1 };
        self.wake(count);
    }

    fn wake(&self, count: usize) {
        let woken: Vec<Waker> = {
            let mut waiters = lock(&self.waiters);
            let count = count.min(waiters.len());
            let woken = waiters.drain(..count).collect();
            self.has_waiters.store(!waiters.is_empty(), Ordering::SeqCst);
            woken
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets the number of the tier's threads, unless there are threads already. Returns whether it
    /// set the number.
    pub(crate) fn begin_threads(&self, count: usize) -> bool {
        let mut threads = lock(&self.threads);
        let begins = *threads == 0;
        if begins {
            *threads = count;
        }
        begins
    }

    pub(crate) fn end_thread(&self) {
        *lock(&self.threads) -= 1;
        self.threads_ended.notify_all();
    }

    pub(crate) fn thread_count(&self) -> usize {
        *lock(&self.threads)
    }

    /// Stops the threads, and waits at most `patience` for them to end. A device that hangs may
    /// block a thread for longer.
    pub(crate) fn stop(&self, patience: Duration) {
        self.queue.set_stopping(true);
        let threads = lock(&self.threads);
        let ended =
            self.threads_ended.wait_timeout_while(threads, patience, |threads| *threads > 0);
        drop(ended.map_err(PoisonError::into_inner));
    }

    pub(crate) fn pages(&self, table: &Table) -> Vec<FlashPage> {
        let page = |number| {
            let page = Page::new(table, number);
            // memcached's number for short-lived items is 3.
            let bucket = page.public_bucket();
            FlashPage { version: page.sequence(), bytes: self.bytes_of(page), bucket }
        };
        (0..self.format.pages).map(page).collect()
    }

    /// Returns the total length in bytes of a page's items, limited to the length of the written
    /// part. Items are counted with rounded lengths, whose sum may exceed the written part.
    fn bytes_of(&self, page: Page<'_>) -> u64 {
        let written = u64::from(page.blocks().load(Relaxed)) * self.format.block_len as u64;
        page.bytes().min(written)
    }

    pub(crate) fn gauges(&self, table: &Table) -> FlashGauges {
        let counts = &self.counts;
        let pages = || (0..self.format.pages).map(|number| Page::new(table, number));
        let used = pages().filter(|page| {
            matches!(page.state(), PageState::Open | PageState::Full | PageState::Emptying)
        });
        let (mut pages_used, mut objects_used, mut bytes_used) = (0, 0, 0);
        for page in used {
            pages_used += 1;
            objects_used += u64::from(page.items());
            bytes_used += self.bytes_of(page);
        }
        let page_size = self.format.page_len();
        FlashGauges {
            get_extstore: counts.reads.get() - counts.reads_before.get(),
            get_aborted: counts.aborted.get(),
            get_oom: counts.without_buffer.get(),
            recache: counts.recached.get(),
            returned: counts.returned.get(),
            miss: counts.missed.get(),
            badcrc: counts.bad_checksums.get(),
            dropped: counts.dropped.get(),
            compact_lost: counts.compact_lost.get(),
            compact_rescues: counts.compact_rescues.get(),
            compact_skipped: counts.compact_skipped.get(),
            page_allocs: counts.page_allocs.get(),
            page_evictions: counts.page_evictions.get(),
            page_reclaims: counts.page_reclaims.get(),
            page_count: self.format.pages as u64,
            pages_free: self.lists().free() as u64,
            pages_used,
            page_size,
            objects_evicted: counts.objects_evicted.get(),
            objects_read: counts.reads.get(),
            objects_written: counts.objects_written.get(),
            objects_used,
            bytes_evicted: counts.bytes_evicted.get(),
            bytes_written: counts.bytes_written.get(),
            bytes_read: counts.bytes_read.get(),
            bytes_used,
            bytes_counted: pages().map(|page| page.bytes()).sum(),
            bytes_fragmented: (pages_used * page_size).saturating_sub(bytes_used),
            io_queue: counts.reading.get() + self.queue.len() as u64,
            failures: counts.failures.get(),
            is_off: self.is_off(),
        }
    }
}
