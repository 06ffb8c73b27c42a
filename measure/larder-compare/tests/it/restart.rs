//! Trials with a restart of the server during the load.
#![cfg(target_os = "linux")]

use crate::common::Bench;
use larder_compare::metric::Metric;
use larder_compare::results::{CellResult, Record};
use larder_compare::suite::Suite;

const KEYS: &str = "--key-minimum 1 --key-maximum 2000 -d 500 --verify";

/// Returns a suite with one server that restarts a second after the start of the load.
fn suite(options: &str, of_server: &str, signal: &str, load: &str) -> String {
    let usual =
        "\"memcached\", \"-u\", \"root\", \"-U\", \"0\", \"-l\", \"127.0.0.1\", \"-p\", \"{port}\"";
    format!(
        "title = \"restart\"
about = \"\"
baseline = \"it\"
memory_mb = 64
threads = [1]
runs = 1
pipelines = [2]

[[server]]
name = \"it\"
command = [{usual}, \"-m\", \"{{memory_mb}}\"{options}]
{of_server}

[[workload]]
name = \"restart\"
[[workload.phase]]
name = \"fill\"
warm_up = true
load = \"-t 1 -c 2 --ratio 1:0 --key-pattern P:P -n allkeys {KEYS}\"
[[workload.phase]]
name = \"gets\"
restart = {{ after_secs = 1, signal = \"{signal}\" }}
load = \"-t 1 -c 2 --ratio 0:1 --pipeline {{pipeline}} {load}\"
"
    )
}

fn record_of(suite: &str) -> Record {
    let bench = Bench::of(suite);
    bench.go();
    bench.records().remove(0)
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn items_that_a_restart_keeps_are_found() {
    let options = ", \"-e\", \"{shm}/memory\"";
    let of_server = "restart_signal = \"USR1\"\nrestart_pause_secs = 2";
    let record = record_of(&suite(options, of_server, "TERM", &format!("{KEYS} --test-time 6")));
    let restart = record.restart.unwrap_or_else(|| panic!("{record:?}"));
    assert!(restart.items_before >= 3000, "the items of the load and of the check: {restart:?}");
    assert_eq!(restart.items_after, restart.items_before);
    assert_eq!((restart.changed_lost, restart.changed_wrong, restart.deleted_back), (0, 0, 0));
    let (found, missed) = restart.found_after;
    assert!(found > 0 && missed == 0, "{restart:?}");
    assert!(restart.started_secs >= restart.ended_secs + 2.0, "{restart:?}");
    let (answered, hit) = (restart.answered_secs.unwrap(), restart.hit_secs.unwrap());
    assert!(answered > restart.started_secs && hit >= answered, "{restart:?}");
    assert_eq!(Metric::Kept.of(&record, 1), Some(100.0));
    assert!(Metric::FirstHit.of(&record, 1).is_some_and(|micros| micros > 2e6));
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn a_server_that_keeps_nothing_is_no_failure() {
    let record = record_of(&suite("", "", "KILL", &format!("{KEYS} --test-time 3")));
    let restart = record.restart.unwrap_or_else(|| panic!("{record:?}"));
    assert_eq!((restart.items_after, restart.changed_lost), (0, 1000), "{restart:?}");
    assert_eq!((restart.hit_secs, restart.found_after.0), (None, 0), "{restart:?}");
    assert!(matches!(record.result, CellResult::Measured(_)), "{record:?}");
    assert_eq!(Metric::Kept.of(&record, 1), Some(0.0));
}

#[test]
fn restarts_that_cannot_be_measured_are_refused() {
    let load = |load: &str| Suite::parse(&suite("", "", "USR1", load));
    assert!(load(&format!("{KEYS} --test-time 3")).is_ok());
    for wrong in ["-n 100", "--test-time 1", "--test-time 3 --fill", "--test-time 3 -P resp"] {
        let error = load(wrong).unwrap_err();
        assert!(error.contains("a restart"), "{wrong}: {error}");
    }
    let on_resp = suite("", "protocol = \"resp\"", "TERM", "--test-time 3");
    assert!(Suite::parse(&on_resp).unwrap_err().contains("but server `it` has resp"));
    assert!(Suite::parse(&suite("", "restart_pause_secs = 100", "TERM", "--test-time 3")).is_err());
    assert!(Suite::parse(&suite("", "", "STOP", "--test-time 3")).is_err());
}
