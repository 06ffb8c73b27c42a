//! Checks that only the modules in the list of SECURITY.md contain `unsafe`.

use crate::source::{crates, root, rust_files};
use std::collections::BTreeSet;
use std::fs;

/// The forms of `unsafe` in code. In comments and names of lints, other characters follow `unsafe`.
const FORMS: [&str; 4] = ["unsafe {", "unsafe fn ", "unsafe impl ", "unsafe extern "];

/// Returns the paths in the list under the heading "Unsafe code" of SECURITY.md. Each list item has
/// one path.
fn listed() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let (_, section) = text.split_once("## Unsafe code").expect("a section \"Unsafe code\"");
    let section = section.split("\n## ").next().unwrap();
    let paths = section.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    paths.map(str::to_owned).collect()
}

fn found() -> BTreeSet<String> {
    let mut folders: Vec<_> = crates().into_iter().map(|(_, folder)| folder.join("src")).collect();
    folders
        .extend(["c", "python", "ruby"].map(|name| root().join("clients").join(name).join("src")));
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    let has_unsafe = files.filter(|file| {
        // Excludes `tests`: this crate contains the texts of `FORMS`, but no unsafe code.
        !file.starts_with(root().join("tests"))
            && FORMS.iter().any(|form| fs::read_to_string(file).unwrap().contains(form))
    });
    has_unsafe.map(|file| file.strip_prefix(root()).unwrap().display().to_string()).collect()
}

#[test]
fn unsafe_code_is_in_the_modules_that_security_lists() {
    let (found, listed) = (found(), listed());
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(unlisted.is_empty(), "not in SECURITY.md: {unlisted:#?}");
    let stale: Vec<_> = listed.difference(&found).collect();
    assert!(stale.is_empty(), "in SECURITY.md, without unsafe code: {stale:#?}");
}
