//! Comparisons of real servers, and of servers that fail or are not installed.

use crate::common::{self, Bench, MEMCACHED, suite_entry, suite_text};
use larder_compare::Error;
use larder_compare::metric::Metric;
use larder_compare::results::{CellResult, Record, Results};
use larder_compare::suite::Suite;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::tempdir;

fn shipped() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suites");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn suite(name: &str) -> Suite {
    let (_, text) = shipped().into_iter().find(|(path, _)| path.ends_with(name)).unwrap();
    Suite::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn shipped_suites_are_sound() {
    let suites = shipped();
    assert_eq!(suites.len(), 9);
    for (path, text) in suites {
        let suite =
            Suite::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let names: Vec<&str> = suite.servers.iter().map(|server| server.name.as_str()).collect();
        assert!(names.contains(&"memcached") && names.contains(&"larder"), "{}", path.display());
        assert!(suite.clone().quick().runs < suite.runs, "{}", path.display());
    }
}

#[test]
fn the_suite_in_the_documentation_is_one() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compare.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (suite, _) = rest.split_once("```").unwrap();
    assert_eq!(Suite::parse(suite).map(|suite| suite.servers.len()), Ok(2));
}

/// Reading a suite checks that each load is a valid command line of `larder bench`.
#[test]
fn suites_contain_published_command_lines_unchanged() {
    let profile = |ratio: &str, size: &str, keys: &str, pattern: &str| {
        format!(
            "--protocol=memcache_binary --threads=6 --clients=50 --test-time=60 --ratio={ratio} \
             --data-size={size} --key-maximum={keys} --key-pattern={pattern} --hide-histogram \
             --run-count=5"
        )
    };
    let memc_kv = "--protocol=memcache_text --generate-keys --key-maximum=100000 --key-prefix=key- \
                   --ratio=4:8 --distinct-client-seed --randomize --data-size-range=32-500 \
                   --expiry-range=10-3600 -n 10000 -c 10 -t 4";
    for (name, lines) in [
        (
            "memcrs.toml",
            vec![
                profile("1:10", "256", "1000000", "R:R"),
                profile("1:1", "1024", "1000000", "R:R"),
                profile("1:10", "512", "10000000", "G:G"),
            ],
        ),
        ("memc-kv.toml", vec![memc_kv.to_owned()]),
    ] {
        let phases = suite(name).workloads.into_iter().flat_map(|workload| workload.phases);
        let loads: Vec<String> = phases.map(|phase| phase.load.unwrap()).collect();
        assert_eq!(loads, lines, "{name}");
    }
    let caches = suite("caches.toml");
    assert_eq!((caches.runs, caches.pipelines), (31, vec![1, 10, 25, 50]));
    assert_eq!(caches.servers.len(), 8);
}

#[test]
fn errors_in_a_suite_are_reported() {
    let sound = suite_text(&["memcached", "-s", "{socket}"], "");
    assert!(Suite::parse(&sound).is_ok());
    for (old, new, named) in [
        ("runs = 2", "runs = 2\nruns_ = 3", "8 | runs_"),
        ("runs = 2", "runs = 0", "runs"),
        ("baseline = \"it\"", "baseline = \"no\"", "no server `no`"),
        ("--ratio 1:1", "--rati 1:1", "--rati"),
        ("--ratio 1:1", "--ratio 1:1 {pipe}", "{pipe}"),
        ("--ratio 1:1", "--ratio \\\"1:1", "unterminated quote"),
        ("\"{socket}\"", "\"{sock}\"", "{sock}"),
        ("\"{socket}\"", "\"x\"", "either {socket} or a port"),
        ("load = ", "fill = { value_bytes = 1 }\nload = ", "either load or fill"),
    ] {
        assert!(sound.contains(old), "{old}");
        let error = Suite::parse(&sound.replacen(old, new, 1)).unwrap_err();
        assert!(error.contains(named), "{new}: {error}");
    }
}

