//! Loads on several servers that share the keys.

use crate::common::broken_server::{Action, BrokenServer, Request};
use crate::common::{self, ReservedPort, Server, arguments, load};
use larder_bench::{Measured, bench};
use md5::{Digest, Md5};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

const DISTRIBUTIONS: [&str; 3] = ["modula", "ketama", "ketama-weighted"];

fn list(ports: &[u16]) -> String {
    let servers: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    servers.join(",")
}

fn three() -> ([Server; 3], Vec<u16>) {
    let servers = [(); 3].map(|()| Server::memcached());
    let ports = servers.iter().map(|server| server.port).collect();
    (servers, ports)
}

/// Computes Jenkins's one-at-a-time hash, as in its published description.
fn one_at_a_time(key: &str) -> u32 {
    let mut hash: u64 = 0;
    let low = |number: u64| number & 0xffff_ffff;
    for byte in key.bytes() {
        hash = low(hash + u64::from(byte));
        hash = low(hash + (hash << 10));
        hash ^= hash >> 6;
    }
    hash = low(hash + (hash << 3));
    hash ^= hash >> 11;
    u32::try_from(low(hash + (hash << 15))).unwrap()
}

fn md5_word(text: &str, word: usize) -> u32 {
    let digest = Md5::digest(text.as_bytes());
    (0..4).map(|byte| u32::from(digest[4 * word + byte]) << (8 * byte)).sum()
}

/// Returns the port of the server that owns a key.
fn port_of(key: &str, distribution: &str, ports: &[u16]) -> u16 {
    let mut ring = BTreeMap::new();
    let hash = match distribution {
        "modula" => return ports[one_at_a_time(key) as usize % ports.len()],
        "ketama" => {
            for (port, number) in ports.iter().flat_map(|port| (0..100).map(move |n| (port, n))) {
                ring.insert(one_at_a_time(&format!("127.0.0.1:{port}-{number}")), *port);
            }
            one_at_a_time(key)
        }
        _ => {
            for (port, number) in ports.iter().flat_map(|port| (0..40).map(move |n| (port, n))) {
                for word in 0..4 {
                    ring.insert(md5_word(&format!("127.0.0.1:{port}-{number}"), word), *port);
                }
            }
            md5_word(key, 0)
        }
    };
    let (_, port) = ring.range(hash..).chain(ring.iter()).next().unwrap();
    *port
}

/// Returns for each key whether the server has it.
fn presence(port: u16, keys: &[String]) -> Vec<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
    let mut has = |key: &String| {
        stream.write_all(format!("touch {key} 0\r\n").as_bytes()).unwrap();
        answers.next().unwrap().unwrap().starts_with(b"TOUCHED")
    };
    keys.iter().map(&mut has).collect()
}

/// Checks that each due request is in the histogram, and that the sums of the servers' figures
/// equal the figures of the run. Returns the number of due requests.
fn check_all_is_accounted_for(measured: &Measured) -> u64 {
    let total = measured.outcome.total();
    let due = total.requests + total.errors + total.never_answered + total.never_sent;
    assert_eq!(measured.histograms["total"].len(), due);
    let sum = |figure: fn(&larder_bench::ServerOutcome) -> u64| -> u64 {
        measured.outcome.servers.iter().map(figure).sum()
    };
    assert_eq!(sum(|server| server.requests), total.requests);
    assert_eq!(
        (sum(|server| server.hits), sum(|server| server.misses)),
        (total.hits, total.misses)
    );
    assert_eq!(sum(|server| server.lost_connections), measured.outcome.lost_connections);
    due
}

#[test]
fn each_key_is_on_its_server_and_nowhere_else() {
    let keys: Vec<String> = (0..300).map(|number| format!("memtier-{number}")).collect();
    for (distribution, protocol, depth) in [
        (DISTRIBUTIONS[0], "text", "--pipeline 1"),
        (DISTRIBUTIONS[1], "meta", "--pipeline 7"),
        (DISTRIBUTIONS[2], "binary", "--pipeline 7 --sliding"),
    ] {
        let (_servers, ports) = three();
        let measured = load(&format!(
            "-s {} --distribution {distribution} -P {protocol} {depth} -t 2 -c 3 -n 1100 \
             --ratio 1:9 --key-maximum 299 --fill --verify --distinct-client-seed \
             --data-size-range 0-3000",
            list(&ports)
        ));
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
        assert_eq!(check_all_is_accounted_for(&measured), 6600);
        let total = measured.outcome.total();
        assert_eq!((total.hits, total.misses), (5940, 0), "{distribution}");
        assert_eq!(measured.outcome.connections, 18);
        for port in &ports {
            let expected: Vec<bool> =
                keys.iter().map(|key| port_of(key, distribution, &ports) == *port).collect();
            assert_eq!(presence(*port, &keys), expected, "{distribution}");
            assert!(expected.contains(&true) && expected.contains(&false), "{distribution}");
        }
    }
}

