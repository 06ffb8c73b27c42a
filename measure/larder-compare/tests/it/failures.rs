//! Servers that freeze, exit or reject requests. Their measurements fail, unless the load allows
//! the faults.

use crate::common::{Bench, Ended, MEMCACHED, misbehaving, suite_text};

#[test]
fn a_server() {
    misbehaving::serve();
}

/// Returns a suite of one run with memcached and a server with this behaviour.
fn beside_memcached_suite(behaviour: &str) -> String {
    let suite = suite_text(&MEMCACHED, &misbehaving::entry("broken", behaviour));
    suite.replace("pipelines = [1, 5]", "pipelines = [1]").replace("runs = 2", "runs = 1")
}

/// Returns a comparison of memcached and a server with this behaviour, without a warm-up.
fn beside_memcached(behaviour: &str, load: &str) -> Bench {
    let suite = beside_memcached_suite(behaviour);
    Bench::of(&suite.replace("-n 100", load).replace("warm_up_secs = 0.05", "warm_up_secs = 0"))
}

/// Runs a comparison, and checks that every output reports the failure of `broken`. The error, the
/// table, the records, the JSON file and the CSV file must also contain `reason`.
fn fails(bench: &Bench, reason: &str) {
    let Ended { result, progress, tables } = bench.go_wrong();
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("1 of 2 measurements failed, first broken · "), "{error}");
    assert!(error.contains(reason), "{error}");
    assert!(progress.contains("broken · small · mixed · 1 thread · pipeline 1 · run 1: failed: "));
    let row = tables.lines().find(|line| line.starts_with("| broken | failed: ")).expect(&tables);
    assert!(row.contains(reason) && !row.contains('×'), "{row}");

    let records = bench.records();
    let record = records.iter().find(|record| record.cell.server == "broken").unwrap();
    assert!(record.failure().unwrap().contains(reason), "{record:?}");
    let json: serde_json::Value = serde_json::from_str(&bench.read("results.json")).unwrap();
    assert_eq!(json["failed"][0]["cell"]["server"], "broken");
    let standing = &json["summary"]["tables"][0]["rows"][1]["standing"];
    assert!(standing["failed"].as_str().unwrap().contains(reason), "{standing}");
    let csv = bench.read("results.csv");
    let mut csv = csv::Reader::from_reader(csv.as_bytes());
    let line = csv.records().map(Result::unwrap).find(|line| &line[0] == "broken").unwrap();
    assert!(line[7].contains(reason) && line[9].is_empty(), "no throughput: {line:?}");
    let plot = bench.read("plots/1-thread-pipeline-1-throughput-linear.svg");
    assert!(plot.contains("broken failed: "), "{plot}");
    let html = bench.read("report.html");
    assert!(html.contains("failed: "), "the page shows the failure");
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn a_frozen_server_has_no_result_in_a_timed_run() {
    fails(&beside_memcached("freezes", "--test-time 1 --timeout 3"), "never answered");
}

#[test]
fn a_frozen_server_has_no_result_in_a_counted_run() {
    fails(&beside_memcached("freezes", "-n 1000 --timeout 1"), "answered nothing for 1 s");
}

#[test]
fn a_server_that_freezes_while_keys_are_set_has_no_result() {
    let load = "-n 1000 --timeout 1 --fill --key-maximum 5000";
    fails(&beside_memcached("freezes", load), "during --fill");
}

#[test]
fn a_server_that_refuses_every_set_has_no_result() {
    fails(&beside_memcached("refuses", "-n 100"), "SERVER_ERROR out of memory storing object");
}

/// The server rejects all sets of the warm-up, so all measured gets miss.
#[test]
fn a_server_that_refuses_sets_during_the_warm_up_has_no_result() {
    let load = "-n 100 --fill --key-maximum 50";
    let suite = beside_memcached_suite("refuses").replace("-n 100", load);
    let bench = Bench::of(&suite.replace("--ratio 1:1", "--ratio 0:1"));
    fails(&bench, "fill: SERVER_ERROR out of memory storing object");
}

#[test]
fn a_server_that_dies_has_no_result() {
    fails(&beside_memcached("dies", "-n 1000"), "exit status: 7");
}

#[test]
fn a_load_says_how_many_faults_it_allows() {
    let bench = beside_memcached("refuses", "-n 100 --max-faults 100");
    let (_, tables) = bench.go();
    assert!(!tables.contains("failed: ") && tables.contains("storing object: 100"), "{tables}");
}
