//! `watch`: the lines of each stream.

use super::helpers::{ENGINES, ask, exchange, format, larderd, stat};
use crate::common::{self, Server, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Sends a `watch` request on a new connection.
fn watch(server: &Server, streams: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(format!("watch {streams}\r\n").as_bytes()).unwrap();
    // Read only the reply: the first log line may follow at once.
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"OK\r\n");
    stream
}

/// Reads lines of a watcher until one contains `last`. Returns them without times and connection
/// IDs.
fn lines_until(watcher: &mut TcpStream, last: &str) -> Vec<String> {
    let mut seen = String::new();
    let mut bytes = [0; 16 << 10];
    while !seen.lines().any(|line| line.contains(last)) || !seen.ends_with('\n') {
        let len = common::read_some(watcher, &mut bytes).unwrap();
        assert!(len > 0, "closed after {seen}");
        seen.push_str(std::str::from_utf8(&bytes[..len]).unwrap());
    }
    seen.lines().map(anonymous).collect()
}

fn anonymous(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.split_once('=') {
        Some((name @ ("ts" | "gid" | "cfd" | "rport"), _)) => name,
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn watchers_receive_the_lines_of_memcached() {
    let requests = "get a\r\nset a 1 0 2\r\nhi\r\nget a\r\nms b 1\r\n1\r\nmg b v\r\nmd b\r\n\
                    incr n 1\r\nset n 0 100 1\r\n1\r\nincr n 1\r\ntouch n 500\r\nadd n 0 0 1\r\n2\r\n\
                    replace q 0 0 1\r\n2\r\ncas n 0 0 1 1\r\n2\r\nappend n 0 0 1\r\n2\r\n\
                    prepend n 0 0 1\r\n1\r\ndelete n\r\nget a b\r\ngat 0 a\r\nget last\r\n";
    let lines = |server: &Server| {
        let mut watcher = watch(server, "fetchers mutations");
        ask(server, requests);
        lines_until(&mut watcher, "key=last")
    };
    let memcached = lines(&Server::memcached(&[]).expect("memcached; scripts/test installs it"));
    assert!(memcached.len() > 25, "{memcached:#?}");
    for engine in ENGINES {
        assert_eq!(lines(&larderd(engine, &[])), memcached, "{engine:?}");
    }
}

#[test]
fn watchers_receive_opened_and_closed_connections() {
    let lines = |server: &Server| {
        let mut watcher = watch(server, "connevents");
        ask(server, "mn\r\n");
        let mut lines = lines_until(&mut watcher, "conn_close");
        // Ignore the order of the lines, and repeated lines.
        lines.sort();
        lines.dedup();
        lines
    };
    let memcached = lines(&Server::memcached(&[]).unwrap());
    assert_eq!(lines(&larderd(ENGINES[0], &[])), memcached);
}

#[test]
fn watchers_receive_the_reason_of_a_close() {
    let lines = |server: &Server| {
        let mut watcher = watch(server, "connevents");
        let mut idle = server.connect();
        assert_eq!(exchange(&mut idle, "mn\r\n", "\r\n"), "MN\r\n");
        let lines = lines_until(&mut watcher, "reason=idle_timeout");
        lines.into_iter().filter(|line| line.contains("idle_timeout")).collect::<Vec<_>>()
    };
    let options = ["-o", "idle_timeout=1"];
    let memcached = lines(&Server::memcached(&options).unwrap());
    assert_eq!(lines(&larderd(ENGINES[0], &options)), memcached);
}

#[test]
fn watchers_receive_protocol_errors() {
    let lines = |server: &Server, bytes: &[u8]| {
        let mut watcher = watch(server, "connevents");
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        let lines = lines_until(&mut watcher, "reason=error");
        lines.into_iter().filter(|line| line.contains("reason=error")).collect::<Vec<_>>()
    };
    let bad_magic = [&[0x80, 0x0a][..], &[0; 22], &[0; 24]].concat();
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[b'x'; 3000], &bad_magic] {
        let memcached = lines(&Server::memcached(&[]).unwrap(), bytes);
        assert_eq!(memcached.len(), 1);
        for engine in ENGINES {
            assert_eq!(lines(&larderd(engine, &[]), bytes), memcached, "{engine:?}");
        }
    }
}

/// Debian's memcached does not have this stream.
#[test]
fn watchers_receive_deletions() {
    let requests = "set a 0 0 2\r\nhi\r\nset b 0 0 1\r\n1\r\ndelete none\r\ndelete a\r\n\
                    md b I\r\nmd b\r\nset last 0 0 1\r\n1\r\ndelete last\r\n";
    for engine in ENGINES {
        let server = larderd(engine, &[]);
        let mut watcher = watch(&server, "deletions");
        ask(&server, requests);
        let lines = lines_until(&mut watcher, "key=last");
        let expected = [("a", "delete", 2), ("b", "md", 1), ("last", "delete", 1)];
        let expected = expected.map(|(key, command, size)| {
            format!("ts gid type=deleted key={key} cmd={command} clsid=1 size={size}")
        });
        assert_eq!(lines, expected, "{engine:?}");
    }
}

/// Stores about 20 MB, more than twice the memory limit. Returns the first line about an eviction,
/// with each number replaced by 0.
fn first_eviction(server: &Server) -> String {
    let mut watcher = watch(server, "evictions");
    let kib = "x".repeat(1000);
    for i in 0..20 {
        let sets: String =
            (0..1000).map(|j| format!("set e-{i}-{j} 0 0 1000\r\n{kib}\r\n")).collect();
        ask(server, &sets);
    }
    format(&lines_until(&mut watcher, "eviction")[0])
}

#[test]
fn lines_of_evictions_equal_those_of_memcached() {
    let options = ["-m", "8", "-t", "1"];
    let memcached = first_eviction(&Server::memcached(&options).unwrap());
    assert!(memcached.contains(" type=eviction key=e-0-0 fetch=no ttl=-0 la=0 "), "{memcached}");
    for engine in [ENGINES[0], ENGINES[2]] {
        assert_eq!(first_eviction(&larderd(engine, &options)), memcached, "{engine:?}");
    }
}

#[test]
fn watchers_receive_evictions() {
    for (engine, limit) in [(ENGINES[0], "3"), (ENGINES[2], "8")] {
        let server = larderd(engine, &["-m", limit, "-t", "1"]);
        let mut watcher = watch(&server, "evictions");
        let kib = "x".repeat(1000);
        for i in 0..20 {
            let sets: String =
                (0..1000).map(|j| format!("set e-{i}-{j} 0 0 1000\r\n{kib}\r\n")).collect();
            ask(&server, &sets);
        }
        let lines = lines_until(&mut watcher, "eviction");
        let line = &lines[0];
        assert!(line.starts_with("ts gid type=eviction key=e-"), "{line}");
        assert!(line.contains(" fetch=no ttl=-1 la="), "{line}");
        assert!(line.ends_with(" clsid=12 size=1000"), "{line}");
    }
}

#[test]
fn a_slow_watcher_loses_lines_and_uses_bounded_memory() {
    let server = larderd(ENGINES[0], &["-t", "1"]);
    let mut watcher = watch(&server, "fetchers");
    let gets = "get a\r\n".repeat(10_000);
    // Repeat the requests, because the kernel buffers an unknown number of lines for the watcher
    // before the server skips lines.
    wait_for("skipped line", || {
        ask(&server, &gets);
        stat(&ask(&server, "stats\r\n"), "log_watcher_skipped") > 0
    });
    let stats = ask(&server, "stats\r\n");
    assert!(stat(&stats, "read_buf_bytes") < 2 << 20, "{stats}");
    assert_eq!(stat(&stats, "log_watchers"), 1);
    watcher.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut seen, mut bytes) = (Vec::new(), [0; 64 << 10]);
    wait_for("account of every line", || {
        ask(&server, "get b\r\n");
        while let Ok(len) = watcher.read(&mut bytes) {
            seen.extend_from_slice(&bytes[..len]);
        }
        let (shown, skipped) = lines_of_gets(&String::from_utf8_lossy(&seen));
        let stats = ask(&server, "stats\r\n");
        let written = stat(&stats, "log_worker_written");
        assert!(shown + skipped <= written, "{shown} and {skipped} of {written}");
        skipped == stat(&stats, "log_watcher_skipped") && shown + skipped == written
    });
    drop(watcher);
    wait_for("end of watching", || stat(&ask(&server, "stats\r\n"), "log_watchers") == 0);
}

