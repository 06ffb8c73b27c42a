//! Replays the transcripts of `tests/conformance/` against sessions with each engine.

use crate::common::target::{self, Sessions};
use larder_model::{Case, Target, read_folder, run, run_bytewise};
use std::path::Path;

/// Cases of at least this length in bytes are not replayed byte by byte, because that would take
/// too much time.
const BYTEWISE_LEN_MAX: usize = 10_000;

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let mut cases = read_folder(&folder).unwrap();
    cases.retain(|case| !case.server);
    cases
}

/// Replays each case in one piece and, unless it is long, also byte by byte.
fn conforms(mut target: impl Target) {
    let cases = cases();
    let mut failures = Vec::new();
    for case in &cases {
        failures.extend(run(case, &mut target).err());
        if case.sent_len() < BYTEWISE_LEN_MAX {
            failures
                .extend(run_bytewise(case, &mut target).err().map(|e| format!("by bytes: {e}")));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(cases.len() > 300, "only {} cases", cases.len());
}

#[test]
fn dashmap() {
    conforms(Sessions::new(target::dashmap));
}

#[test]
fn moka() {
    conforms(Sessions::new(target::moka));
}

#[test]
fn segment() {
    conforms(Sessions::new(target::segment));
}

#[test]
fn delayed() {
    conforms(Sessions::new(target::delayed));
}
