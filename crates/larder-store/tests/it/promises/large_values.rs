//! The engine counts the memory of large values in transfer exactly.

use super::common::*;
use larder_store::segment::Handle;
use larder_store::{Access, Item, Lease, Lookup, Lookups, Uploads, Value};

const COUNT: u64 = 650;
/// Values of this length take one segment of 64 KiB. The engine counts whole segments.
const LEN: usize = 60_000;

/// Ends transfers until the engine reports that no excess memory is left. Checks that the memory of
/// the ended transfers equals the excess that the engine reported first.
fn check_excess<T>(
    engine: &Handle,
    mut transfers: Vec<T>,
    excess: impl Fn(&Handle) -> usize,
    memory: impl Fn(&Handle, &T) -> usize,
) {
    let first = excess(engine);
    assert!(first > 0, "{COUNT} transfers take more than their share");
    let mut ended = 0;
    while excess(engine) > 0 {
        ended += memory(engine, &transfers.pop().expect("no excess without transfers"));
    }
    assert_eq!(ended, first);
}

/// The server needs exact counts, because it closes connections until the memory of their uploads
/// covers the excess.
#[test]
fn the_memory_of_uploads_is_what_the_engine_counts() {
    let cache = cache(64 * MIB);
    let mut engine = cache.handle();
    let mut upload = |_| {
        let mut upload = engine.upload(LEN).unwrap();
        engine.extend(&mut upload, &[7; LEN / 2]).ok()?;
        Some(upload)
    };
    let uploads = (0..COUNT).map_while(&mut upload).collect();
    check_excess(&engine, uploads, |engine| engine.excess_memory().uploaded, Handle::memory_of);
}

#[test]
fn the_memory_of_leases_is_what_the_engine_counts() {
    let cache = cache(64 * MIB);
    let mut engine = cache.handle();
    let mut lease = |i: u64| {
        let key = i.to_le_bytes();
        set_upload(&mut engine, &key, &[7; LEN]).unwrap();
        let key = hashed(&engine, &key);
        let read = |item: &Item<'_, <Handle as Lookups>::Lease>| match &item.value {
            Value::Whole(_) => panic!("{LEN} bytes are a large value"),
            Value::Large(lease) => lease.clone(),
        };
        match engine.get(key, Access::Tracked, read) {
            Lookup::Hit(lease) => lease,
            _ => panic!("item {i} is missing"),
        }
    };
    let leases = (0..450).map(&mut lease).collect();
    check_excess(
        &engine,
        leases,
        |engine| engine.excess_memory().leased,
        |_, lease| lease.memory(),
    );
}