const OTHERS: &str = r#"
[[server]]
name = "redis"
command = ["redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
version = ["--version"]
protocol = "resp"

[[server]]
name = "dies"
command = ["false", "{port}"]

[[server]]
name = "nowhere"
command = ["no-such-server", "{port}"]
"#;

#[test]
fn servers_that_work_fail_or_are_not_installed() {
    let bench = Bench::of(&suite_text(&MEMCACHED, OTHERS));
    let common::Ended { progress, tables, .. } = bench.go_wrong();
    assert!(progress.contains("nowhere: not installed"), "{progress}");
    let records = bench.records();
    // 3 servers, 2 pipelines, 2 runs.
    assert_eq!(records.len(), 12);
    for record in &records {
        match (&record.result, record.cell.server.as_str()) {
            (CellResult::Measured(outcome), "it" | "redis") => {
                assert_eq!(outcome.total().requests, 200);
                assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
            }
            (CellResult::Failed(failure), "dies") => {
                assert!(failure.reason.contains("exit status: 1"), "{failure:?}")
            }
            other => panic!("{other:?}"),
        }
    }
    // Servers alternate, and the second run starts with another server.
    let order: Vec<&str> = records.iter().map(|record| record.cell.server.as_str()).collect();
    assert_eq!(order[..3], ["it", "redis", "dies"]);
    assert_eq!(order[6..9], ["redis", "dies", "it"]);
    assert!(tables.contains("| nowhere | not installed |"), "{tables}");
    assert!(tables.contains("| dies | failed: did not start: exit status: 1"), "{tables}");
    assert!(tables.contains("| it | memcached 1."), "{tables}");
    for name in ["report.html", "results.json", "results.csv", "results.md"] {
        assert!(bench.out(name).exists(), "{name}");
    }
    let plot = bench.out("plots/small-mixed-1-thread-throughput-linear.png");
    assert_eq!(std::fs::read(plot).unwrap()[..4], *b"\x89PNG");
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn an_interrupted_comparison_is_resumed() {
    let bench = Bench::of(&suite_text(&MEMCACHED, ""));
    bench.go();
    let lines = bench.lines();
    assert_eq!(lines.len(), 1 + 4);
    // The file of a comparison that was killed while it wrote the third record.
    let cut = format!("{}\n{}", lines[..3].join("\n"), &lines[3][..20]);
    std::fs::write(bench.out(Results::FILE), cut).unwrap();
    let (progress, _) = bench.go();
    assert!(progress.contains("[3/4]") && progress.contains("[4/4]"), "{progress}");
    assert!(!progress.contains("[2/4]"), "{progress}");
    let after = std::fs::read_to_string(bench.out(Results::FILE)).unwrap();
    assert_eq!(after.lines().take(3).collect::<Vec<_>>(), lines[..3]);
    assert_eq!(bench.records().len(), 4);

    let (progress, _) = bench.go();
    assert!(!progress.contains("/4]"), "nothing is left to measure: {progress}");
    let mut other = Bench { arguments: bench.arguments.clone(), folder: bench.folder };
    other.arguments.runs = Some(3);
    let (progress, _) = other.go();
    assert!(progress.contains("[5/6]") && progress.contains("[6/6]"), "a run is added: {progress}");
    assert!(!progress.contains("[4/6]"), "{progress}");
    assert!(progress.contains(" s left"), "{progress}");
    assert!(other.out("logs/it-small-1-thread-pipeline-5-run-3.log").exists());
    let suite = std::fs::read_to_string(&other.arguments.suite).unwrap();
    std::fs::write(&other.arguments.suite, suite.replace("-n 100", "-n 200")).unwrap();
    let error = other.run(&AtomicBool::new(false)).result.unwrap_err().to_string();
    assert!(error.contains("suite differ"), "{error}");
    other.arguments.fresh = true;
    other.go();
    assert_eq!(other.records().len(), 6);
}

/// Returns a shell script that writes its process ID to a file and then becomes memcached.
fn says_its_pid(folder: &Path) -> Vec<String> {
    let file = folder.join("pid").display().to_string();
    let script = format!("echo $$ > {file}; exec memcached -u root -U 0 -s \"$0\"");
    ["sh", "-c", &script, "{socket}"].map(ToOwned::to_owned).to_vec()
}

#[test]
fn a_signal_ends_the_server_too() {
    let folder = tempdir().unwrap();
    let command = says_its_pid(folder.path());
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let suite = suite_text(&command, "").replace("-n 100", "--test-time 600");
    let suite = suite.replace("version = [\"--version\"]", "");
    let bench = Bench::of(&suite);
    let interrupted = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| bench.run(&interrupted));
        while !folder.path().join("pid").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        interrupted.store(true, Ordering::Relaxed);
        running.join().unwrap().result
    });
    assert!(matches!(result, Err(Error::Interrupted(_))), "{result:?}");
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap());
    assert!(kill(pid, None).is_err(), "the server has ended");
    assert!(bench.records().is_empty(), "an interrupted measurement has no record");
}

