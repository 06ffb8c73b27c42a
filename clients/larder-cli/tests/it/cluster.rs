//! Tests `larder cluster` with a real etcd and without cache servers. The tests themselves write
//! the records of the leaders to etcd. If etcd is not installed, the tests pass without checking
//! anything.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::etcd_server::{Server, TIMEOUT, start};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_etcd::EtcdShardMap;
use larder_replica::{CasRange, Coordinator, Process, Record, ShardMap};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

fn larder(server: &Server, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(["cluster", words.next().unwrap(), "--cluster", "demo", "--etcd", &server.url]);
    command.args(words);
    command
}

/// Runs a command until it exits. Returns the standard output if the command succeeds, and the
/// standard error otherwise.
fn run(server: &Server, line: &str) -> Result<String, String> {
    let output = larder(server, line).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[track_caller]
fn check_error(server: &Server, line: &str, error: &str) {
    assert_eq!(run(server, line), Err(format!("larder: {error}")), "{line}");
}

#[track_caller]
fn check(server: &Server, line: &str, text: &str) {
    assert_eq!(run(server, line).as_deref(), Ok(text), "{line}");
}

/// A command that runs concurrently with the test.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(server: &Server, line: &str) -> Self {
        let mut command = larder(server, line);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Returns the next line of output, or an empty string at the end of the output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until the command exits. Returns whether the command succeeded, and the standard
    /// error.
    fn end(mut self) -> (bool, String) {
        assert_eq!(self.line(), "");
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().success(), error.trim_end().to_owned())
    }
}

/// Methods that read and write the records of nodes in etcd.
trait FakeNodes {
    fn map(&self) -> EtcdShardMap;
    fn set_map(&self, map: &ShardMap);
    fn read_map(&self) -> ShardMap;
    fn finish_next_move(&self);
    fn lead(&self, group: &str, epoch: u32, leader: &Process);
    fn show_alive(&self, group: &str, process: &Process);
    fn put(&self, key: &[u8], value: &str);
    fn request(&self, path: &str, body: serde_json::Value);
}

impl FakeNodes for Server {
    fn map(&self) -> EtcdShardMap {
        EtcdShardMap::new(self.client(), "demo".to_owned())
    }

    fn set_map(&self, map: &ShardMap) {
        let revision = self.map().read().unwrap().revision;
        self.map().swap(revision, map, &[]).unwrap().expect("no other process changes it");
    }

    fn read_map(&self) -> ShardMap {
        self.map().read().unwrap().map.unwrap()
    }

    fn finish_next_move(&self) {
        let mut map = self.read_map();
        let next = map.next_migration().expect("a move is planned");
        map.finish(&next);
        self.set_map(&map);
    }

    fn lead(&self, group: &str, epoch: u32, leader: &Process) {
        let (leader, in_sync) = (leader.clone(), vec![leader.clone()]);
        let record =
            Record { epoch, leader, in_sync, cas: CasRange::starting_at(1), unclean_after: None };
        let mut group = self.group(group);
        let revision = group.read().unwrap().revision;
        group.swap(revision, &record).unwrap().expect("no other process changes it");
    }

    /// Writes the record without an etcd lease, because a lease might expire while the machine is
    /// busy.
    fn show_alive(&self, group: &str, process: &Process) {
        let key = format!("live/{group}/{}", process.node);
        self.put(key.as_bytes(), &format!("{:016x}", process.incarnation));
        assert!(self.group(group).read().unwrap().is_live(process));
    }

    fn put(&self, key: &[u8], value: &str) {
        let key = BASE64.encode([b"/larder/1/demo/", key].concat());
        self.request("put", serde_json::json!({"key": key, "value": BASE64.encode(value)}));
    }

    fn request(&self, path: &str, body: serde_json::Value) {
        ureq::post(format!("{}/v3/kv/{path}", self.url)).send(body.to_string()).unwrap();
    }
}

fn process(node: &str, incarnation: u64) -> Process {
    Process { node: node.to_owned(), incarnation }
}

/// Starts etcd and writes a cluster in which each group has a live leader and an even share of the
/// slots. A leader's name is `n` followed by the group's name. Returns `None` if etcd is not
/// installed.
fn start_cluster(groups: &[&str]) -> Option<Server> {
    let server = start()?;
    let mut map = ShardMap::single_group(groups[0]);
    for group in groups {
        start_leader(&server, group);
        if group != &groups[0] {
            map.plan_migration(group, None).unwrap();
            while let Some(next) = map.next_migration() {
                map.finish(&next);
            }
        }
    }
    server.set_map(&map);
    Some(server)
}

