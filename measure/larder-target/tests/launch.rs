//! Starting and stopping servers for measurements: their cores, the measured process, and their
//! exit.
#![cfg(target_os = "linux")]

use larder_target::launch::{CommandLine, Launch, LaunchError, Launched};
use larder_target::template::Values;
use larder_target::{CoreSet, Protocol, ServerAddress, process};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

fn start(line: &str) -> Result<Launched, LaunchError> {
    let (cores, _) = CoreSet::halves().unwrap();
    let launch = Launch {
        command: CommandLine::Shell(line),
        values: Values::default().with_memory(64),
        port: None,
        protocol: Protocol::Text,
        cores: Some(&cores),
        log: None,
        disk: None,
    };
    launch.start()
}

/// Returns the processes with this word in their command lines.
fn with_word(word: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let command = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline"));
    processes.filter_map(|entry| command(entry).ok()).filter(|line| line.contains(word)).collect()
}

/// Waits until a condition holds.
fn until(condition: &str, holds: impl Fn() -> bool) {
    let start_time = Instant::now();
    while !holds() {
        assert!(start_time.elapsed() < Duration::from_secs(30), "{condition}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a word that occurs in no other command line.
fn word(of: &str) -> String {
    format!("launch-test-{of}-{}", std::process::id())
}

const MEMCACHED: &str = "memcached -u root -U 0 -s {socket} -m {memory_mb}";

#[test]
fn a_server_is_started_again_with_its_directories() {
    let line = "sh -c 'echo x >> {shm}/starts; exec memcached -u root -U 0 -l 127.0.0.1 -p {port}'";
    let mut server = start(line).unwrap();
    let (address, pid) = (server.address().clone(), server.pid());
    let shm = format!("/dev/shm/larder-{}-", std::process::id());
    let starts = || {
        let folders = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path());
        let mut own =
            folders.filter(|path| path.to_str().is_some_and(|path| path.starts_with(&shm)));
        own.find_map(|folder| std::fs::read_to_string(folder.join("starts")).ok())
    };
    assert_eq!(starts().as_deref(), Some("x\n"));
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGUSR1] {
        let restarted = server.restart(signal, Duration::from_millis(30)).unwrap();
        assert!(restarted.started - restarted.ended >= Duration::from_millis(30));
        until("the server listens", || process::find(&address).is_some());
        assert_eq!(server.exit_report(), None, "{signal}");
    }
    assert_ne!(server.pid(), pid);
    assert_eq!(starts().unwrap().lines().count(), 4);
    server.stop();
    assert_eq!(starts(), None);
}

#[test]
fn a_server_runs_on_its_cores_and_is_stopped() {
    let mut server = start(MEMCACHED).unwrap();
    let (cores, _) = CoreSet::halves().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    assert_eq!(list.unwrap().trim().parse::<CoreSet>().unwrap(), cores);
    let ServerAddress::Unix(path) = server.address().clone() else { panic!("{server:?}") };
    assert!(path.exists());
    assert_eq!(process::find(server.address()), Some(server.pid()));
    assert_eq!(server.exit_report(), None);
    server.stop();
    assert!(!path.parent().unwrap().exists());
    assert!(server.exit_report().is_some());
}

/// Returns a script that starts memcached, a helper, and a helper that leaves the process group.
/// All three survive the exit of the script.
fn script(word: &str) -> String {
    let helper = format!("sh -c \"trap : TERM; while :; do sleep 0.05; done\" {word}");
    format!("sh -c '{helper} & setsid {helper} & {MEMCACHED} -z {word} & wait'")
        .replace("-z ", "-P /tmp/")
}

#[test]
fn a_script_ends_with_all_that_it_started() {
    let word = word("script");
    let server = start(&script(&word)).unwrap();
    until("all four run", || with_word(&word).len() >= 4);
    let owner = process::find(server.address()).unwrap();
    assert!(owner != server.pid() && process::descends(owner, server.pid()));
    drop(server);
    assert_eq!(with_word(&word), Vec::<String>::new());
}

#[test]
fn the_costs_of_a_script_are_those_of_its_programs() {
    let server = start(&script(&word("costs"))).unwrap();
    let owner = process::find(server.address()).unwrap();
    let (all, one) = (process::usage(server.pid()).unwrap(), process::usage(owner).unwrap());
    assert!(all.rss_bytes > one.rss_bytes, "{all:?} {one:?}");
    let secs = || process::usage(server.pid()).map(|usage| usage.user_secs + usage.system_secs);
    let before = secs().unwrap();
    // The helpers start programs that exit before the test reads the time.
    until("their time counts", || secs().unwrap() > before + 0.02);
}

#[test]
fn a_server_that_leaves_its_first_process_has_not_exited() {
    let word = word("daemon");
    let line = format!("sh -c '{MEMCACHED} -P /tmp/{word} & sleep 0.3'");
    let mut server = start(&line).unwrap();
    until("the first process has exited", || process::find(server.address()) == Some(server.pid()));
    assert_eq!(server.exit_report(), None);
    assert!(process::usage(server.pid()).unwrap().rss_bytes > 0);
    server.stop();
    assert_eq!(with_word(&word), Vec::<String>::new());
}

#[test]
fn a_stopped_process_ends_too() {
    use nix::sys::signal::{Signal, kill};
    let mut server = start(MEMCACHED).unwrap();
    let pid = server.pid();
    kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    let start_time = Instant::now();
    server.stop();
    assert!(
        start_time.elapsed() < Duration::from_secs(5),
        "the stopped process is continued and exits"
    );
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

/// Does nothing unless the next test runs this test in a separate process. In that process, starts
/// a server and waits until the next test kills the process.
#[test]
fn a_launcher() {
    if let Ok(word) = std::env::var("LAUNCHER") {
        let _server = start(&script(&word)).unwrap();
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn nothing_is_left_of_a_server_whose_launcher_is_killed() {
    let word = word("killed");
    let mut launcher = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_launcher", "--nocapture"])
        .env("LAUNCHER", &word)
        .spawn()
        .unwrap();
    until("all four run", || with_word(&word).len() >= 4);
    let folder = std::env::temp_dir().join(format!("larder-{}-0", launcher.id()));
    assert!(folder.exists());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    until("all have ended", || with_word(&word).is_empty());
    until("the directory is removed", || !folder.exists());
}
