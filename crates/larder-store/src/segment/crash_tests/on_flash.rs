//! Crash tests with flash. The test thread itself writes segments and empties pages, so that the
//! simulated process can also die before each store of that work. Each simulated restart opens a
//! copy of the region with a copy of the device.

use super::*;
use crate::segment::flash_write::{block_writer, page_reclaim};
use larder_device::Memory;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::task::{Wake, Waker};
use std::thread::Thread;

mod workload;

use workload::Live;

const PAGE_LEN: usize = 64 << 10;
/// The maximum number of rounds after a change. Each round may empty a page and write a segment.
const ROUNDS_MAX: usize = 8;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A scenario with flash.
#[derive(Clone, Copy)]
struct Scenario {
    seed: u64,
    /// The number of bytes by which the limit exceeds the lowest possible limit.
    room: usize,
    pages: usize,
    keys: u16,
    /// The number of changes during which the process does not die.
    warm_up: usize,
    changes: usize,
    /// The number of operations out of 20 that read an item repeatedly, so that it is copied to
    /// memory.
    reads: u32,
    /// The possible lengths of values, in bytes.
    lens: [usize; 4],
    recache_rate: u32,
    compact_under: u32,
    /// In each copy of the region, one in this many unchanged keys is looked up. In one copy in 50,
    /// all keys are looked up.
    checked: usize,
}

fn flash_config(scenario: Scenario, device: &Memory) -> Config {
    let settings = FlashSettings {
        item_size: 0,
        low_ttl: 1000,
        recache_rate: scenario.recache_rate,
        compact_under: scenario.compact_under,
        drop_under: 2,
        ..FlashSettings::default()
    };
    let device = Arc::new(device.clone());
    let flash = FlashConfig { device, page_len: PAGE_LEN as u64, threads: 1, depth: 8, settings };
    Config { flash: Some(flash), ..config(limit_min(3) + scenario.room) }
}

/// Returns a handle that starts no threads.
fn handle_of(cache: &Cache) -> Handle {
    Handle::new(Arc::clone(&cache.shared))
}

