//! Meta requests: the parsed requests do not depend on how the stream is split. The target adds an
//! `m` to each line.
#![no_main]

use larder_fuzz::{cut, pieces, requests};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let stream = with_prefix(stream);
    let whole = requests(pieces(&stream, &[]));
    assert_eq!(requests(pieces(&stream, lengths)), whole, "in pieces");
});

/// Adds an `m` before each line, so that the parser reads every line as a meta command.
fn with_prefix(stream: &[u8]) -> Vec<u8> {
    let lines = stream.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| [b"m", line].concat()).collect()
}
