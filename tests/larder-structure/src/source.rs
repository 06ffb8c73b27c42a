//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders that contain crates.
const CRATE_FOLDERS: [&str; 4] = ["crates", "clients", "measure", "tests"];

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the crates in `CRATE_FOLDERS` whose names start with `larder-`: their names and paths.
pub(crate) fn crates() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for folder in CRATE_FOLDERS {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("larder-") && path.join("Cargo.toml").exists() {
                found.push((name, path));
            }
        }
    }
    assert!(found.len() > 20, "only {} crates in {CRATE_FOLDERS:?}", found.len());
    found
}

/// Returns the folder of a crate.
pub(crate) fn folder(crate_name: &str) -> PathBuf {
    let found = crates().into_iter().find(|(name, _)| name == crate_name);
    found.unwrap_or_else(|| panic!("there is no crate {crate_name}")).1
}

/// Returns the Rust files below a folder.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the text of a file without its tests, which are at the end.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap()
}
