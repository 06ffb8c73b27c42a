//! The command-line options, and the messages for invalid options.

use crate::common::{Scratch, Server, TIMEOUT, larderd, stderr, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

fn asked(options: &[&str], request: &str) -> String {
    let all = [&["-t", "1"], options].concat();
    String::from_utf8(Server::larderd(&all).ask(request.as_bytes())).unwrap()
}

/// Starts larderd with only these options.
fn run(options: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    Server::spawn(Scratch::new("options"), command.args(options))
}

#[test]
fn short_and_long_names_are_equivalent() {
    let settings = |options: &[&str]| {
        let page = asked(options, "stats settings\r\n");
        let own = |line: &&str| !line.contains("inter") && !line.contains("port");
        page.lines().filter(own).collect::<Vec<_>>().join("\n")
    };
    let short = ["-m", "32", "-c", "77", "-b", "55", "-I", "2m", "-R", "9", "-C", "-F", "-M", "-v"];
    let long = [
        "--memory-limit=32",
        "--conn-limit=77",
        "--listen-backlog=55",
        "--max-item-size=2m",
        "--max-reqs-per-event=9",
        "--disable-cas",
        "--disable-flush-all",
        "--disable-evictions",
        "--verbose",
    ];
    let shown = settings(&short);
    assert_eq!(shown, settings(&long));
    for line in [
        "maxbytes 33554432",
        "maxconns 77",
        "evictions off",
        "cas_enabled no",
        "tcp_backlog 55",
        "item_size_max 2097152",
        "flush_enabled no",
        "reqs_per_event 9",
        "verbosity 1",
    ] {
        assert!(shown.contains(&format!("STAT {line}")), "{line} in\n{shown}");
    }
}

#[test]
fn the_size_exponent_is_shown_with_the_segment_engine() {
    for (options, shown) in [
        (&[][..], Some("0.7")),
        (&["--size-exponent", "0"], Some("0")),
        (&["--size-exponent", "0.25"], Some("0.25")),
        (&["--size-exponent=1"], Some("1")),
        (&["--engine", "moka"], None),
    ] {
        let page = asked(options, "stats settings\r\n");
        let line = page.lines().find_map(|line| line.strip_prefix("STAT size_exponent "));
        assert_eq!(line, shown, "{options:?}");
    }
}

#[test]
fn a_listener_can_have_its_own_dialect() {
    let listen = "proto[ascii]:127.0.0.1,proto[binary]:tag[b]:127.0.0.1;proto[negotiating]:[::1]";
    let server = Server::larderd(&["-B", "ascii", "-l", listen]);
    server.port();
    let ports = server.scratch.read("ports");
    let version = [&[0x80, 0x0b], &[0; 22][..]].concat();
    let spoken = |line: &str| {
        let (family, port) = line.split_once(": ").unwrap();
        let host = if family.ends_with('6') { "::1" } else { "127.0.0.1" };
        let port = port.parse().unwrap();
        [b"mn\r\n".as_slice(), &version].map(|request| !ask((host, port), request).is_empty())
    };
    let spoken: Vec<[bool; 2]> = ports.lines().map(spoken).collect();
    // The first listener's entry in `-l` names no dialect.
    assert_eq!(spoken, [[true, false], [true, false], [false, true], [true, true]]);
}

/// Sends a request, and returns all bytes that the server sends until it closes the connection.
fn ask(address: (&str, u16), request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_dialect_without_logins_is_refused_when_logins_are_required() {
    let scratch = Scratch::new("dialects");
    let passwords = scratch.file("passwords", "user:password\n");
    for options in [
        ["-Y", &passwords, "-l", "proto[binary]:127.0.0.1"].as_slice(),
        &["-S", "--sasl-pwdb", &passwords, "-l", "proto[ascii]:127.0.0.1"],
        &["-l", "proto[resp3]:127.0.0.1"],
    ] {
        let output = larderd(&[&["-p", "-1"], options].concat());
        let said = stderr(&output);
        assert!(output.status.code() == Some(71) && said.contains("proto["), "{options:?}: {said}");
        let checked = larderd(&[&["--check-config"], options].concat());
        assert_eq!((checked.status.code(), stderr(&checked)), (Some(71), said), "{options:?}");
    }
}

#[test]
fn an_unwritable_port_file_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-p", "-1", "-l", "127.0.0.1"]).env("MEMCACHED_PORT_FILENAME", "/nowhere/ports");
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert!(output.status.code() == Some(71) && said.contains("=/nowhere/ports: "), "{said}");
    assert!(said.starts_with("MEMCACHED_PORT_FILENAME"), "{said}");
}

#[test]
fn options_without_a_usable_address_are_refused() {
    for (options, status) in [
        (&["-p", "0"][..], 64),
        (&["-p", "0", "-l", "127.0.0.1:1"], 64),
        (&["-p", "0", "-l", "proto[resp]:*"], 64),
        (&["-p", "-1", "-l", ""], 71),
        (&["-p", "-1", "-l", "127.0.0.1:65536"], 71),
        (&["-p", "-1", "-l", "mtls:127.0.0.1"], 64),
    ] {
        let output = larderd(options);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", stderr(&output));
        let checked = larderd(&[&["--check-config"], options].concat());
        assert_eq!(checked.status.code(), Some(status), "{options:?}");
        assert_eq!(stderr(&checked), stderr(&output), "{options:?}");
    }
}

#[test]
fn addresses_of_the_gateway_are_checked_before_the_start() {
    for options in [
        ["--http-listen", "127.0.0.1:port"].as_slice(),
        &["--grpc-listen", "127.0.0.1:65536"],
        &["--grpc-listen", "mtls:127.0.0.1:0"],
        &["--metrics-listen", "[::1]:"],
    ] {
        let output = larderd(&[&["-p", "-1"], options].concat());
        let said = stderr(&output);
        assert!(
            output.status.code() == Some(71) && said.contains(options[1]),
            "{options:?}: {said}"
        );
        let checked = larderd(&[&["--check-config"], options].concat());
        assert_eq!((checked.status.code(), stderr(&checked)), (Some(71), said), "{options:?}");
    }
    let right = ["--http-listen", "[::1]:0", "--grpc-listen", "0", "--metrics-listen", "localhost"];
    assert!(larderd(&[&["--check-config"], right.as_slice()].concat()).status.success());
}

/// Fills a cache with items of 100 B and 20 kB. Returns how many items of each size remain.
fn left_of_two_sizes(size_exponent: &str) -> (usize, usize) {
    let small = |i: usize| format!("set s{i} 0 0 100\r\n{}\r\n", "s".repeat(100));
    let large = |i: usize| format!("set l{i} 0 0 20000\r\n{}\r\n", "l".repeat(20_000));
    let mut requests: String = (0..1000)
        .map(|i| (0..20).map(|j| small(20 * i + j)).collect::<String>() + &large(i))
        .collect();
    (0..20_000).for_each(|i| requests += &format!("mg s{i} k\r\n"));
    (0..1000).for_each(|i| requests += &format!("mg l{i} k\r\n"));
    let answers = asked(&["-m", "8", "--size-exponent", size_exponent], &requests);
    let count = |start| answers.lines().filter(|line| line.starts_with(start)).count();
    (count("HD ks"), count("HD kl"))
}

#[test]
fn a_larger_size_exponent_keeps_more_items() {
    let (ignored, counted) = (left_of_two_sizes("0"), left_of_two_sizes("1"));
    assert!(counted.0 > ignored.0 && counted.1 < ignored.1, "{ignored:?}, {counted:?}");
}

#[test]
fn disabled_commands_are_refused_like_in_memcached() {
    let flush = asked(&["-F"], "flush_all\r\n");
    assert_eq!(flush, "CLIENT_ERROR flush_all not allowed\r\n");
    let cas = asked(&["-C"], "set a 0 0 1\r\n1\r\ngets a\r\n");
    assert_eq!(cas, "STORED\r\nVALUE a 0 1 0\r\n1\r\nEND\r\n");
    let large = asked(&["-I", "1k"], &format!("set a 0 0 2000\r\n{}\r\n", "x".repeat(2000)));
    assert_eq!(large, "SERVER_ERROR object too large for cache\r\n");
    let value = "x".repeat(500_000);
    let fill: String = (0..40).map(|i| format!("set k{i} 0 0 500000\r\n{value}\r\n")).collect();
    let full = asked(&["-M", "-m", "8"], &fill);
    assert!(full.ends_with("SERVER_ERROR out of memory storing object\r\n"), "{full}");
    assert!(full.starts_with("STORED\r\n"), "{full}");
}

#[test]
fn the_smallest_limit_still_serves() {
    let value = "x".repeat(1000);
    let fill: String = (0..3000).map(|i| format!("set k{i} 0 0 1000\r\n{value}\r\n")).collect();
    let large = "x".repeat(400_000);
    let then = format!("get k2999\r\nset l 0 0 400000\r\n{large}\r\nget l\r\n");
    // Other architectures may have larger pages, and thus larger segments.
    let limit = if cfg!(target_arch = "x86_64") { "1" } else { "3" };
    let answers = asked(&["-m", limit, "-I", "512k", "-t", "4"], &(fill + &then));
    let (stored, then) = answers.split_at(3000 * "STORED\r\n".len());
    assert_eq!(stored, "STORED\r\n".repeat(3000));
    let found = format!("VALUE k2999 0 1000\r\n{value}\r\nEND\r\n");
    let large = format!("STORED\r\nVALUE l 0 400000\r\n{large}\r\nEND\r\n");
    assert_eq!(then, found + &large);
}

#[test]
fn several_addresses_each_have_a_listener() {
    // Not every machine has IPv6.
    let third = TcpListener::bind("[::1]:0").map_or("127.0.0.3", |_| "[::1]");
    let server = run(&["-p", "-1", "-l", "127.0.0.1,127.0.0.2", "-l", third, "-t", "1"]);
    let ports = server.ports();
    assert_eq!(ports.len(), 3, "{ports:?}");
    for (host, port) in ["127.0.0.1", "127.0.0.2", third].iter().zip(ports) {
        let address = format!("{host}:{port}");
        assert!(TcpStream::connect(&address).is_ok(), "{address}");
    }
}

#[test]
fn a_unix_socket_has_its_mode_and_nothing_else_listens() {
    let scratch = Scratch::new("unix");
    let socket = scratch.path("socket");
    let server = run(&["-s", socket.to_str().unwrap(), "-a", "0640", "-t", "1"]);
    wait_for("socket", || UnixStream::connect(&socket).is_ok());
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    assert_eq!(server.scratch.read("ports"), "");
}

#[test]
fn invalid_options_are_refused_with_a_message() {
    for (options, status, said) in [
        (&["--no-such-option"][..], 1, "--no-such-option"),
        (&["-m", "-5"], 1, "'-5' for '--memory-limit"),
        (&["-m", "0"], 64, "must be 1 to 16777216 MiB (-m)"),
        (&["-m", "1"], 64, "Cannot set item size limit higher than 1/2 of memory max."),
        (&["-m", "999999999"], 64, "must be 1 to 16777216 MiB (-m)"),
        (&["-e", "/nowhere/items"], 71, "/nowhere/items"),
        (&["-e", "items", "--engine", "moka"], 64, "require --engine segment"),
        (&["-l", "[::1"], 71, "failed to resolve the address to listen on: [::1"),
        (&["-l", "127.0.0.1:99999"], 71, "127.0.0.1:99999"),
        (&["word"], 1, "'word'"),
        (&["-m", "none"], 1, "none"),
        (&["--engine", "magic"], 1, "magic"),
        (&["--engine", "dashmap"], 64, "-M"),
        (&["--engine", "moka", "-M"], 64, "moka"),
        (&["--eviction-policy", "lru"], 64, "eviction"),
        (&["--size-exponent", "1.5"], 1, "The size exponent must be 0 to 1"),
        (&["--size-exponent", "-0.5"], 1, "The size exponent must be 0 to 1"),
        (&["--size-exponent", "large"], 1, "'large'"),
        (&["--size-exponent", "0.5", "--engine", "moka"], 64, "requires --engine segment"),
        (&["--size-exponent", "0.5", "--engine", "dashmap", "-M"], 64, "requires --engine segment"),
        (&["-U", "70000"], 64, "UDP"),
        (&["-u", "nobody-of-that-name"], 67, "nobody-of-that-name"),
    ] {
        let output = larderd(&[&["-p", "-1", "-l", "127.0.0.1"], options].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = larderd(&["-l", "127.0.0.1", "-p", &port]);
    assert_eq!(output.status.code(), Some(71));
    assert!(stderr(&output).contains(&port), "{}", stderr(&output));
}

#[test]
fn help_version_and_licence_are_no_errors() {
    let help = larderd(&["-h"]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    for option in ["--memory-limit", "--port", "--unix-socket", "--max-item-size", "--engine"] {
        assert!(text.contains(option), "{option}");
    }
    let version = larderd(&["-V"]);
    assert!(version.status.success());
    assert!(String::from_utf8_lossy(&version.stdout).contains("larder"));
    for option in ["-i", "--license"] {
        let licence = larderd(&[option]);
        assert!(licence.status.success());
        assert!(String::from_utf8_lossy(&licence.stdout).contains("MIT"));
    }
}

#[test]
fn help_has_headings_and_h_explains_fewer_options() {
    let text = |option| String::from_utf8(larderd(&[option]).stdout).unwrap();
    let (short, long) = (text("-h"), text("--help"));
    for heading in ["Network", "Memory", "TLS", "Replication", "Flash", "HTTP and gRPC", "Logging"]
    {
        assert!(long.contains(&format!("{heading}:\n")), "{heading}");
    }
    assert!(long.contains("- moka: ") && !short.contains("- moka: "), "explained values");
    assert!(short.lines().count() < long.lines().count() / 3, "{short}");
}

#[test]
fn the_log_contains_connections_with_vv() {
    for (option, expected) in [("-v", false), ("-vv", true)] {
        let server = Server::larderd(&[option]);
        server.ask(b"mn\r\n");
        let ends = || server.said().contains("connection closed");
        if expected {
            wait_for("line", ends);
        }
        assert_eq!(ends(), expected, "{}", server.said());
        assert_eq!(server.said().contains("connection accepted"), expected);
    }
}

#[test]
fn the_log_has_no_colours_without_a_terminal() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let verbose = larderd(&["-vv", "-f", "1.1", "-n", "40", "-l", "127.0.0.1", "-p", &port]);
    assert!(!stderr(&verbose).contains('\u{1b}'), "{}", stderr(&verbose));
}
