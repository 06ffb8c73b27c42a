//! Runs the transcripts of `tests/conformance/` against the model, except cases tagged
//! `[unmodelled]` or `[server]`.

use larder_model::{Case, ModelTarget, Settings, read_folder, run, run_bytewise};
use std::path::Path;

fn target() -> ModelTarget {
    let classes = vec![96, 120, 152, 192, 512, 4096, 1 << 20];
    ModelTarget::new(Settings { version: "1.6.45".to_owned(), item_size_max: 1 << 20, classes })
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let mut cases = read_folder(&folder).unwrap();
    cases.retain(|case| !case.unmodelled);
    cases
}

#[test]
fn the_model_conforms() {
    let cases = cases();
    let failures: Vec<_> = cases.iter().filter_map(|case| run(case, &mut target()).err()).collect();
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
    assert!(cases.len() > 300, "only {} cases", cases.len());
}

/// TCP does not preserve message boundaries, so the replies must not depend on how the input is
/// split. The test skips cases with large values, because these cases take long.
#[test]
fn the_model_conforms_byte_by_byte() {
    let cases = cases();
    let small = cases.iter().filter(|case| case.sent_len() < 10_000);
    let failures: Vec<_> =
        small.filter_map(|case| run_bytewise(case, &mut target()).err()).collect();
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}
