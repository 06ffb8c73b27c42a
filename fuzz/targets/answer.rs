//! Client-side parsing of replies: in each protocol, the parsed replies do not depend on how the
//! bytes are split.
#![no_main]

use larder_fuzz::{READERS, answers, cut, pieces};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    for read in READERS {
        let whole = answers(pieces(stream, &[]), read);
        assert_eq!(answers(pieces(stream, lengths), read), whole, "in pieces");
    }
});