#[test]
fn gets_of_several_keys_are_divided_by_server() {
    for protocol in ["text", "meta", "binary"] {
        let (_servers, ports) = three();
        let line = "-t 1 -c 2 -n 200 --multi-get 8 --ratio 1:3 --key-maximum 99 --fill --verify";
        let line = format!("-s {} -P {protocol} --pipeline 3 {line}", list(&ports));
        let measured = load(&line);
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
        check_all_is_accounted_for(&measured);
        let get = &measured.outcome.commands["get"];
        assert_eq!((get.hits, get.misses), (300 * 8, 0), "{protocol}");
        assert!((600..=900).contains(&get.requests), "{protocol}: {}", get.requests);
    }
}

#[test]
fn redis_servers_are_loaded_too() {
    let servers = [Server::redis(), Server::redis()];
    let ports = [servers[0].port, servers[1].port];
    let line = "-P resp -t 1 -c 2 -n 100 --key-maximum 99 --fill --verify --multi-get 4";
    let measured = load(&format!("-s {} {line}", list(&ports)));
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    assert_eq!(measured.outcome.commands["get"].misses, 0);
}

#[test]
fn commands_of_the_users_own_go_to_the_server_of_their_key() {
    let (_servers, ports) = three();
    let settings = |commands: &[&str]| {
        let servers = list(&ports);
        let words = ["-s", &servers, "-t", "1", "-c", "2", "-n", "100", "--key-maximum", "50"];
        common::parse_words(&[&words, commands].concat()).unwrap().settings()
    };
    let commands = ["--command", "set __key__ 0 0 __data__", "--command", "touch __key__ 60"];
    let measured = larder_bench::run(&settings(&commands).unwrap(), None, &mut |_| ()).unwrap();
    assert_eq!(check_all_is_accounted_for(&measured), 200);
    for command in ["version", "mset __key__ 1 __key__ 2"] {
        let error = settings(&["--command", command]).unwrap_err().to_string();
        assert!(error.contains("one __key__"), "{error}");
    }
}

/// Checks that the complete key, including the affixes in the command, determines the server, as in
/// a client library.
#[test]
fn a_key_with_affixes_is_routed_by_its_sent_form() {
    let keys: Vec<String> = (0..100).map(|number| format!("a-memtier-{number}-z")).collect();
    for distribution in DISTRIBUTIONS {
        let (_servers, ports) = three();
        let servers = list(&ports);
        let words = ["-s", &servers, "--distribution", distribution, "-t", "1", "-c", "1"];
        let load = ["-n", "100", "--key-maximum", "99", "--command-key-pattern", "S"];
        let command = ["--command", "set a-__key__-z 0 0 __data__"];
        let words = [&words[..], &command, &load].concat();
        let settings = common::parse_words(&words).unwrap().settings().unwrap();
        let measured = larder_bench::run(&settings, None, &mut |_| ()).unwrap();
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
        for port in &ports {
            let expected: Vec<bool> =
                keys.iter().map(|key| port_of(key, distribution, &ports) == *port).collect();
            assert_eq!(presence(*port, &keys), expected, "{distribution}");
        }
    }
}

#[test]
fn an_open_loop_counts_all_that_was_due() {
    let (_servers, ports) = three();
    for (line, possible) in [
        ("--rate 300", 299..=301),
        ("--rate 300 --pipeline 5 --arrivals poisson", 150..=450),
        // Each of the four clients sends bursts of two requests.
        ("--rate-limiting 75", 296..=312),
        ("--rate-limiting 1", 4..=4),
    ] {
        let line = format!("-s {} -t 2 -c 2 --test-time 1 {line}", list(&ports));
        let measured = load(&line);
        let due = check_all_is_accounted_for(&measured);
        assert_eq!(measured.outcome.offered.unwrap().due, due);
        assert!(possible.contains(&due), "{line}: {due}");
        // Allow unsent requests, because a busy machine may send some of them too late.
        let faults = measured.outcome.fault_count();
        assert_eq!(faults, measured.outcome.total().never_sent, "{:?}", measured.outcome.faults);
        assert!(faults < due / 2, "{faults}");
    }
}

