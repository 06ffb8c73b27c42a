//! `lru_crawler`: crawls, and dumps of keys.

use super::helpers::{ENGINES, ask, exchange, exchange_any, fill, format, larderd, stat};
use crate::common::{Server, wait_for};
use std::io::{Read, Write};
use std::net::Shutdown;

#[test]
fn dumps_have_the_lines_of_memcached() {
    let sets =
        "set a%b 0 2000000000 3\r\nabc\r\nset c 0 0 2\r\nhi\r\nget c\r\nms AAEC 1 b\r\n1\r\n";
    let lines = |server: &Server, is_complete: fn(&str) -> bool| {
        ask(server, sets);
        let dump = metadump(server, is_complete);
        // Debian's memcached prints neither flags nor OK.
        let dump = dump.strip_prefix("OK\r\n").unwrap_or(&dump);
        let lines = dump.lines().map(|line| format(line.split(" flags=").next().unwrap()));
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    };
    let memcached = Server::memcached(&[]).expect("memcached; scripts/test installs it");
    // memcached's dump misses items that its maintenance thread concurrently moves between LRU
    // lists.
    let memcached = lines(&memcached, |dump| dump.matches("key=").count() == 3);
    assert_eq!(memcached.len(), 4);
    for engine in ENGINES {
        assert_eq!(lines(&larderd(engine, &[]), |_| true), memcached, "{engine:?}");
    }
}

/// Returns a complete dump. Repeats the request until memcached's own crawler is not running and
/// `is_complete` returns true.
fn metadump(server: &Server, is_complete: fn(&str) -> bool) -> String {
    let busy = "BUSY currently processing crawler request\r\n";
    let mut dump = String::new();
    wait_for("dump", || {
        let mut stream = server.connect();
        dump = exchange_any(&mut stream, "lru_crawler metadump hash\r\n", &["END\r\n", busy]);
        dump != busy && is_complete(&dump)
    });
    dump
}

/// The lines of `mgdump` are requests. Debian's memcached does not have `mgdump`.
#[test]
fn the_lines_of_mgdump_are_valid_requests() {
    let sets = "set a%b 0 0 1\r\n1\r\nset c 0 0 1\r\n1\r\nms AAEC 1 b\r\n1\r\nmn\r\n";
    for engine in ENGINES {
        let server = larderd(engine, &[]);
        let mut stream = server.connect();
        exchange(&mut stream, sets, "MN\r\n");
        for classes in ["all", "hash", "1"] {
            let dump = format!("lru_crawler mgdump {classes}\r\n");
            let dump = exchange(&mut stream, &dump, "EN\r\n");
            let mut lines: Vec<&str> = dump.split_terminator("\r\n").collect();
            assert_eq!((lines.remove(0), lines.pop()), ("OK", Some("EN")), "{engine:?}");
            let again =
                exchange(&mut stream, &format!("{}\r\nmn\r\n", lines.join("\r\n")), "MN\r\n");
            assert_eq!(again, "HD\r\nHD\r\nHD\r\nMN\r\n", "{engine:?}");
            lines.sort_unstable();
            assert_eq!(lines, ["mg AAEC b", "mg a%b", "mg c"], "{engine:?}");
        }
    }
}

#[test]
fn a_dump_blocks_no_other_client_and_waits_for_its_reader() {
    const ITEMS: usize = 100_000;
    for engine in ENGINES {
        let server = larderd(engine, &["-t", "1", "-m", "512"]);
        fill(&server, ITEMS);
        let mut dumping = server.connect();
        dumping.write_all(b"lru_crawler metadump all\r\n").unwrap();
        // While the client does not read the dump, the server must answer other clients, and must
        // not buffer the dump.
        for _ in 0..100 {
            assert_eq!(ask(&server, "set x 0 0 1\r\n1\r\nget x\r\n").len(), 8 + 21);
        }
        let stats = ask(&server, "delete x\r\nstats\r\n");
        let held = stat(&stats, "read_buf_bytes");
        assert!(held < 2 << 20, "{engine:?}: {held} bytes");
        assert_eq!(stat(&stats, "lru_crawler_running"), 1, "{engine:?}");
        let dump = exchange(&mut dumping, "", "END\r\n");
        let keys = dump.lines().filter(|line| line.starts_with("key=key-")).count();
        assert_eq!(keys as u64, stat(&stats, "curr_items"), "{engine:?}");
        // After the dump, the connection works as before.
        assert_eq!(exchange(&mut dumping, "mn\r\n", "\r\n"), "MN\r\n");
        assert_eq!(stat(&ask(&server, "stats\r\n"), "lru_crawler_running"), 0, "{engine:?}");
    }
}

#[test]
fn a_dump_ends_when_its_reader_disconnects() {
    let server = larderd(ENGINES[0], &["-t", "1"]);
    fill(&server, 100_000);
    for _ in 0..10 {
        let mut stream = server.connect();
        stream.write_all(b"lru_crawler metadump all\r\n").unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    let mut stream = server.connect();
    wait_for("end of connections", || {
        let stats = exchange(&mut stream, "stats\r\n", "END\r\n");
        stats.contains("STAT curr_connections 1\r\n")
    });
    let stats = exchange(&mut stream, "stats\r\n", "END\r\n");
    assert_eq!(stat(&stats, "lru_crawler_running"), 0, "{stats}");
}

#[test]
fn disabling_the_crawler_disables_dumps() {
    for engine in ENGINES {
        let server = larderd(engine, &[]);
        let disabled = "CLIENT_ERROR lru crawler disabled\r\n";
        let asks = "lru_crawler disable\r\nlru_crawler disable\r\nlru_crawler crawl all\r\n\
                    lru_crawler metadump all\r\nlru_crawler mgdump x\r\nlru_crawler enable\r\n\
                    lru_crawler metadump x\r\n";
        let expected = format!(
            "OK\r\nOK\r\n{disabled}{disabled}{disabled}OK\r\nBADCLASS invalid class id\r\n"
        );
        assert_eq!(ask(&server, asks), expected);
    }
}

#[test]
fn a_crawl_removes_expired_items() {
    for engine in ENGINES {
        let server = larderd(engine, &["-t", "1"]);
        fill(&server, 10);
        let sets: String = (0..100).map(|i| format!("set mortal-{i} 0 1 1\r\nx\r\n")).collect();
        ask(&server, &sets);
        let mut stream = server.connect();
        wait_for(&format!("removal of expired items, {engine:?}"), || {
            assert_eq!(exchange(&mut stream, "lru_crawler crawl all\r\n", "\r\n"), "OK\r\n");
            let stats = exchange(&mut stream, "stats\r\n", "END\r\n");
            assert!(!stats.contains("STAT lru_crawler_starts 0\r\n"));
            stats.contains("STAT curr_items 10\r\n")
        });
    }
}

#[test]
fn dumps_can_be_disabled() {
    let asks = "lru_crawler metadump all\r\nstats cachedump 1 0\r\n";
    let refused = "ERROR metadump not allowed\r\nCLIENT_ERROR stats cachedump not allowed\r\n";
    for engine in ENGINES {
        assert_eq!(ask(&larderd(engine, &["-X"]), asks), refused);
    }
    assert_eq!(ask(&Server::memcached(&["-X"]).unwrap(), asks), refused);
    let keys = ask(&larderd(ENGINES[0], &["--disable-dumping"]), "lru_crawler mgdump all\r\n");
    assert_eq!(keys, "ERROR key dump not allowed\r\n");
}