/// Repeats a request until it does not wait for flash.
fn until_done<R>(
    handle: &mut Handle,
    key: &[u8],
    mut request: impl FnMut(&mut Handle, HashedKey<'_>) -> Option<R>,
) -> R {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let key = hashed(handle, key);
    let mut fetches = Vec::new();
    loop {
        handle.begin_batch(NOW);
        let mut waits = false;
        fetches.retain(|fetch| {
            let delivery = handle.deliver(fetch);
            waits |= delivery == Delivery::InProgress;
            delivery != Delivery::Gone
        });
        let done = request(handle, key);
        if done.is_none() && !waits {
            let wanted = ReadRequest { hash: key.hash, is_read_ahead: false };
            let begins = handle.start_read(wanted, &waker, &mut fetches);
            waits = begins != ReadStart::NotNeeded;
            if begins == ReadStart::Busy
                && let Some(flash) = &handle.shared.flash
            {
                // No thread writes during a request, so the read of a large value would wait
                // forever for queued writes. It does not wait if the device seems to have stopped
                // completing writes.
                flash.note_stopped_writes();
                handle.submit();
                handle.end_batch();
                continue;
            }
        }
        handle.submit();
        handle.end_batch();
        if let Some(done) = done {
            return done;
        }
        if waits {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
    }
}

fn look(handle: &mut Handle, key: &[u8], access: Access) -> Known {
    until_done(handle, key, |handle, key| {
        let found = handle.get(key, access, |item| {
            let mut bytes = Vec::new();
            match &item.value {
                Value::Whole(whole) => bytes.extend_from_slice(whole),
                Value::Large(lease) => {
                    while bytes.len() < lease.len() {
                        bytes.extend_from_slice(lease.piece(bytes.len()));
                    }
                }
            }
            (bytes, item.attributes.client_flags, item.attributes.expiry)
        });
        match found {
            Lookup::Hit(known) => Some(Some(known)),
            Lookup::Pending => None,
            _ => Some(None),
        }
    })
}

/// Counts over all stores of a scenario.
#[derive(Default)]
struct Seen {
    stores: usize,
    on_flash: u64,
    /// An estimate of the number of stores that ran while the write queue had items. Each checked
    /// store counts for `crash_step()` stores.
    queued: usize,
    emptied: usize,
    /// The number of items that were demoted without a write.
    returned: u64,
}

/// Compares a restarted cache with the acknowledged items. Looks up the keys that are being
/// changed, and one in `checked` of the other keys.
fn check(oracle: &Oracle, cache: &Cache, checked: usize) {
    let mut handle = handle_of(cache);
    // Count missing items, because reading a large item may evict other items to free memory.
    let mut missing = 0;
    for (i, (key, known)) in oracle.known.iter().enumerate() {
        let is_changing = oracle.changing.contains_key(key);
        if !is_changing && !(i + oracle.stores).is_multiple_of(checked) {
            continue;
        }
        let found = look(&mut handle, key, Access::Untracked);
        let missed = found.is_none() && oracle.may_miss.contains(key);
        let is_right = &found == known || oracle.changing.get(key) == Some(&found) || missed;
        if !is_right && found.is_none() {
            missing += 1;
            let evicted = cache.gauges().evictions;
            assert!(missing <= evicted, "store {}: {missing}, {evicted}", oracle.stores);
            continue;
        }
        let short = |known: &Known| known.as_ref().map(|(value, ..)| value.len());
        assert!(
            is_right,
            "store {}, key {key:?}: {:?}, known {:?}, changing to {:?}",
            oracle.stores,
            short(&found),
            short(known),
            oracle.changing.get(key).map(short)
        );
    }
    drop(handle);
    let flash = cache.shared.flash.as_ref().unwrap();
    assert_eq!([flash.counts.bad_checksums.get(), flash.counts.missed.get()], [0, 0]);
    let words = cache.shared.slots_used.load(Ordering::Relaxed);
    assert_eq!(cache.gauges().items, words as u64, "all items are counted");
}

/// Writes the write buffers of a restarted process, and empties pages. Then compares the items,
/// unless emptying a page may have dropped some.
fn finish_work(oracle: &Oracle, cache: &Cache) {
    let mut handle = handle_of(cache);
    let flash = cache.shared.flash.as_ref().unwrap();
    flash.note_time(NOW);
    let mut may_lose = false;
    for _ in 0..ROUNDS_MAX {
        let empties = page_reclaim::empty_next(&mut handle, flash, |lossy| may_lose |= lossy);
        if !block_writer::write_next(&mut handle, flash) && !empties {
            break;
        }
    }
    drop(handle);
    // Frees the chains of large values that were read. No item refers to such a chain, so
    // `check_books` would fail if it found one.
    cache.shared.collect();
    check_books(cache);
    if !may_lose {
        check(oracle, cache, 1);
    }
}

fn run(scenario: Scenario) -> Seen {
    let device = Memory::new(scenario.pages * PAGE_LEN, scenario.seed);
    let config = flash_config(scenario, &device);
    let mut live = Live::new(scenario, config);
    for _ in 0..scenario.warm_up {
        live.operate();
    }
    let seen = Rc::new(RefCell::new(Seen::default()));
    let step = crash_step();
    let look = {
        let shared = Arc::clone(&live.cache.shared);
        let (oracle, evicted) = (Rc::clone(&live.oracle), Arc::clone(&live.evicted));
        let seen = Rc::clone(&seen);
        move || {
            // Skips the stores of lookups in `note_evictions`, which borrows the oracle.
            let Ok(mut oracle) = oracle.try_borrow_mut() else { return };
            oracle.stores += 1;
            oracle.may_miss.extend(evicted.lock().unwrap().drain(..));
            let mut seen = seen.borrow_mut();
            seen.stores += 1;
            if !oracle.stores.is_multiple_of(step) {
                return;
            }
            let config = flash_config(scenario, &device.copy());
            let (copy, restart) = reopened(&shared, &config);
            assert_eq!(restart, Restart::Repaired);
            check_books(&copy);
            let flash = copy.shared.flash.as_ref().unwrap();
            seen.on_flash = seen.on_flash.max(copy.flash_gauges().unwrap().objects_used);
            seen.queued += usize::from(flash.queue.len() > 0) * step;
            let checks_all = (oracle.stores / step).is_multiple_of(50);
            check(&oracle, &copy, if checks_all { 1 } else { scenario.checked });
            if (oracle.stores / step).is_multiple_of(101) {
                finish_work(&oracle, &copy);
            }
        }
    };
    let before = live.cache.flash_gauges().unwrap().returned;
    at_each_store(Some(Box::new(look)));
    for _ in 0..scenario.changes {
        live.operate();
    }
    at_each_store(None);
    let gauges = live.cache.flash_gauges().unwrap();
    drop(live);
    let mut seen = Rc::into_inner(seen).unwrap().into_inner();
    seen.returned = gauges.returned - before;
    seen.emptied = (gauges.page_reclaims + gauges.page_evictions) as usize;
    seen
}

const ROOMY: Scenario = Scenario {
    seed: 1,
    room: 128 << 10,
    pages: 48,
    keys: 1100,
    warm_up: 2500,
    changes: 40,
    reads: 3,
    lens: [60, 300, 700, 1500],
    recache_rate: 1,
    compact_under: 0,
    checked: 1,
};

const CROWDED: Scenario = Scenario {
    pages: 6,
    keys: 1500,
    warm_up: 6000,
    changes: 100,
    compact_under: 3,
    checked: 29,
    ..ROOMY
};

/// A scenario in which three quarters of the operations are reads.
const READ: Scenario = Scenario { warm_up: 12_000, changes: 350, reads: 15, checked: 23, ..ROOMY };

/// A scenario in which most values have segments of their own.
const LARGE: Scenario =
    Scenario { keys: 60, warm_up: 300, changes: 40, lens: [300, 9_000, 14_000, 20_000], ..ROOMY };

/// The process dies while items are demoted from memory, written, overwritten, removed, and copied
/// back.
#[test]
fn a_process_may_die_while_items_are_demoted() {
    for seed in [1, 2] {
        let seen = run(Scenario { seed, ..ROOMY });
        assert!(seen.stores > 600, "{} points of death", seen.stores);
        assert!(seen.on_flash > 50 && seen.queued > 50);
    }
}

/// The process dies while items move in both directions. Items are read repeatedly, so that most
/// items in memory are on flash, too.
#[test]
fn a_process_may_die_while_items_move_between_memory_and_flash() {
    for seed in [7, 8] {
        let seen = run(Scenario { seed, ..READ });
        assert!(seen.stores > 600, "{} points of death", seen.stores);
        assert!(seen.returned > 5, "{} were evicted without a write", seen.returned);
    }
}

/// The process dies while large items are demoted, written, overwritten, removed, and copied back.
/// A large item has a chain in memory, and blocks of its own on flash.
#[test]
fn a_process_may_die_while_large_items_are_demoted() {
    for (seed, pages) in [(5, 48), (6, 8)] {
        let seen = run(Scenario { seed, pages, ..LARGE });
        assert!(seen.stores > 600, "{} points of death", seen.stores);
        assert!(seen.on_flash > 10 && seen.queued > 10, "{} {}", seen.on_flash, seen.queued);
        assert!(seen.emptied > 0 || pages == 48, "some pages were emptied");
    }
}

/// The process dies while pages are rewritten and dropped.
#[test]
fn a_process_may_die_while_pages_are_emptied() {
    for (seed, compact_under) in [(3, 3), (4, 0)] {
        let seen = run(Scenario { seed, compact_under, ..CROWDED });
        assert!(seen.emptied > 0 && seen.on_flash > 50);
    }
}

/// The process dies during a start without flash. Such a start drops the items on flash and in
/// write buffers. The next process gets the old flash device again, and finds the other items in
/// memory.
#[test]
fn a_process_may_die_while_it_drops_flash() {
    let device = Memory::new(ROOMY.pages * PAGE_LEN, 1);
    let config = flash_config(ROOMY, &device);
    let mut live = Live::new(ROOMY, config.clone());
    for _ in 0..ROOMY.warm_up {
        live.operate();
    }
    let Live { cache, handle, oracle, .. } = live;
    let shared = Arc::clone(&cache.shared);
    let len = shared.table().layout.region_len();
    let file = File::from(memfd_create("region", MFdFlags::empty()).unwrap());
    // SAFETY: no other thread uses the region.
    let bytes = unsafe { shared.table().region.bytes(0, len) };
    let region = region_file::begin_file(&file, len).unwrap();
    // SAFETY: no other thread has access to the copy.
    unsafe { region.write(0, bytes) };
    let in_memory = cache.gauges().items - cache.flash_gauges().unwrap().objects_used;
    // Items in write buffers are dropped, too.
    let kept_min = in_memory / 2;
    drop((handle, cache, shared));

    let deaths = Rc::new(RefCell::new(0));
    let look = {
        let (oracle, deaths) = (Rc::clone(&oracle), Rc::clone(&deaths));
        let seen = Region::of_file(file, len).unwrap();
        move || {
            let copy = Region::new(len).unwrap();
            // SAFETY: the thread that uses the region waits.
            let bytes = unsafe { seen.bytes(0, len) };
            // SAFETY: no other thread has access to the copy.
            unsafe { copy.write(0, bytes) };
            let config = flash_config(ROOMY, &device.copy());
            let (shared, restart) = region_file::reuse(config, copy, len, 0, RestoredUse::Free)
                .expect("the copy is not damaged");
            assert_ne!(restart, Restart::Cold(None));
            let cache = Cache { shared: Arc::new(shared) };
            check_books(&cache);
            assert!(cache.gauges().items >= kept_min);
            *deaths.borrow_mut() += 1;
            let mut handle = handle_of(&cache);
            for (key, known) in oracle.borrow().known.iter().step_by(9) {
                let found = look(&mut handle, key, Access::Untracked);
                assert!(found.is_none() || &found == known, "{key:?}");
            }
        }
    };
    at_each_store(Some(Box::new(look)));
    let without = Config { flash: None, ..config };
    region_file::reuse(without, region, len, 0, RestoredUse::Free)
        .expect("the copy is not damaged");
    at_each_store(None);
    assert!(*deaths.borrow() > 100, "{} points of death", deaths.borrow());
}

/// Checks that a full cache drops its oldest items to make room for the memory that a flash tier
/// needs.
#[test]
fn a_full_cache_gets_a_flash_tier() {
    let device = Memory::new(ROOMY.pages * PAGE_LEN, 1);
    let with_flash = flash_config(ROOMY, &device);
    let without =
        Config { flash: None, limit_bytes: 2 * with_flash.limit_bytes, ..with_flash.clone() };
    let cache = Cache::new(without).unwrap();
    let mut handle = cache.handle();
    let key_of = |number: u32| number.to_le_bytes();
    let stored = 4000;
    for number in 0..stored {
        handle.begin_batch(NOW);
        let key = key_of(number);
        let key = hashed(&handle, &key);
        let put = || Change::Put {
            attributes: Attributes::default(),
            cas: NewCas::Fresh,
            value: NewValue::Bytes(&[7; 300]),
            fetched: false,
            tags: NewTags::None,
        };
        handle.update(key, &mut None, |_| (put(), ())).expect("the cache has room");
        handle.end_batch();
    }
    let before = cache.gauges().items;
    drop(handle);
    let (cache, restart) = reopened(&cache.shared, &with_flash);
    assert_ne!(restart, Restart::Cold(None));
    check_books(&cache);
    let mut handle = handle_of(&cache);
    let there =
        |handle: &mut Handle, number| look(handle, &key_of(number), Access::Untracked).is_some();
    let found = (0..stored).filter(|number| there(&mut handle, *number)).count() as u64;
    assert!(found == cache.gauges().items && found > before * 3 / 4, "{found} of {before}");
    assert!(there(&mut handle, stored - 1), "the oldest items were dropped");
}
