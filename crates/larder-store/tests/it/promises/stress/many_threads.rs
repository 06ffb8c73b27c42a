//! Many handles share little memory. Each handle may occupy only a small part of the memory, so
//! that there is room for all handles.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Batches, Refusal};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// The result of a thread's sets.
struct Outcome {
    /// The number of the set that was refused; `None` if no set was refused.
    refused: Option<u32>,
    /// The processor time of the sets.
    cpu: Duration,
}

/// Sets `sets` small values. Stops at the first refusal, because further refusals would only take
/// time.
fn set_small_values(engine: &mut Handle, thread: usize, sets: u32) -> Outcome {
    let mut outcome = Outcome { refused: None, cpu: Duration::ZERO };
    let begun = cpu_time();
    for i in 0..sets {
        let key = ((thread as u64) << 32 | u64::from(i)).to_le_bytes();
        engine.begin_batch(START);
        let stored = set(engine, &key, &[7; 30]);
        engine.end_batch();
        if let Err(refusal) = stored {
            assert_eq!(refusal, Refusal::OutOfMemory);
            outcome.refused = Some(i);
            break;
        }
    }
    outcome.cpu = cpu_time() - begun;
    outcome
}

fn check(cache: &Cache, threads: usize, sets: u32) {
    // The barriers make all threads have segments open at the same time. No thread continues before
    // each thread has set a value, and no thread drops its handle before all threads have finished.
    let (begin, end) = (Barrier::new(threads), Barrier::new(threads));
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let (begin, end) = (&begin, &end);
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut engine = cache.handle();
                    let first = set_small_values(&mut engine, thread, 1);
                    begin.wait();
                    let mut outcome = set_small_values(&mut engine, thread, sets);
                    end.wait();
                    outcome.refused = first.refused.or(outcome.refused);
                    outcome
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused: Vec<u32> = outcomes.iter().filter_map(|outcome| outcome.refused).collect();
    let first = refused.iter().min();
    assert!(refused.is_empty(), "{} of {threads} threads, first at set {first:?}", refused.len());
    let all = sets * u32::try_from(threads).unwrap();
    let mean = outcomes.iter().map(|outcome| outcome.cpu).sum::<Duration>() / all;
    assert!(mean < Duration::from_micros(30), "{mean:?} for each set");
}

#[test]
fn sixty_four_threads_set_values_in_the_smallest_cache() {
    check(&small_cache(MIB, 64), 64, 2000);
}

#[test]
fn a_hundred_and_twenty_eight_threads_set_values_in_four_mebibytes() {
    check(&small_cache(4 * MIB, 128), 128, 2000);
}

/// More threads set values than the cache is configured for.
#[test]
fn more_threads_than_announced_set_values() {
    check(&small_cache(4 * MIB, 4), 128, 2000);
}

/// The open segments of idle handles may fill the memory only if a handle that writes can take
/// these segments over.
#[test]
fn idle_handles_leave_room_for_one_that_writes() {
    check_with_idle_handles(&small_cache(4 * MIB, 129));
}

#[test]
fn idle_handles_leave_room_in_the_smallest_cache() {
    check_with_idle_handles(&small_cache(MIB, 129));
}

fn check_with_idle_handles(cache: &Cache) {
    let mut idle: Vec<Handle> = (0..128).map(|_| cache.handle()).collect();
    for (i, engine) in idle.iter_mut().enumerate() {
        let outcome = set_small_values(engine, i, 1);
        assert_eq!(outcome.refused, None, "idle handle {i}");
    }
    let outcome = set_small_values(&mut cache.handle(), idle.len(), 100_000);
    assert_eq!(outcome.refused, None);
    let mean = outcome.cpu / 100_000;
    assert!(mean < Duration::from_micros(30), "{mean:?} for each set");
}
