//! Memory and pages that the flash tier takes and frees.

use super::common::*;
use larder_device::{Faults, Memory};
use larder_store::segment::{Cache, Handle};
use larder_store::{
    Batches, FlashSettings, Lookups, Maintenance, ReadRequest, ReadStart, Seconds, SlowStorage,
    Updates,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

#[test]
fn pages_are_used_again_when_their_items_are_gone() {
    let device = Memory::new(32 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    for round in 0..4 {
        fill(&cache, &mut client, 0..40_000, round);
    }
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.bytes_written > 40 << 20, "{gauges:?}");
    for i in 0..40_000 {
        if let Some(found) = client.get(&key(i)) {
            assert_eq!(version(i, &found, 1000), 3, "{i}");
        }
    }
    client.handle.flush(None);
    fill(&cache, &mut client, 0..10_000, 9);
    for i in 0..10_000 {
        if let Some(found) = client.get(&key(i)) {
            assert_eq!(version(i, &found, 1000), 9, "{i}");
        }
    }
}

#[test]
fn counts_agree_with_the_items() {
    let device = Memory::new(64 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..40_000, 0);
    let there = (0..40_000).filter(|i| client.get(&key(*i)).is_some()).count();
    assert_eq!(cache.gauges().items, there as u64);
    let removed = (0..40_000).filter(|i| client.delete(&key(*i))).count();
    assert_eq!(removed, there);
    assert_eq!((cache.gauges().items, cache.gauges().bytes), (0, 0));
    let gauges = cache.flash_gauges().unwrap();
    assert_eq!((gauges.objects_used, gauges.bytes_used), (0, 0), "{gauges:?}");
}

#[test]
fn rewriting_pages_loses_no_items_while_writes_are_slow() {
    const ITEMS: usize = 60_000;
    let device = Memory::new(64 * MIB, 3);
    let settings = FlashSettings { compact_under: u32::MAX, ..any_size() };
    let cache = Cache::new(config(16 * MIB, &device, settings)).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..ITEMS, 0);
    let _ = (0..ITEMS / 2).filter(|i| i % 4 != 0 && client.delete(&key(*i))).count();
    device.set_faults(Faults { delay_max: Duration::from_millis(400), ..Faults::default() });
    let gauges = || cache.flash_gauges().unwrap();
    // A page is rewritten only after another page was opened, so keep storing items. The evictions
    // also fill the queue of writes.
    for i in (0..).take_while(|_| gauges().compact_rescues < 1000) {
        client.set(&key(ITEMS + i), &value(ITEMS + i, 0, 1000));
    }
    assert!(gauges().dropped > 0, "{:?}", gauges());
    assert_eq!(gauges().compact_lost, 0, "{:?}", gauges());
}

#[test]
fn unread_items_that_a_rewrite_skips_are_counted() {
    const ITEMS: usize = 60_000;
    let device = Memory::new(64 * MIB, 3);
    let settings = FlashSettings { compact_under: u32::MAX, drop_unread: true, ..any_size() };
    let cache = Cache::new(config(16 * MIB, &device, settings)).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..ITEMS, 0);
    let _ = (0..ITEMS / 2).filter(|i| i % 4 != 0 && client.delete(&key(*i))).count();
    let gauges = || cache.flash_gauges().unwrap();
    for i in (0..).take_while(|_| gauges().compact_skipped < 1000) {
        client.set(&key(ITEMS + i), &value(ITEMS + i, 0, 1000));
        pace(&cache, i);
    }
    assert!(gauges().compact_lost < gauges().compact_skipped / 10, "{:?}", gauges());
}