fn start_leader(server: &Server, group: &str) {
    let leader = process(&format!("n{group}"), 1);
    server.show_alive(group, &leader);
    server.lead(group, 1, &leader);
}

#[test]
fn moves_can_be_planned_and_cancelled() {
    let Some(server) = start_cluster(&["0"]) else { return };
    start_leader(&server, "1");
    check(&server, "cancel-moves", "no moves are planned");
    check(&server, "move --to 1 --no-wait", "2048 slots will move to group 1");
    let map = server.read_map();
    let targets: Vec<_> = map.targets().map(|(to, slots)| (to, slots.to_string())).collect();
    assert_eq!(targets, [("1", "2048-4095".to_owned())]);
    assert_eq!(map.slots_of("0").len(), 4096);
    check(&server, "cancel-moves", "cancelled the moves of 2048 slots");
    assert_eq!(server.read_map(), ShardMap::single_group("0"));
    check(&server, "move --to 1 --count 1 --no-wait", "1 slot will move to group 1");
    check(&server, "cancel-moves", "cancelled the moves of 1 slot");
    check(&server, "move --to 1 --count 7 --no-wait", "7 slots will move to group 1");
    server.finish_next_move();
    check(&server, "drain 0 --no-wait", "4089 slots will move away from group 0");
    server.finish_next_move();
    assert_eq!(server.read_map(), ShardMap::single_group("1"));
    check(&server, "drain 0", "group 0 has no slots and can be stopped");
}

#[test]
fn impossible_moves_are_refused() {
    let Some(server) = start() else { return };
    let no_map = "cluster demo has no shard map yet: its first leader creates one";
    for line in ["move --to 1", "drain 0", "cancel-moves"] {
        check_error(&server, line, no_map);
    }
    start_leader(&server, "0");
    server.set_map(&ShardMap::single_group("0"));
    let no_leader = "group 1 has no leader to import slots: start its nodes first";
    check_error(&server, "move --to 1", no_leader);
    server.lead("1", 1, &process("n1", 1));
    let not_alive = "leader n1 of group 1 is not alive, and only a live leader can import slots: wait for a new leader";
    check_error(&server, "move --to 1", not_alive);
    server.show_alive("1", &process("n1", 2));
    check_error(&server, "move --to 1", not_alive);
    assert_eq!(server.read_map(), ShardMap::single_group("0"), "nothing was planned");
    server.show_alive("1", &process("n1", 1));
    let even = "group 0 has 4096 slots, an even share or more: set --count";
    check_error(&server, "move --to 0", even);
    let too_many = "the other groups can give 4095 slots at most, because each keeps one: lower --count, or drain a \
                    group";
    check_error(&server, "move --to 1 --count 4096", too_many);
    let unknown = "no group 7: `larder cluster status` shows all groups";
    check_error(&server, "drain 7", unknown);
    check_error(&server, "drain 0", "no other group has slots: move some to another group first");
    run(&server, "move --to 1 --no-wait").unwrap();
    let under_way = "2048 slots have yet to move to group 1: wait for them, or use cancel-moves";
    check_error(&server, "move --to 0 --count 1", under_way);
    check_error(&server, "drain 1", under_way);
    // Now the group to which the slots would move has no live leader.
    server.finish_next_move();
    server.lead("1", 2, &process("n2", 1));
    check_error(&server, "drain 0", &not_alive.replace("n1", "n2"));
    assert!(run(&server, "move --to 1 --count 0").unwrap_err().contains("--count"));
}

#[test]
fn only_one_of_several_concurrent_plans_succeeds() {
    let Some(server) = start_cluster(&["0"]) else { return };
    let groups = ["1", "2", "3", "4"];
    groups.iter().for_each(|group| start_leader(&server, group));
    let commands: Vec<Running> =
        groups.map(|group| Running::start(&server, &format!("move --to {group} --no-wait"))).into();
    let mut planned = 0;
    for mut command in commands {
        match command.line() {
            line if line.starts_with("2048 slots will move to group ") => {
                planned += 1;
                assert!(command.end().0);
            }
            line => {
                assert_eq!(line, "");
                let (has_succeeded, error) = command.end();
                assert!(!has_succeeded && error.contains("have yet to move"), "{error}");
            }
        }
    }
    assert_eq!(planned, 1);
    assert_eq!(server.read_map().targets().count(), 1);
}