/// Returns the number of received lines, and the number of lines reported as skipped.
fn lines_of_gets(seen: &str) -> (u64, u64) {
    let whole = &seen[..seen.rfind('\n').map_or(0, |end| end + 1)];
    let skipped = whole.lines().filter_map(|line| line.strip_prefix("skipped="));
    let skipped = skipped.map(|number| number.parse::<u64>().unwrap()).sum();
    let shown = whole.lines().filter(|line| line.contains(" type=item_get ")).count();
    (shown as u64, skipped)
}

#[test]
fn watching_can_be_disabled_and_is_limited() {
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(ask(&larderd(ENGINES[0], &["-W"]), "watch\r\n"), refused);
    assert_eq!(ask(&Server::memcached(&["-W"]).unwrap(), "watch\r\n"), refused);
    let server = larderd(ENGINES[0], &[]);
    let watchers: Vec<TcpStream> = (0..20).map(|_| watch(&server, "")).collect();
    let refused = "WATCHER_TOO_MANY log watcher limit reached\r\n";
    assert_eq!(ask(&server, "watch\r\n"), refused);
    // A connection publishes its state only after the poll that sends the reply.
    wait_for("watchers in stats conns", || {
        ask(&server, "stats conns\r\n").matches(" conn_watch\r\n").count() == watchers.len()
    });
}
