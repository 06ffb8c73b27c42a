//! Checks the layers: a crate depends only on crates below it.

use crate::source::crates;
use std::fs;

/// Each crate, with the crates of this workspace on which it may depend.
const ARROWS: [(&str, &[&str]); 21] = [
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
    ("larder-structure", &[]),
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
            "larder-client",
            "larder-compare",
            "larder-etcd",
            "larder-replica",
            "larder-target",
        ],
    ),
];

/// Returns the crates of this workspace on which a crate depends. Dependencies of its tests do not
/// count.
fn dependencies(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[").filter(|section| {
        section.starts_with("dependencies]") || section.contains(".dependencies]")
    });
    let lines = sections.flat_map(str::lines).filter(|line| line.starts_with("larder-"));
    lines.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

#[test]
fn crates_depend_on_the_layers_below() {
    for (name, folder) in crates() {
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            panic!("{name} has no row in this test's table");
        };
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for used in dependencies(&manifest) {
            assert!(allowed.contains(&used.as_str()), "{name} may not use {used}");
        }
    }
}
