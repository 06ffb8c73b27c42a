//! Checks that the crates for sessions, operations, clusters and the server contain no text of
//! replies. That text belongs in larder-protocol.

use crate::source::{folder, rust_files, without_tests};
use std::fs;

/// Prefixes and suffixes of string literals that only larder-protocol may contain.
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

#[test]
fn wire_text_stays_in_the_protocol() {
    let mut files = Vec::new();
    for crate_name in ["larder-session", "larder-operations", "larder-cluster", "larder-server"] {
        files.extend(rust_files(&folder(crate_name).join("src")));
    }
    assert!(files.len() > 40, "only {} files", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = |(_, line): &(_, &str)| !line.trim_start().starts_with("//");
        for (number, line) in (1..).zip(without_tests(&text).lines()).filter(code) {
            let found = WIRE_WORDS.iter().find(|word| line.contains(*word));
            assert_eq!(found, None, "{}:{number} writes to the wire", file.display());
        }
    }
    let admin = folder("larder-protocol").join("src/reply/admin.rs");
    let admin = fs::read_to_string(admin).unwrap();
    assert!(WIRE_WORDS.iter().filter(|word| admin.contains(*word)).count() > 5);
}