/// The script itself uses almost no CPU time, so a cost above 0.5 µs per request can only be
/// memcached's.
#[test]
fn the_cost_of_a_server_that_a_script_starts_is_known() {
    let script = "memcached -u root -U 0 -t 1 -s \"$0\" & wait";
    let suite = suite_text(&["sh", "-c", script, "{socket}"], &suite_entry("bare", &MEMCACHED));
    let suite = suite
        .replace("pipelines = [1, 5]", "pipelines = [1]")
        .replace("-n 100", "-n 5000")
        .replace("runs = 2", "runs = 1");
    let bench = Bench::of(&suite.replace("version = [\"--version\"]", ""));
    bench.go();
    for record in bench.records() {
        let cost = Metric::Cpu.of(&record, 1).expect("it is measured");
        assert!(cost > 0.5, "{record:?}");
    }
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn a_server_that_exits_under_load_is_a_failed_cell() {
    let command = [&["timeout", "-s", "KILL", "3"][..], &MEMCACHED].concat();
    let suite = suite_text(&command, "").replace("-n 100", "--test-time 600");
    let bench = Bench::of(&suite.replace("pipelines = [1, 5]", "pipelines = [1]"));
    bench.go_wrong();
    let records = bench.records();
    assert_eq!(records.len(), 2);
    for record in records {
        let reason = record.failure().unwrap();
        assert!(reason.contains("exited") || reason.contains("connections were lost"), "{reason}");
    }
}

#[test]
fn a_warm_up_phase_gives_no_result() {
    let suite = suite_text(&MEMCACHED, "").replace("runs = 2", "runs = 1");
    let sets = "-t 1 -c 2 -n allkeys --ratio 1:0 --key-maximum 999 --key-pattern P:P";
    let phase = format!("[[workload.phase]]\nname = \"sets\"\nwarm_up = true\nload = \"{sets}\"\n");
    let suite = suite.replace("[[workload.phase]]", &(phase + "[[workload.phase]]"));
    let bench =
        Bench::of(&suite.replace("--ratio 1:1 --key-maximum 99", "--ratio 0:1 --key-maximum 999"));
    let (progress, _) = bench.go();
    assert!(!progress.contains("sets"), "{progress}");
    let records = bench.records();
    assert_eq!(records.len(), 2, "one for each pipeline");
    for record in records {
        let CellResult::Measured(outcome) = record.result else { panic!("{record:?}") };
        assert_eq!(outcome.total().misses, 0, "the warm-up set all keys");
        let profile = record.latency_profile.unwrap();
        assert!(profile.min_micros > 0.0 && profile.latency(0.99) >= profile.min_micros);
        assert!(profile.quantiles.len() < 60 && profile.by_second.iter().sum::<u64>() == 200);
    }
}

#[test]
fn a_fill_counts_the_items_in_the_cache() {
    let command = [&MEMCACHED[..], &["-m", "{memory_mb}"]].concat();
    let suite = suite_text(&command, "").replace("memory_mb = 64", "memory_mb = 8");
    let line = suite.lines().find(|line| line.starts_with("load = ")).unwrap();
    let suite = suite.replace(line, "fill = { value_bytes = 1000 }");
    let bench = Bench::of(&suite.replace("runs = 2", "runs = 1"));
    let (progress, tables) = bench.go();
    // On a busy machine, the results contain further attempts at the cell. `records` returns only
    // the first attempt.
    let Some(Record { result: CellResult::Filled(filled), .. }) = bench.records().pop() else {
        panic!("{tables}")
    };
    // 8 MiB hold fewer than 8389 values of 1000 bytes.
    assert!((1000.0..8389.0).contains(&filled.items), "{filled:?}");
    assert_eq!(filled.limit_bytes, 8 << 20);
    assert!(progress.contains("[1/1]"), "one measurement for all pipelines: {progress}");
    assert!(tables.contains("| Items per GiB of limit | Items per GiB of RSS |"), "{tables}");
}
