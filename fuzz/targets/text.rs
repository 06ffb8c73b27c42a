//! Text requests: the parsed requests do not depend on how the bytes are split.
#![no_main]

use larder_fuzz::{cut, pieces, requests};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let stream = stream.to_vec();
    let whole = requests(pieces(&stream, &[]));
    assert_eq!(requests(pieces(&stream, lengths)), whole, "in pieces");
});