#[test]
fn progress_is_printed_until_all_slots_have_moved() {
    let Some(server) = start_cluster(&["0", "1"]) else { return };
    start_leader(&server, "2");
    let mut command = Running::start(&server, "move --to 2");
    assert_eq!(command.line(), "1365 slots will move to group 2");
    server.finish_next_move();
    let left = server.read_map().next_migration().unwrap().slots.len();
    assert_eq!(command.line(), format!("{left} slots left to move"));
    server.finish_next_move();
    assert_eq!(command.line(), "group 2 has 1365 slots");
    assert_eq!(command.end(), (true, String::new()));

    let mut command = Running::start(&server, "drain 2");
    assert_eq!(command.line(), "1365 slots will move away from group 2");
    server.finish_next_move();
    let left = server.read_map().next_migration().unwrap().slots.len();
    assert_eq!(command.line(), format!("{left} slots left to move"));
    server.finish_next_move();
    assert_eq!(command.line(), "group 2 has no slots and can be stopped");
    assert_eq!(command.end(), (true, String::new()));
}

#[test]
fn a_wait_for_cancelled_moves_fails() {
    let Some(server) = start_cluster(&["0", "1"]) else { return };
    start_leader(&server, "2");
    let mut command = Running::start(&server, "move --to 2");
    assert_eq!(command.line(), "1365 slots will move to group 2");
    server.finish_next_move();
    let left = server.read_map().next_migration().unwrap().slots.len();
    assert_eq!(command.line(), format!("{left} slots left to move"));
    check(&server, "cancel-moves", &format!("cancelled the moves of {left} slots"));
    let (has_succeeded, error) = command.end();
    let moved = 1365 - left;
    let prefix = format!("larder: the moves were cancelled: {moved} of 1365 slots moved; ");
    assert!(!has_succeeded && error.starts_with(&prefix), "{error}");
}

#[test]
fn the_status_shows_slots_if_there_is_a_map() {
    let Some(server) = start() else { return };
    ["0", "1"].iter().for_each(|group| start_leader(&server, group));
    let without = "group 0: n0 leads in epoch 1\n  \
                     n0  leader       clients -  members \n\
                   group 1: n1 leads in epoch 1\n  \
                     n1  leader       clients -  members";
    check(&server, "status", without);
    server.set_map(&ShardMap::single_group("0"));
    run(&server, "move --to 1 --count 1024 --no-wait").unwrap();
    let planned = "group 0: n0 leads in epoch 1\n  \
                     slots 0-4095 (4096)\n  \
                     n0  leader       clients -  members \n\
                   group 1: n1 leads in epoch 1\n  \
                     no slots\n  \
                     to import: 1024 slots\n  \
                     n1  leader       clients -  members";
    check(&server, "status", planned);
    server.finish_next_move();
    let moved = "group 0: n0 leads in epoch 1\n  \
                   slots 0-3071 (3072)\n  \
                   n0  leader       clients -  members \n\
                 group 1: n1 leads in epoch 1\n  \
                   slots 3072-4095 (1024)\n  \
                   n1  leader       clients -  members";
    check(&server, "status", moved);
}

