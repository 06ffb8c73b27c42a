//! The structure of the source: crates and their files depend downwards alone, and unsafe code stays
//! where it is allowed.

use super::imports::{Imports, circle};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate, and what of ours it may use.
const ARROWS: [(&str, &[&str]); 20] = [
    ("larder-protocol", &[]),
    ("larder-device", &[]),
    ("larder-store", &["larder-device"]),
    ("larder-operations", &["larder-store"]),
    ("larder-session", &["larder-protocol", "larder-operations", "larder-store"]),
    ("larder-gateway", &["larder-protocol", "larder-operations", "larder-store"]),
    ("larder-cache", &["larder-operations", "larder-store"]),
    ("larder-replica", &["larder-protocol", "larder-store"]),
    ("larder-etcd", &["larder-replica"]),
    ("larder-support", &["larder-store"]),
    (
        "larder-cluster",
        &[
            "larder-etcd",
            "larder-operations",
            "larder-protocol",
            "larder-replica",
            "larder-session",
            "larder-store",
            "larder-support",
        ],
    ),
    (
        "larder-server",
        &[
            "larder-cluster",
            "larder-support",
            "larder-gateway",
            "larder-session",
            "larder-replica",
            "larder-etcd",
            "larder-operations",
            "larder-store",
            "larder-protocol",
            "larder-device",
        ],
    ),
    ("larder-model", &["larder-protocol"]),
    ("larder-client", &["larder-protocol"]),
    ("larder-target", &["larder-protocol"]),
    ("larder-trace", &[]),
    ("larder-bench", &["larder-client", "larder-protocol", "larder-target", "larder-trace"]),
    ("larder-capacity", &["larder-store", "larder-target", "larder-trace"]),
    ("larder-compare", &["larder-bench", "larder-capacity", "larder-target"]),
    (
        "larder-cli",
        &[
            "larder-bench",
            "larder-capacity",
            "larder-compare",
            "larder-etcd",
            "larder-replica",
            "larder-target",
        ],
    ),
];

/// The only files with unsafe code, in the segment engine.
const UNSAFE: [&str; 21] = [
    "crash_tests.rs",
    "crash_tests/on_flash.rs",
    "flash_read/device_read.rs",
    "flash_write/block_writer.rs",
    "flash_write/demotion.rs",
    "flash_write/page_reclaim.rs",
    "item/new_record.rs",
    "item/record.rs",
    "large_value/builder.rs",
    "large_value/lease.rs",
    "large_value/upload.rs",
    "loom_models.rs",
    "memory/raw/hardware.rs",
    "memory/raw/mapped.rs",
    "memory/raw/modelled.rs",
    "memory/raw/system.rs",
    "reclaim/decommission.rs",
    "restart/image.rs",
    "restart/totals.rs",
    "update/value.rs",
    "write/writer.rs",
];

/// How literals of replies begin, or end, that only the protocol may contain.
const WIRE_WORDS: [&str; 22] = [
    "\"CLIENT_ERROR",
    "\"SERVER_ERROR",
    "\"ERROR\"",
    "\"ERROR ",
    "\"ERROR\\r",
    "\"Error TLS",
    "\"STAT ",
    "\"PREFIX ",
    "\"ITEM ",
    "\"VALUE ",
    "\"END\"",
    "\"END\\r",
    "\"EN\"",
    "\"OK\"",
    "\"OK\\r",
    "\"RESET\"",
    "\"STORED",
    "\"BADCLASS",
    "\"NOTSTARTED",
    "\"MEMLIMIT_",
    "\"WATCHER_",
    "\\r\\n",
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Our crates among the dependencies of a crate, those of its tests left out.
fn dependencies(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[").filter(|section| {
        section.starts_with("dependencies]") || section.contains(".dependencies]")
    });
    let lines = sections.flat_map(str::lines).filter(|line| line.starts_with("larder-"));
    lines.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn arrows_point_down() {
    for entry in fs::read_dir(crates()).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            panic!("{name} has no place in this test's table yet");
        };
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for used in dependencies(&manifest) {
            assert!(allowed.contains(&used.as_str()), "{name} may not use {used}");
        }
    }
}

#[test]
fn unsafe_code_stays_in_the_segment_engine() {
    for crate_name in [
        "larder-protocol",
        "larder-operations",
        "larder-session",
        "larder-gateway",
        "larder-cache",
        "larder-cluster",
        "larder-support",
        "larder-server",
    ] {
        let lib = fs::read_to_string(crates().join(crate_name).join("src/lib.rs")).unwrap();
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{crate_name} forbids unsafe code");
    }
    let mut files = Vec::new();
    rust_files(&crates().join("larder-store/src"), &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let segment_file = file.to_str().unwrap().split_once("/segment/");
        let allowed = segment_file.is_some_and(|(_, path)| UNSAFE.contains(&path));
        assert!(allowed || !text.contains("unsafe {"), "unsafe code in {}", file.display());
    }
}

/// The source of a file without its tests, which come last.
fn without_tests(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.split("#[cfg(test)]\nmod ").next().unwrap().to_owned()
}

#[test]
fn wire_text_stays_in_the_protocol() {
    let mut files = Vec::new();
    for crate_name in ["larder-session", "larder-operations", "larder-cluster", "larder-server"] {
        rust_files(&crates().join(crate_name).join("src"), &mut files);
    }
    assert!(files.len() > 40, "only {} files", files.len());
    for file in files {
        let text = without_tests(&file);
        let code = |(_, line): &(_, &str)| !line.trim_start().starts_with("//");
        for (number, line) in (1..).zip(text.lines()).filter(code) {
            let found = WIRE_WORDS.iter().find(|word| line.contains(*word));
            assert_eq!(found, None, "{}:{number} writes to the wire", file.display());
        }
    }
    let admin = without_tests(&crates().join("larder-protocol/src/reply/admin.rs"));
    assert!(WIRE_WORDS.iter().filter(|word| admin.contains(*word)).count() > 5);
}

fn imports_of(crate_name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = crates().join(crate_name).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    Imports::read(&src, &files).edges()
}

#[test]
fn files_import_downwards() {
    for (crate_name, _) in ARROWS {
        let edges = imports_of(crate_name);
        let circle = circle(&edges).map(|circle| circle.join(" -> "));
        assert_eq!(circle, None, "{crate_name}: files import each other");
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    let mut edges = imports_of("larder-server");
    // A `use` of a file beside it, a name through a re-export, and a path in a function.
    for (from, to) in [
        ("stats/table", "stats/row"),
        ("options/layers", "options/misuse"),
        ("driver", "driver/acceptor"),
    ] {
        assert!(edges[from].contains(to), "{from} imports from {to}");
    }
    edges.get_mut("stats/row").unwrap().insert("stats".to_owned());
    let circle = circle(&edges).expect("stats imports from its files");
    assert_eq!(circle.first(), circle.last());
    assert!(circle.contains(&"stats/row".to_owned()), "{circle:?}");
}
