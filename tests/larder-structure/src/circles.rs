//! Checks that no crate has an import cycle, neither among its files nor among their folders.

use crate::imports::{Imports, circle};
use crate::source::{crates, folder, rust_files};
use std::collections::{BTreeMap, BTreeSet};

fn imports_of(crate_name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = folder(crate_name).join("src");
    Imports::read(&src, &rust_files(&src)).edges()
}

#[test]
fn files_import_no_circles() {
    for (crate_name, _) in crates() {
        let edges = imports_of(&crate_name);
        let circle = circle(&edges).map(|circle| circle.join(" -> "));
        assert_eq!(circle, None, "{crate_name}: files import each other");
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    let mut edges = imports_of("larder-structure");
    assert!(edges["circles"].contains("imports"));
    edges.get_mut("imports").unwrap().insert("circles".to_owned());
    let circle = circle(&edges).expect("circles imports imports");
    assert_eq!(circle.first(), circle.last());
    assert!(circle.contains(&"imports".to_owned()), "{circle:?}");
}

#[test]
fn imports_through_a_re_export_are_found() {
    let edges = imports_of("larder-cluster");
    assert!(edges["accept"].contains("forward/answerer"), "{:?}", edges["accept"]);
}
