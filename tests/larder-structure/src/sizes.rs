//! Checks sizes: a folder has at most 15 source files, and a file has at most 500 lines of code or
//! states a reason for more.

use crate::source::{crates, root, rust_files, without_tests};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FOLDER_FILES_MAX: usize = 15;
const FILE_LINES_MAX: usize = 500;
/// The start of a comment that states the reason for a longer file.
const REASON: &str = "in one file, because ";
/// The first line of a generated file starts with this text. Such a file may have any length.
const GENERATED: &str = "// This file is @generated";

/// Returns the source files in Rust, Python, Ruby, C and Go, from the crates, other clients,
/// scripts and tests.
fn source_files() -> Vec<PathBuf> {
    let mut files: Vec<_> = crates().iter().flat_map(|(_, folder)| rust_files(folder)).collect();
    let mut folders: Vec<_> = ["clients", "measure/bench", "scripts", "tests", "fuzz"]
        .iter()
        .map(|folder| root().join(folder))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let is_built = ["target", "node_modules", "build"].contains(&name);
                if !is_built && !name.starts_with(['.', '_']) && !name.starts_with("larder-") {
                    folders.push(path);
                }
            } else if [".rs", ".py", ".rb", ".c", ".h", ".go"].iter().any(|end| name.ends_with(end))
            {
                files.push(path);
            }
        }
    }
    files
}

/// Returns the number of lines of code. Blank lines, `//` comments, lines that start with `#`, and
/// tests do not count.
fn lines_of_code(text: &str) -> usize {
    let is_code = |line: &&str| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with('#')
    };
    without_tests(text).lines().filter(is_code).count()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn folders_have_few_files() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in source_files() {
        *counts.entry(file.parent().unwrap().to_owned()).or_default() += 1;
    }
    let large = counts.iter().filter(|(_, count)| **count > FOLDER_FILES_MAX);
    let large: Vec<_> = large.map(|(path, count)| format!("{} {count}", shown(path))).collect();
    assert!(large.is_empty(), "more than {FOLDER_FILES_MAX} source files in a folder: {large:?}");
}

#[test]
fn files_are_short_or_state_a_reason() {
    let mut large = Vec::new();
    for file in source_files() {
        let text = fs::read_to_string(&file).unwrap();
        let lines = lines_of_code(&text);
        let may_be_long = text.contains(REASON) || text.starts_with(GENERATED);
        if lines > FILE_LINES_MAX && !may_be_long {
            large.push(format!("{} {lines}", shown(&file)));
        }
    }
    assert!(large.is_empty(), "more than {FILE_LINES_MAX} lines of code: {large:#?}");
}

#[test]
fn comments_and_tests_are_no_lines_of_code() {
    let text = "//! Head.\n\nfn f() {\n    // Reason.\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(lines_of_code(text), 2);
}
