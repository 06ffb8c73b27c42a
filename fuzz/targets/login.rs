//! Sessions that require a login, in text or binary: no request is executed before the login, and
//! the replies do not depend on how the input is split.
#![no_main]

use larder_fuzz::{classes, cut, pieces, run_session_from};
use larder_protocol::Parser;
use larder_store::dashmap;
use libfuzzer_sys::fuzz_target;

fn engine() -> dashmap::Handle {
    let (limit_bytes, classes) = (1 << 20, classes());
    dashmap::Cache::new(dashmap::Config { limit_bytes, cas: false, classes, seed: 1 }).handle()
}

fuzz_target!(|input: &[u8]| {
    let Some((lengths, stream)) = cut(input) else { return };
    let binary = stream.first() == Some(&0x80);
    let opening = if binary { Parser::BINARY_LOGIN } else { Parser::TEXT_LOGIN };
    let whole = run_session_from(opening, engine(), pieces(stream, &[]), 1000);
    assert_eq!(run_session_from(opening, engine(), pieces(stream, lengths), 3), whole, "in pieces");
});