/// Returns a server that answers 50 requests and then closes its connections.
fn fragile() -> BrokenServer {
    BrokenServer::start(|request: &Request<'_>| match request.number {
        ..50 => Action::Send(request.right()),
        _ => Action::Close,
    })
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn a_run_goes_on_without_a_server_that_is_lost() {
    for (line, due) in [
        ("-n 1000", Some(3000)),
        ("-n 1000 --pipeline 6 --sliding", Some(3000)),
        ("--rate 3000 --test-time 1", Some(3000)),
        ("--rate-limiting 1000 --test-time 1", Some(3000)),
        ("--test-time 1 --pipeline 4", None),
    ] {
        let (sound, fragile) = ([Server::memcached(), Server::memcached()], fragile());
        let ports = [sound[0].port, fragile.port, sound[1].port];
        let line = format!("-s {} -t 1 -c 3 --ratio 1:1 --key-maximum 999 {line}", list(&ports));
        let measured = load(&line);
        let outcome = &measured.outcome;
        let all = check_all_is_accounted_for(&measured);
        assert!(due.is_none_or(|due| all == due), "{line}: {all}");
        assert_eq!((outcome.ended_early.as_ref(), outcome.lost_connections), (None, 3), "{line}");
        assert_eq!(outcome.servers[1].lost_connections, 3);
        // Accept any error, because either a read or a write may be the first to detect the closed
        // connection.
        let lost = format!("connection lost to 127.0.0.1:{}: ", fragile.port);
        let faults = outcome.faults.iter().filter(|(fault, _)| fault.starts_with(&lost));
        assert_eq!(faults.map(|(_, times)| times).sum::<u64>(), 3, "{:?}", outcome.faults);
        assert_eq!(outcome.faults["never sent"], outcome.total().never_sent);
        assert!(outcome.total().never_sent > 100, "{line}: {}", outcome.total().never_sent);
        for server in [0, 2] {
            assert!(outcome.servers[server].requests > 300, "{line}: {:?}", outcome.servers);
        }
        assert_eq!(outcome.servers[1].requests, 50);
    }
}

/// Requests for a lost server count with their waiting time until the end of the run.
#[test]
fn requests_for_a_lost_server_count_with_their_waiting_time() {
    let (sound, fragile) = (Server::memcached(), fragile());
    let ports = [sound.port, fragile.port];
    let line = format!("-s {} -t 1 -c 1 --rate 1000 --test-time 2", list(&ports));
    let measured = load(&line);
    let late = measured.histograms["total"].count_between(100_000_000, u64::MAX);
    assert!(late > measured.outcome.total().never_sent * 8 / 10, "{late}");
}

#[test]
fn a_run_ends_when_all_servers_are_lost() {
    for line in ["-n 100000", "--test-time 60", "--test-time 60 --rate 1000"] {
        let servers = [fragile(), fragile()];
        let ports = [servers[0].port, servers[1].port];
        let measured = load(&format!("-s {} -t 2 -c 2 {line}", list(&ports)));
        check_all_is_accounted_for(&measured);
        let reason = measured.outcome.ended_early.unwrap();
        assert!(reason.contains("all connections were lost"), "{reason}");
        assert!(reason.contains(&format!("127.0.0.1:{}", ports[0])), "{reason}");
        assert_eq!(measured.outcome.lost_connections, 8);
    }
}

/// All keys belong to the lost server. The clients continue with a pause after each request.
#[test]
fn clients_without_a_reachable_key_go_on_slowly() {
    let servers = [fragile(), BrokenServer::start(|request| Action::Send(request.right()))];
    let ports = [servers[0].port, servers[1].port];
    let number = (0..).find(|n| port_of(&format!("memtier-{n}"), "modula", &ports) == ports[0]);
    let number = number.unwrap();
    let line = format!("--key-minimum {number} --key-maximum {number} --test-time 1");
    let measured = load(&format!("-s {} -t 1 -c 2 {line}", list(&ports)));
    check_all_is_accounted_for(&measured);
    let (outcome, total) = (&measured.outcome, measured.outcome.total());
    assert_eq!(outcome.ended_early, None);
    assert!((10..=2100).contains(&total.never_sent), "{}", total.never_sent);
}

