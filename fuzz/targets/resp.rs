//! RESP requests: the parsed requests do not depend on how the bytes are split, and the arguments
//! of each request can be read.
#![no_main]

use larder_fuzz::{cut, pieces, resp_requests};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let whole = resp_requests(pieces(stream, &[]));
    assert_eq!(resp_requests(pieces(stream, lengths)), whole, "in pieces");
});
