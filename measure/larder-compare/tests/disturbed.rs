//! Measurements while a busy program uses the machine. This is a separate test program, because the
//! busy program would disturb the measurements of other tests.
#![cfg(target_os = "linux")]

#[path = "it/common/mod.rs"]
mod common;

use common::{Bench, MEMCACHED, suite_text};
use std::process::{Child, Command};

/// A program that uses a core until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn disturbed_measurements_are_repeated_and_marked() {
    let suite = suite_text(&MEMCACHED, "").replace("pipelines = [1, 5]", "pipelines = [1]");
    let bench =
        Bench::of(&suite.replace("-n 100", "--test-time 0.7").replace("runs = 2", "runs = 1"));
    let busy: Vec<Busy> = (0..2).map(|_| Busy::start()).collect();
    let (progress, tables) = bench.go();
    assert_eq!(bench.attempts().len(), 3, "three attempts: {progress}");
    assert!(progress.contains("[1/1 again] it · "), "{progress}");
    assert!(progress.contains("(disturbed: others use "), "{progress}");
    assert!(tables.contains("| it (1 of 1 runs disturbed) | "), "{tables}");
    let json: serde_json::Value = serde_json::from_str(&bench.read("results.json")).unwrap();
    assert_eq!(json["cells"].as_array().unwrap().len(), 1, "one valid attempt");
    let least =
        bench.attempts().iter().filter_map(|record| record.other_cpu_percent).reduce(f64::min);
    assert_eq!(json["cells"][0]["others_busy"].as_f64(), least);
    assert_eq!(json["disturbed"][0]["server"], "it");
    drop(busy);

    let (progress, _) = bench.go();
    assert!(!progress.contains("/1"), "nothing is left to measure: {progress}");
}