#[test]
fn clients_that_are_added_connect_to_each_server() {
    let right = |request: &Request<'_>| Action::Send(request.right());
    let servers = [(); 3].map(|()| BrokenServer::start(right));
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    let steps = "--clients-start 1 --clients-step 2 --step-duration 0.2 --test-time 1";
    let measured = load(&format!("-s {} -t 1 -c 5 {steps}", list(&ports)));
    check_all_is_accounted_for(&measured);
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    for server in &servers {
        // The additional connection queries the statistics of the flash tier.
        assert_eq!(server.accepted.load(Ordering::Relaxed), 5 + 1);
    }
}

#[test]
fn an_unreachable_server_is_named_before_the_run() {
    let server = Server::memcached();
    let reserved = ReservedPort::new();
    let free = reserved.port;
    let settings = arguments(&format!("-s {} -c 1", list(&[server.port, free]))).settings();
    let error = larder_bench::run(&settings.unwrap(), None, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{free}")), "{error}");
}

#[test]
fn results_are_by_server() {
    let (_servers, ports) = three();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let line = "-t 1 -c 2 -n 500 --ratio 1:1 --key-maximum 99 -x 3 -q --distribution ketama";
    let line = format!("-s {} {line} --json-out-file {}", list(&ports), path.display());
    let mut table = Vec::new();
    bench(&arguments(&line), &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(
        table.contains("3 servers (ketama): 1 thread x 2 clients x 3 connections = 6"),
        "{table}"
    );
    assert_eq!(json["settings"]["servers"].as_array().unwrap().len(), 3);
    for results in json["runs"].as_array().unwrap().iter().chain([&json["median"]]) {
        let servers = results["servers"].as_array().unwrap();
        let sum = |name: &str| servers.iter().map(|server| server[name].as_u64().unwrap()).sum();
        let total = &results["commands"]["total"];
        for name in ["requests", "hits", "misses"] {
            assert_eq!(total[name].as_u64(), Some(sum(name)), "{name}");
        }
    }
    for (number, port) in ports.iter().enumerate() {
        let address = format!("127.0.0.1:{port}");
        let version = json["server_versions"][&address].as_str().unwrap();
        assert!(table.contains(&format!("server {address}: {version}\n")), "{table}");
        assert!(table.lines().any(|row| row.starts_with(&format!("{address} "))), "{table}");
        let server = &json["median"]["servers"][number];
        assert_eq!(server["address"], address);
        assert!(server["cost"]["rss_after"].as_u64().unwrap() > 0, "{server}");
    }
}

#[test]
fn names_and_ports_of_servers() {
    let addresses = |line: &str| -> Vec<String> {
        let settings = arguments(line).settings().unwrap();
        settings.servers.iter().map(|server| server.address.to_string()).collect()
    };
    assert_eq!(addresses("-s 127.0.0.1:5"), ["127.0.0.1:5"]);
    assert_eq!(addresses("-s ::1"), ["[::1]:11211"]);
    assert_eq!(addresses("-s [::1]:7 -p 9"), ["[::1]:7"]);
    let several = addresses("-h 127.0.0.1,127.0.0.2:22,[::1],[::1]:44 -p 33");
    assert_eq!(several, ["127.0.0.1:33", "127.0.0.2:22", "[::1]:33", "[::1]:44"]);
    assert_eq!(addresses("-P resp -s 127.0.0.1,127.0.0.2")[1], "127.0.0.2:6379");
}

#[test]
fn options_that_several_servers_would_ignore_are_refused() {
    for (line, named) in [
        ("-s 127.0.0.1,", "--server 127.0.0.1,"),
        ("-s 127.0.0.1:x,127.0.0.2", "--server 127.0.0.1:x"),
        ("-s [::1,127.0.0.2", "--server [::1"),
        ("-s 127.0.0.1,127.0.0.1:11211", "each server once"),
        ("-s 127.0.0.1 --distribution ketama", "--distribution ketama"),
        ("-s 127.0.0.1,127.0.0.2 --pid 1", "--pid 1"),
        ("-s 127.0.0.1,127.0.0.2 -S /tmp/socket", "--unix-socket /tmp/socket"),
        ("-s 127.0.0.1,127.0.0.2 --client-stats x", "--client-stats x"),
        ("-s 127.0.0.1,127.0.0.2 --reconnect-interval 5", "--reconnect-interval 5"),
    ] {
        let error = arguments(line).settings().unwrap_err().to_string();
        assert!(error.contains(named), "{line}: {error}");
    }
}