#[test]
fn a_higher_epoch_of_the_same_leader_is_no_leadership_change() {
    let Some(server) = start() else { return };
    let (a, b) = (process("a", 1), process("b", 1));
    let mut group = server.group("0");
    let mut lead = |epoch, leader: &Process| {
        let (leader, in_sync) = (leader.clone(), vec![a.clone(), b.clone()]);
        let record =
            Record { epoch, leader, in_sync, cas: CasRange::starting_at(1), unclean_after: None };
        let revision = group.read().unwrap().revision;
        group.swap(revision, &record).unwrap().expect("no other process changes it");
    };
    [&a, &b].iter().for_each(|process| server.show_alive("0", process));
    lead(1, &a);
    let mut command = Running::start(&server, "transfer-leadership b");
    let wait_for_request = |epoch| {
        let start = Instant::now();
        let is_requested = || {
            let request = server.group("0").read().unwrap().requests.transfer;
            request
                .is_some_and(|request| request.epoch == epoch && request.to.as_deref() == Some("b"))
        };
        while !is_requested() {
            assert!(start.elapsed() < TIMEOUT, "no transfer request in epoch {epoch}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for_request(1);
    lead(2, &a);
    // The command detects the higher epoch, repeats its request and continues to wait.
    wait_for_request(2);
    lead(3, &b);
    assert_eq!(command.line(), "b leads in epoch 3");
    assert_eq!(command.end(), (true, String::new()));
}

#[test]
fn malformed_keys_do_not_hide_the_rest_of_the_status() {
    let Some(server) = start() else { return };
    server.put(b"groups/0", "{");
    check(
        &server,
        "status",
        "group 0: unknown leader\n  malformed value of /larder/1/demo/groups/0 in etcd",
    );
    ["1", "2"].iter().for_each(|group| start_leader(&server, group));
    let settings = r#"{"ack":"all"}"#;
    let values = [("nodes/1/n1", "{}"), ("live/2/n9", "g"), ("settings/2", settings)];
    values.iter().for_each(|(key, value)| server.put(key.as_bytes(), value));
    let stray: [&[u8]; 3] = [b"nodes/1/n1/x", b"a", b"live/2/\xff/\xff"];
    stray.iter().for_each(|key| server.put(key, ""));
    server.put(b"map", "[]");
    let lines = run(&server, "status").unwrap();
    let expected = "unexpected key \"/larder/1/demo/a\" in etcd\n\
                    unexpected key \"/larder/1/demo/live/2/\u{fffd}/\u{fffd}\" in etcd\n\
                    malformed value of /larder/1/demo/map in etcd\n\
                    unexpected key \"/larder/1/demo/nodes/1/n1/x\" in etcd\n\
                    group 0: unknown leader\n  \
                      malformed value of /larder/1/demo/groups/0 in etcd\n\
                    group 1: n1 leads in epoch 1\n  \
                      n1  leader       clients -  members   malformed value of /larder/1/demo/nodes/1/n1 in etcd\n\
                    group 2: n2 leads in epoch 1\n  \
                      malformed value of /larder/1/demo/settings/2 in etcd\n  \
                      n2  leader       clients -  members \n  \
                      n9  not alive    clients -  members   malformed value of /larder/1/demo/live/2/n9 in etcd";
    assert_eq!(lines, expected);
    // Planning moves requires the records of all groups.
    let error = run(&server, "move --to 1").unwrap_err();
    assert!(error.contains("/larder/1/demo/groups/0"), "{error}");
}

#[test]
fn the_status_as_json_has_the_same_contents() {
    let Some(server) = start_cluster(&["0"]) else { return };
    server.put(b"settings/0", r#"{"ack":"writes"}"#);
    let addresses = r#"{"clients":"127.0.0.1:1","members":"127.0.0.1:2"}"#;
    server.put(b"nodes/0/n1", addresses);
    server.put(b"a", "");
    let text = run(&server, "status --json").unwrap();
    let node = |name: &str, state: &str| {
        serde_json::json!({
            "name": name, "state": state, "clients": null, "members": null, "lag_seconds": null,
            "memory_bytes": null, "memory_limit_bytes": null, "version": null, "stats_error": null,
            "malformed_keys": [],
        })
    };
    let mut lost = node("n1", "not alive");
    lost["clients"] = "127.0.0.1:1".into();
    lost["members"] = "127.0.0.1:2".into();
    lost["stats_error"] = "Connection refused (os error 111)".into();
    let expected = serde_json::json!({
        "cluster": "demo",
        "groups": [{
            "name": "0", "leader": "n0", "leader_alive": true, "epoch": 1, "ack": "writes",
            "ack_for_all_nodes": true, "slots": "0-4095", "slot_count": 4096, "slots_to_import": 0,
            "nodes": [node("n0", "leader"), lost], "malformed_keys": [],
        }],
        "malformed_keys": ["unexpected key \"/larder/1/demo/a\" in etcd"],
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
    let line = "  n1  not alive    clients 127.0.0.1:1  members 127.0.0.1:2  \
                no statistics: Connection refused (os error 111)";
    assert!(run(&server, "status").unwrap().contains(line));
}

#[test]
fn a_node_is_forgotten_unless_it_is_alive_or_leads() {
    let Some(server) = start_cluster(&["0"]) else { return };
    let addresses = r#"{"clients":null,"members":"127.0.0.1:2"}"#;
    ["n0", "n1"].iter().for_each(|node| {
        server.put(format!("nodes/0/{node}").as_bytes(), addresses);
    });
    check_error(&server, "forget n0", "n0 is alive according to etcd: stop it first");
    server.show_alive("0", &process("n1", 7));
    check_error(&server, "forget n1", "n1 is alive according to etcd: stop it first");
    for node in ["n0", "n1"] {
        let key = BASE64.encode(format!("/larder/1/demo/live/0/{node}"));
        server.request("deleterange", serde_json::json!({"key": key}));
    }
    let leads =
        "n0 leads group 0 according to its record: wait until another node leads, or use promote";
    check_error(&server, "forget n0", leads);
    check(&server, "forget n1", "n1 is no longer a node of group 0");
    check(&server, "forget n1", "etcd has no node n1 in group 0");
    check(&server, "forget n9", "etcd has no node n9 in group 0");
    let status = run(&server, "status").unwrap();
    assert!(status.contains("  n0  ") && !status.contains("  n1  "), "{status}");
}
