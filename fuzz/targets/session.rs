//! Sessions: the replies do not depend on how the bytes are split. The segment engine gives the
//! same replies as the `dashmap` engine, except for streams that `is_engine_specific` detects.
#![no_main]

use larder_fuzz::{classes, cut, pieces, run_session};
use larder_store::{dashmap, segment};
use libfuzzer_sys::fuzz_target;

const SEED: u64 = 0x5eed;
const LIMIT_BYTES: usize = 4 << 20;

fn plain() -> dashmap::Handle {
    let (limit_bytes, classes) = (LIMIT_BYTES, classes());
    dashmap::Cache::new(dashmap::Config { limit_bytes, cas: true, classes, seed: SEED }).handle()
}

fn ours() -> segment::Handle {
    let config = segment::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        evict: true,
        item_size_max: 64 << 10,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    };
    segment::Cache::new(config).expect("the limit is large enough for an engine").handle()
}

/// Returns whether the replies to a stream may differ between engines. Engines differ in the order
/// of a dump and in their support of tags. They also differ in the CAS values that they assign
/// after a client has chosen a CAS value. The function may return true although the replies are
/// equal.
fn is_engine_specific(stream: &[u8]) -> bool {
    let holds = |part: &[u8]| stream.windows(part.len()).any(|window| window == part);
    stream.first() == Some(&0x80)
        || holds(b" E")
        || holds(b"dump ")
        || holds(b" G")
        || holds(b"mt ")
}

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let whole = run_session(plain(), pieces(stream, &[]), 1000);
    assert_eq!(run_session(plain(), pieces(stream, lengths), 3), whole, "in pieces");
    let over_segments = run_session(ours(), pieces(stream, lengths), 3);
    if !is_engine_specific(stream) {
        assert_eq!(over_segments, whole, "over segments");
    }
});
