//! Documentation pages with parts that are generated from the source code.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `text` with `content` between `<!-- name -->` and the next `<!-- end -->`.
pub fn replaced(text: &str, name: &str, content: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), "<!-- end -->\n");
    let Some((before, rest)) = text.split_once(&begin) else {
        panic!("no {begin:?} in the documentation");
    };
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("no end of {begin:?}"));
    [before, &begin, "\n", content, end, after].concat()
}

/// Compares a page with the text that `documented` returns for the current page. With
/// `LARDER_WRITE_DOCS=1`, writes that text to the page instead.
pub fn check_documentation(name: &str, documented: impl FnOnce(&str) -> String) {
    let file = root().join(name);
    let text = fs::read_to_string(&file).unwrap();
    let documented = documented(&text);
    if std::env::var_os("LARDER_WRITE_DOCS").is_some_and(|value| value == "1") {
        return fs::write(file, documented).unwrap();
    }
    let wrong = documented.lines().zip(text.lines()).find(|(right, written)| right != written);
    assert!(
        text == documented,
        "{name} differs from its source; LARDER_WRITE_DOCS=1 writes it: {wrong:?}"
    );
}
