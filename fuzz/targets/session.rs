//! A whole session: any bytes, in any pieces, give the same answers over every engine.
#![no_main]

use larder_fuzz::{classes, converse, cut, pieces};
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
    };
    segment::Cache::new(config).expect("enough memory").handle()
}

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let whole = converse(plain(), pieces(stream, &[]), 1000);
    assert_eq!(converse(plain(), pieces(stream, lengths), 3), whole, "in pieces");
    // Which CAS follows one that a client chose is an engine's to say.
    if !stream.windows(2).any(|pair| pair == b" E") && stream.first() != Some(&0x80) {
        assert_eq!(converse(ours(), pieces(stream, lengths), 3), whole, "over segments");
    } else {
        converse(ours(), pieces(stream, lengths), 3);
    }
});