#[test]
fn a_lower_limit_loses_no_items() {
    let device = Memory::new(128 * MIB, 3);
    let cache = Cache::new(config(64 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..40_000, 0);
    device.set_faults(Faults { delay_max: Duration::from_millis(2), ..Faults::default() });
    cache.set_limit(16 * MIB).unwrap();
    let begun = Instant::now();
    while cache.flash_gauges().unwrap().objects_written < 14_000 {
        client.handle.maintain(client.now());
        assert!(begun.elapsed() < PATIENCE, "{:?}", cache.flash_gauges());
    }
    assert_eq!(cache.flash_gauges().unwrap().dropped, 0);
    assert_eq!(cache.gauges().items, 40_000);
}

#[test]
fn a_lower_limit_is_reached_with_a_device_that_hangs() {
    let device = Memory::new(128 * MIB, 3);
    let cache = Cache::new(config(64 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..40_000, 0);
    device.set_faults(Faults { hangs: true, ..Faults::default() });
    cache.set_limit(16 * MIB).unwrap();
    let begun = Instant::now();
    while cache.gauges().items > 30_000 {
        client.handle.maintain(client.now());
        now.fetch_add(1, Relaxed);
        assert!(begun.elapsed() < PATIENCE, "{:?}", cache.gauges());
    }
    device.set_faults(Faults::default());
}

/// Creates a peer whose requests occupy all read buffers. Returns the handle and the reads of the
/// peer. The peer does not read replies, so its requests do not continue.
fn hold_all_buffers(
    cache: &Cache,
    now: Seconds,
) -> (Handle, Vec<<Handle as SlowStorage>::PendingRead>) {
    let mut stalled = cache.handle();
    let mut held = Vec::new();
    let mut refused = 0;
    for i in 0..60_000 {
        stalled.begin_batch(now);
        let wanted = ReadRequest { hash: stalled.hash(&key(i)), is_read_ahead: false };
        if stalled.start_read(wanted, Waker::noop(), &mut held) == ReadStart::Busy {
            refused += 1;
            if refused > 1_000 && cache.flash_gauges().unwrap().io_queue == 0 {
                break;
            }
            std::thread::yield_now();
        }
        stalled.submit();
        stalled.end_batch();
    }
    assert!(refused > 1_000, "all buffers are in use: {}", held.len());
    (stalled, held)
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Checks that a waiting request is not woken while no buffer is free. Otherwise the request would
/// try again and again, and keep a core busy.
#[test]
fn a_request_that_waits_for_a_buffer_is_woken_when_one_is_free() {
    let device = Memory::new(64 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..60_000, 0);
    let _held = hold_all_buffers(&cache, client.now());
    let calls = Arc::new(Calls::default());
    let (waker, mut fetches) = (Waker::from(Arc::clone(&calls)), Vec::new());
    let handle = &mut client.handle;
    let mut begin = |i: usize, now: u32| {
        handle.begin_batch(Seconds(now));
        let wanted = ReadRequest { hash: handle.hash(&key(i)), is_read_ahead: false };
        let begun = handle.start_read(wanted, &waker, &mut fetches);
        handle.submit();
        handle.end_batch();
        begun
    };
    let seconds = now.load(Relaxed);
    let waits = |i: &usize| begin(*i, seconds) == ReadStart::Busy;
    let wanted = (0..60_000).rev().find(waits).unwrap();
    // The ends of the last reads may still wake the request a few times.
    let (begun, mut asked, mut seen) = (Instant::now(), 0, 0);
    while begun.elapsed() < Duration::from_millis(200) {
        let called = calls.0.load(Relaxed);
        if called > seen {
            (asked, seen) = (asked + 1, called);
            assert_eq!(begin(wanted, seconds), ReadStart::Busy);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(asked <= 10, "{asked} times");
    // Two seconds later, the next request takes a buffer from the reads of the peer, because the
    // peer has not used them.
    let mut client = Client::new(&cache, &now);
    now.store(seconds + 2, Relaxed);
    assert_eq!(client.get(&key(wanted)), Some(value(wanted, 0, 1000)));
    wait_for("the waiting request is woken", || calls.0.load(Relaxed) > seen);
}

#[test]
fn unused_reads_do_not_keep_others_waiting() {
    let device = Memory::new(64 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    let mut client = Client::new(&cache, &now);
    fill(&cache, &mut client, 0..60_000, 0);
    let _held = hold_all_buffers(&cache, client.now());
    now.store(now.load(Relaxed) + 1, Relaxed);
    for i in (0..60_000).step_by(60) {
        assert_eq!(client.get(&key(i)), Some(value(i, 0, 1000)), "{i}");
    }
    assert!(cache.flash_gauges().unwrap().get_aborted > 0);
}

/// A thread takes a write buffer for an item that then stays in memory. When the thread drops its
/// handle, the buffer is empty.
#[test]
fn a_write_buffer_without_items_is_not_written() {
    let device = Memory::new(64 * MIB, 3);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    // The tier stops when the last client is dropped, so keep one client.
    let _last = Client::new(&cache, &now);
    for batch in 0..300 {
        let mut client = Client::new(&cache, &now);
        for i in batch * 100..(batch + 1) * 100 {
            client.set(&key(i), &value(i, 0, 1000));
            // Items that were read stay in memory.
            (0..3).for_each(|_| assert!(client.get(&key(i)).is_some()));
        }
        drop(client);
        settle(&cache);
    }
    let gauges = cache.flash_gauges().unwrap();
    assert!(gauges.objects_written > 0, "{gauges:?}");
    assert_eq!((gauges.failures, gauges.is_off), (0, false), "{gauges:?}");
}
