//! What operators ask of a server: the same of larderd under each engine and, where it answers
//! alike, of memcached.

use crate::common::{self, Server, TIMEOUT, wait_for};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Every engine, with what it needs beside.
const ENGINES: [&[&str]; 3] = [&["segment"], &["dashmap", "-M"], &["moka"]];

fn larderd(engine: &[&str], options: &[&str]) -> Server {
    Server::larderd(&[&["--engine"], engine, options].concat())
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn ask(server: &Server, lines: &str) -> String {
    text(server.ask(lines.as_bytes()))
}

/// Sends and reads up to a line.
fn exchange(stream: &mut TcpStream, request: &str, last: &str) -> String {
    exchange_any(stream, request, &[last])
}

/// Sends and reads up to the first of some lines.
fn exchange_any(stream: &mut TcpStream, request: &str, lasts: &[&str]) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut bytes = [0; 16 << 10];
    while !lasts.iter().any(|last| answer.ends_with(last.as_bytes())) {
        let len = common::read_some(stream, &mut bytes).unwrap();
        assert!(len > 0, "closed after {:?}", text(answer));
        answer.extend_from_slice(&bytes[..len]);
    }
    text(answer)
}

/// What a page of statistics says.
fn value<'p>(page: &'p str, name: &str) -> &'p str {
    let start = format!("STAT {name} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("{name} in {page}"))
}

/// The same, of a number.
fn stat(page: &str, name: &str) -> u64 {
    value(page, name).parse().unwrap()
}

/// A line with its numbers left out.
fn format(line: &str) -> String {
    let mut format = line.replace(|c: char| c.is_ascii_digit(), "0");
    while format.contains("00") {
        format = format.replace("00", "0");
    }
    format
}

fn fill(server: &Server, items: usize) {
    let sets: String = (0..items).map(|i| format!("set key-{i} 0 0 5\r\nvalue\r\n")).collect();
    let stored = ask(server, &sets);
    assert_eq!(stored.len(), items * "STORED\r\n".len());
}

/// All keys fit a quarter of the memory: what is there would be there.
#[test]
fn the_miss_ratio_curve_is_that_of_the_segment_engine() {
    let gets: String = (0..40_000).map(|i| format!("get key-{i}\r\n")).collect();
    let [segment, others @ ..] = ENGINES;
    let server = larderd(segment, &["-m", "64"]);
    assert_eq!(
        ask(&server, "stats mrc\r\n"),
        "STAT mrc:samples 0\r\nSTAT mrc:keys 0\r\nSTAT mrc:sampled 0.007812\r\nEND\r\n"
    );
    fill(&server, 40_000);
    (0..2).for_each(|_| drop(ask(&server, &gets)));
    let page = ask(&server, "stats mrc\r\n");
    for factor in ["0.25", "0.5", "1", "2", "4"] {
        // What one thread stores and another looks up may be noted the other way round.
        let ratio: f64 = value(&page, &format!("mrc:{factor}")).parse().unwrap();
        assert!((0.9..=1.0).contains(&ratio), "{page}");
    }
    assert!(stat(&page, "mrc:samples") > 0 && stat(&page, "mrc:keys") > 0, "{page}");
    for engine in others {
        assert_eq!(ask(&larderd(engine, &[]), "stats mrc\r\n"), "STAT mrc none\r\nEND\r\n");
    }
}

#[test]
fn memory_is_shown_by_its_uses() {
    let server = larderd(ENGINES[0], &["-m", "64"]);
    let uses = |names: &[&str]| -> Vec<u64> {
        let pages = ask(&server, "stats\r\n") + &ask(&server, "stats memory\r\n");
        names.iter().map(|name| stat(&pages, name)).collect()
    };
    let all = ["items_bytes", "dead_bytes", "free_bytes", "hash_bytes"];
    fill(&server, 10_000);
    let before = uses(&all);
    assert_eq!(before.iter().sum::<u64>(), 64 << 20, "{before:?}");
    let deletes: String = (0..5000).map(|i| format!("delete key-{i}\r\n")).collect();
    ask(&server, &deletes);
    let after = uses(&all);
    assert!(after[0] < before[0] && after[1] >= before[1] + 5000 * 24, "{before:?} {after:?}");
    assert_eq!(after.iter().sum::<u64>(), 64 << 20, "{after:?}");
    assert_eq!(ask(&server, "ms tagged 1 Gtag\r\n1\r\n"), "HD\r\n");
    assert!(uses(&["tags_bytes"])[0] > 0);
}

/// The page of the hot keys, or of prefixes, as names and shares.
fn hot(server: &Server, page: &str, name: &str) -> Vec<(String, f64)> {
    let page = ask(server, &format!("stats {page}\r\n"));
    (1..)
        .map_while(|rank| {
            let start = format!("STAT {rank}:{name} ");
            page.lines().find_map(|line| line.strip_prefix(&start)).map(|hot| {
                let share = value(&page, &format!("{rank}:share")).parse().unwrap();
                (hot.to_owned(), share)
            })
        })
        .collect()
}

#[test]
fn hot_keys_are_found_among_many_others() {
    let server = larderd(ENGINES[0], &["-D", "/"]);
    assert_eq!(ask(&server, "stats hotkeys\r\n"), "STAT samples 0\r\nEND\r\n");
    // Four of ten requests: a look-up, a key among several, a store, and a large value.
    let large = "v".repeat(100_000);
    let mut requests = String::new();
    for n in 0..20_000 {
        requests += &format!("get page/{n}\r\nget page/a{n} user/hot page/b{n}\r\n");
        requests += &format!("mg user/hot v\r\nset page/{n} 0 0 1\r\n1\r\nincr other 1\r\n");
        requests += "set user/hot 0 0 1\r\n1\r\n";
        if n % 20 == 0 {
            requests += &format!("set large 0 0 100000\r\n{large}\r\n");
        }
    }
    server.ask(requests.as_bytes());
    let keys = hot(&server, "hotkeys", "key");
    assert_eq!(keys[0].0, "user%2Fhot", "{keys:?}");
    assert!((0.3..0.45).contains(&keys[0].1), "{keys:?}");
    assert_eq!(keys[1].0, "other", "{keys:?}");
    assert!((0.08..0.17).contains(&keys[1].1), "{keys:?}");
    assert!(keys.iter().any(|(key, share)| key == "large" && (0.001..0.02).contains(share)));
    let prefixes = hot(&server, "prefixes", "prefix");
    let names: Vec<&str> = prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect();
    assert_eq!(names, ["page", "user"]);
    assert_eq!(
        ask(&server, "stats reset\r\nstats hotkeys\r\n"),
        "RESET\r\nSTAT samples 0\r\nEND\r\n"
    );
}

#[test]
fn hot_keys_are_secret_where_dumps_are() {
    let server = larderd(ENGINES[0], &["-X"]);
    for page in ["hotkeys", "prefixes"] {
        let answer = ask(&server, &format!("stats {page}\r\n"));
        assert_eq!(answer, "CLIENT_ERROR stats with keys not allowed\r\n");
    }
    assert!(ask(&server, "stats conns\r\n").ends_with("END\r\n"));
}

#[test]
fn removals_are_shown_by_their_reasons() {
    let server = larderd(ENGINES[0], &[]);
    assert_eq!(ask(&server, "ms tagged 1 Gtag\r\n1\r\nmt tag\r\n"), "HD\r\nHD\r\n");
    let removed = || {
        let page = ask(&server, "stats memory\r\n");
        ["removed_expired", "removed_flushed", "removed_tag"].map(|name| stat(&page, name))
    };
    // What is stored in the place of an item that can't be shown any more removes it, unless maintenance has
    // already done so: each is counted once.
    let set = |key: &str| {
        assert_eq!(ask(&server, &format!("set {key} 0 0 1\r\n1\r\n")), "STORED\r\n");
    };
    set("tagged");
    assert_eq!(removed(), [0, 0, 1]);
    set("short");
    assert_eq!(ask(&server, "touch short -1\r\n"), "TOUCHED\r\n");
    set("short");
    assert_eq!(removed(), [1, 0, 1]);
    assert_eq!(ask(&server, "flush_all\r\n"), "OK\r\n");
    set("tagged");
    set("short");
    assert_eq!(removed(), [1, 2, 1]);
    let page = ask(&server, "stats memory\r\n");
    assert_eq!((stat(&page, "tags_dropped"), stat(&page, "tags_displaced")), (1, 0));
    assert_eq!(stat(&ask(&server, "stats\r\n"), "reclaimed"), 4);
}

#[test]
fn dumps_look_like_memcacheds() {
    let sets =
        "set a%b 0 2000000000 3\r\nabc\r\nset c 0 0 2\r\nhi\r\nget c\r\nms AAEC 1 b\r\n1\r\n";
    let lines = |server: &Server| {
        ask(server, sets);
        let dump = metadump(server);
        // Debian's has no flags yet.
        // Debian's does not begin with OK yet.
        let dump = dump.strip_prefix("OK\r\n").unwrap_or(&dump);
        let lines = dump.lines().map(|line| format(line.split(" flags=").next().unwrap()));
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    };
    let memcached = lines(&Server::memcached(&[]).expect("memcached; scripts/test installs it"));
    assert_eq!(memcached.len(), 4);
    for engine in ENGINES {
        assert_eq!(lines(&larderd(engine, &[])), memcached, "{engine:?}");
    }
}

/// All of a dump. memcached refuses one while its own crawler is at work.
fn metadump(server: &Server) -> String {
    let busy = "BUSY currently processing crawler request\r\n";
    let mut dump = String::new();
    wait_for("dump", || {
        let mut stream = server.connect();
        dump = exchange_any(&mut stream, "lru_crawler metadump hash\r\n", &["END\r\n", busy]);
        dump != busy
    });
    dump
}

/// Debian's memcached has no `mgdump` yet; what it is for is that its lines can be asked again.
#[test]
fn a_dump_of_keys_can_be_asked_line_by_line() {
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
fn a_dump_keeps_nobody_waiting_and_waits_for_its_reader() {
    const ITEMS: usize = 100_000;
    for engine in ENGINES {
        let server = larderd(engine, &["-t", "1", "-m", "512"]);
        fill(&server, ITEMS);
        let mut dumping = server.connect();
        dumping.write_all(b"lru_crawler metadump all\r\n").unwrap();
        // Nobody reads it: others are served, and no memory is taken for it.
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
        // It goes on as any other connection.
        assert_eq!(exchange(&mut dumping, "mn\r\n", "\r\n"), "MN\r\n");
        assert_eq!(stat(&ask(&server, "stats\r\n"), "lru_crawler_running"), 0, "{engine:?}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_its_dump() {
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
fn the_crawler_can_be_stopped_and_dumps_stop_with_it() {
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
fn a_crawl_takes_the_expired_away() {
    for engine in ENGINES {
        let server = larderd(engine, &["-t", "1"]);
        fill(&server, 10);
        let sets: String = (0..100).map(|i| format!("set mortal-{i} 0 1 1\r\nx\r\n")).collect();
        ask(&server, &sets);
        let mut stream = server.connect();
        wait_for(&format!("end of what has expired, {engine:?}"), || {
            assert_eq!(exchange(&mut stream, "lru_crawler crawl all\r\n", "\r\n"), "OK\r\n");
            let stats = exchange(&mut stream, "stats\r\n", "END\r\n");
            assert!(!stats.contains("STAT lru_crawler_starts 0\r\n"));
            stats.contains("STAT curr_items 10\r\n")
        });
    }
}

#[test]
fn dumping_can_be_forbidden() {
    let asks = "lru_crawler metadump all\r\nstats cachedump 1 0\r\n";
    let refused = "ERROR metadump not allowed\r\nCLIENT_ERROR stats cachedump not allowed\r\n";
    for engine in ENGINES {
        assert_eq!(ask(&larderd(engine, &["-X"]), asks), refused);
    }
    assert_eq!(ask(&Server::memcached(&["-X"]).unwrap(), asks), refused);
    let keys = ask(&larderd(ENGINES[0], &["--disable-dumping"]), "lru_crawler mgdump all\r\n");
    assert_eq!(keys, "ERROR key dump not allowed\r\n");
}

#[test]
fn settings_remember_what_was_tuned() {
    let server = larderd(ENGINES[0], &[]);
    let asks = "lru_crawler sleep 7\r\nlru_crawler tocrawl 8\r\nlru tune 9 10 0.11 1.20\r\n\
                slabs automove 1\r\nslabs automove ratio 0.50\r\nslabs automove window 30\r\n";
    assert_eq!(ask(&server, asks), "OK\r\n".repeat(6));
    let settings = ask(&server, "stats settings\r\n");
    for (name, value) in [
        ("lru_crawler", "yes"),
        ("lru_crawler_sleep", "7"),
        ("lru_crawler_tocrawl", "8"),
        ("hot_lru_pct", "9"),
        ("warm_lru_pct", "10"),
        ("hot_max_factor", "0.11"),
        ("warm_max_factor", "1.20"),
        ("slab_automove", "1"),
        ("slab_automove_ratio", "0.50"),
        ("slab_automove_window", "30"),
        ("slab_reassign", "no"),
        ("lru_maintainer_thread", "no"),
    ] {
        let line = format!("STAT {name} {value}\r\n");
        assert!(settings.contains(&line), "{line}");
    }
}

/// Resident memory in MiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Stores `mib` values of nearly a MiB.
fn fill_mib(server: &Server, mib: usize) {
    let mut stream = server.connect();
    for i in 0..mib {
        let head = format!("set m-{i} 0 0 1000000\r\n");
        stream.write_all(&[head.as_bytes(), &[b'x'; 1_000_000], b"\r\n"].concat()).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    }
}

#[test]
fn the_memory_limit_follows_the_operator() {
    let server = larderd(ENGINES[0], &["-t", "2", "-m", "32"]);
    fill(&server, 10_000);
    assert_eq!(ask(&server, "cache_memlimit 256\r\n"), "OK\r\n");
    fill_mib(&server, 160);
    let stats = ask(&server, "stats\r\n");
    assert_eq!(stat(&stats, "limit_maxbytes"), 256 << 20);
    assert_eq!(stat(&stats, "evictions"), 0, "all of it fits");
    assert!(resident(&server) > 150);
    // What still fits stays.
    assert_eq!(ask(&server, "cache_memlimit 224\r\n"), "OK\r\n");
    // Nothing may happen: two rounds of maintenance, which would evict.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stat(&ask(&server, "stats\r\n"), "evictions"), 0, "it still fits");
    assert_eq!(ask(&server, "cache_memlimit 32\r\n"), "OK\r\n");
    wait_for("smaller process", || resident(&server) < 32 + 32);
    let stats = ask(&server, "stats\r\n");
    assert!(stat(&stats, "curr_items") >= 10, "{stats}");
    let settings = ask(&server, "stats settings\r\n");
    assert_eq!(stat(&settings, "maxbytes"), 32 << 20);
    // And it is used again.
    fill_mib(&server, 40);
    assert_eq!(ask(&server, "cache_memlimit 64 noreply\r\nmn\r\n"), "MN\r\n");
    assert_eq!(stat(&ask(&server, "stats\r\n"), "limit_maxbytes"), 64 << 20);
}

#[test]
fn a_limit_that_cannot_be_had_is_refused_with_what_could() {
    let refused = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust (";
    let server = larderd(ENGINES[0], &["-m", "64"]);
    let answer = ask(&server, "cache_memlimit 1000000000\r\n");
    let could = answer.strip_prefix(refused).unwrap_or_else(|| panic!("{answer}"));
    let max = could.trim_end().trim_end_matches(')').split(" to ").nth(1).unwrap();
    let max: u64 = max.trim_end_matches('m').parse().unwrap();
    assert!((64..=4096).contains(&max), "{answer}");
    assert_eq!(ask(&server, &format!("cache_memlimit {}\r\n", max + 1)), answer);
    assert_eq!(ask(&server, &format!("cache_memlimit {max}\r\n")), "OK\r\n");
    let moka = larderd(ENGINES[2], &["-m", "64"]);
    assert_eq!(ask(&moka, "cache_memlimit 128\r\n"), format!("{refused}64m to 64m)\r\n"));
    assert_eq!(ask(&moka, "cache_memlimit 64\r\n"), "OK\r\n");
    let dashmap = larderd(ENGINES[1], &["-m", "8"]);
    let kib = "x".repeat(1000);
    let sets: String = (0..10_000).map(|i| format!("set {i} 0 0 1000\r\n{kib}\r\n")).collect();
    assert!(ask(&dashmap, &sets).contains("SERVER_ERROR out of memory"));
    assert_eq!(ask(&dashmap, "cache_memlimit 64\r\n"), "OK\r\n");
    assert!(!ask(&dashmap, &sets).contains("SERVER_ERROR"));
}

/// Begins to watch on a connection of its own.
fn watch(server: &Server, streams: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(format!("watch {streams}\r\n").as_bytes()).unwrap();
    // No more than this: what happened just now may follow at once.
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"OK\r\n");
    stream
}

/// What a watcher is told up to a line that has `last` in it, without times and numbers of
/// connections.
fn told(watcher: &mut TcpStream, last: &str) -> Vec<String> {
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
fn watchers_see_what_memcacheds_see() {
    let requests = "get a\r\nset a 1 0 2\r\nhi\r\nget a\r\nms b 1\r\n1\r\nmg b v\r\nmd b\r\n\
                    incr n 1\r\nset n 0 100 1\r\n1\r\nincr n 1\r\ntouch n 500\r\nadd n 0 0 1\r\n2\r\n\
                    replace q 0 0 1\r\n2\r\ncas n 0 0 1 1\r\n2\r\nappend n 0 0 1\r\n2\r\n\
                    prepend n 0 0 1\r\n1\r\ndelete n\r\nget a b\r\ngat 0 a\r\nget last\r\n";
    let lines = |server: &Server| {
        let mut watcher = watch(server, "fetchers mutations");
        ask(server, requests);
        told(&mut watcher, "key=last")
    };
    let memcached = lines(&Server::memcached(&[]).expect("memcached; scripts/test installs it"));
    assert!(memcached.len() > 25, "{memcached:#?}");
    for engine in ENGINES {
        assert_eq!(lines(&larderd(engine, &[])), memcached, "{engine:?}");
    }
}

#[test]
fn watchers_see_who_comes_and_goes() {
    let lines = |server: &Server| {
        let mut watcher = watch(server, "connevents");
        ask(server, "mn\r\n");
        let mut lines = told(&mut watcher, "conn_close");
        // The one that found out whether the server answers may have gone just now.
        lines.sort();
        lines.dedup();
        lines
    };
    let memcached = lines(&Server::memcached(&[]).unwrap());
    assert_eq!(lines(&larderd(ENGINES[0], &[])), memcached);
}

#[test]
fn watchers_see_why_somebody_is_gone() {
    let lines = |server: &Server| {
        let mut watcher = watch(server, "connevents");
        let mut idle = server.connect();
        assert_eq!(exchange(&mut idle, "mn\r\n", "\r\n"), "MN\r\n");
        let lines = told(&mut watcher, "reason=idle_timeout");
        lines.into_iter().filter(|line| line.contains("idle_timeout")).collect::<Vec<_>>()
    };
    let options = ["-o", "idle_timeout=1"];
    let memcached = lines(&Server::memcached(&options).unwrap());
    assert_eq!(lines(&larderd(ENGINES[0], &options)), memcached);
}

/// Clients look for a number.
#[test]
fn listeners_have_numbers_as_connections_have() {
    let names = |server: &Server| {
        let page = ask(server, "stats conns\r\n");
        let lines = page.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(':'));
        let (numbers, names): (Vec<_>, Vec<_>) = lines.unzip();
        let numbers: BTreeSet<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 2, "{page}");
        let mut names: Vec<_> = names.iter().map(|name| name.split(' ').next()).collect();
        // File descriptors have no order that could be relied on.
        names.sort_unstable();
        names.into_iter().map(|name| name.unwrap().to_owned()).collect::<Vec<_>>()
    };
    let memcached = names(&Server::memcached(&[]).unwrap());
    assert_eq!(names(&larderd(ENGINES[0], &[])), memcached);
}

#[test]
fn watchers_see_who_broke_the_protocol() {
    let lines = |server: &Server, bytes: &[u8]| {
        let mut watcher = watch(server, "connevents");
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        let lines = told(&mut watcher, "reason=error");
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

/// Debian's memcached has no such stream yet.
#[test]
fn watchers_see_what_is_deleted() {
    let requests = "set a 0 0 2\r\nhi\r\nset b 0 0 1\r\n1\r\ndelete none\r\ndelete a\r\n\
                    md b I\r\nmd b\r\nset last 0 0 1\r\n1\r\ndelete last\r\n";
    for engine in ENGINES {
        let server = larderd(engine, &[]);
        let mut watcher = watch(&server, "deletions");
        ask(&server, requests);
        let lines = told(&mut watcher, "key=last");
        let expected = [("a", "delete", 2), ("b", "md", 1), ("last", "delete", 1)];
        let expected = expected.map(|(key, command, size)| {
            format!("ts gid type=deleted key={key} cmd={command} clsid=1 size={size}")
        });
        assert_eq!(lines, expected, "{engine:?}");
    }
}

/// Fills 8 MiB more than twice; the first line that tells of an eviction, without its numbers.
fn first_eviction(server: &Server) -> String {
    let mut watcher = watch(server, "evictions");
    let kib = "x".repeat(1000);
    for i in 0..20 {
        let sets: String =
            (0..1000).map(|j| format!("set e-{i}-{j} 0 0 1000\r\n{kib}\r\n")).collect();
        ask(server, &sets);
    }
    format(&told(&mut watcher, "eviction")[0])
}

#[test]
fn lines_of_evictions_look_like_memcacheds() {
    let options = ["-m", "8", "-t", "1"];
    let memcached = first_eviction(&Server::memcached(&options).unwrap());
    assert!(memcached.contains(" type=eviction key=e-0-0 fetch=no ttl=-0 la=0 "), "{memcached}");
    for engine in [ENGINES[0], ENGINES[2]] {
        assert_eq!(first_eviction(&larderd(engine, &options)), memcached, "{engine:?}");
    }
}

#[test]
fn watchers_see_evictions() {
    for (engine, limit) in [(ENGINES[0], "3"), (ENGINES[2], "8")] {
        let server = larderd(engine, &["-m", limit, "-t", "1"]);
        let mut watcher = watch(&server, "evictions");
        let kib = "x".repeat(1000);
        for i in 0..20 {
            let sets: String =
                (0..1000).map(|j| format!("set e-{i}-{j} 0 0 1000\r\n{kib}\r\n")).collect();
            ask(&server, &sets);
        }
        let lines = told(&mut watcher, "eviction");
        let line = &lines[0];
        assert!(line.starts_with("ts gid type=eviction key=e-"), "{line}");
        assert!(line.contains(" fetch=no ttl=-1 la="), "{line}");
        assert!(line.ends_with(" clsid=12 size=1000"), "{line}");
    }
}

#[test]
fn a_slow_watcher_misses_lines_and_costs_no_memory() {
    let server = larderd(ENGINES[0], &["-t", "1"]);
    let mut watcher = watch(&server, "fetchers");
    let gets = "get a\r\n".repeat(10_000);
    // The kernel takes some for the watcher first, as much as it likes.
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

/// Lines that a watcher was shown, and those that it was told it missed.
fn lines_of_gets(seen: &str) -> (u64, u64) {
    let whole = &seen[..seen.rfind('\n').map_or(0, |end| end + 1)];
    let skipped = whole.lines().filter_map(|line| line.strip_prefix("skipped="));
    let skipped = skipped.map(|number| number.parse::<u64>().unwrap()).sum();
    let shown = whole.lines().filter(|line| line.contains(" type=item_get ")).count();
    (shown as u64, skipped)
}

#[test]
fn watching_can_be_forbidden_and_is_limited() {
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(ask(&larderd(ENGINES[0], &["-W"]), "watch\r\n"), refused);
    assert_eq!(ask(&Server::memcached(&["-W"]).unwrap(), "watch\r\n"), refused);
    let server = larderd(ENGINES[0], &[]);
    let watchers: Vec<TcpStream> = (0..20).map(|_| watch(&server, "")).collect();
    let refused = "WATCHER_TOO_MANY log watcher limit reached\r\n";
    assert_eq!(ask(&server, "watch\r\n"), refused);
    // A connection shows that it watches after the turn in which it was answered.
    wait_for("watchers in stats conns", || {
        ask(&server, "stats conns\r\n").matches(" conn_watch\r\n").count() == watchers.len()
    });
}

#[test]
fn a_delimiter_begins_to_count_at_once() {
    let server = larderd(ENGINES[0], &["-D", "/"]);
    let asks = "set a/b 0 0 1\r\n1\r\nget a/b\r\nget a:b\r\nstats detail dump\r\n";
    let answer = ask(&server, asks);
    assert!(answer.ends_with("END\r\nPREFIX a get 1 hit 1 set 1 del 0\r\nEND\r\n"), "{answer}");
    let settings = ask(&server, "stats settings\r\n");
    assert!(settings.contains("STAT stat_key_prefix /\r\nSTAT detail_enabled yes\r\n"));
    let refused = "CLIENT_ERROR stats detail not allowed\r\n";
    assert_eq!(ask(&larderd(ENGINES[0], &["-X"]), "stats detail on\r\n"), refused);
}

/// The names of a page, in order.
fn names(page: &str) -> Vec<String> {
    let names = page.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// What stands in backticks in the table of differences, also as the beginning of names: `ext_*`.
fn is_documented(name: &str) -> bool {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let table = std::fs::read_to_string(file).unwrap();
    let (differences, _) = table.split_once("## Options\n").unwrap();
    let cells = differences.lines().filter_map(|row| row.split('|').nth(1));
    let mut names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.any(|named| match named.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => named == name,
    })
}

#[test]
fn every_name_of_memcacheds_is_there_in_its_order() {
    let options = ["-o", "idle_timeout=1000,track_sizes"];
    let memcached = Server::memcached(&options).expect("memcached; scripts/test installs it");
    for engine in ENGINES {
        let server = larderd(engine, &options);
        for page in ["", " settings", " items", " slabs", " sizes", " conns", " extstore"] {
            let asks = format!("set a 0 0 1\r\n1\r\nget a\r\nstats{page}\r\n");
            let [theirs, ours] = [&memcached, &server].map(|server| names(&ask(server, &asks)));
            assert_eq!(theirs.is_empty(), page == " extstore", "{page}");
            let mut ours_left = ours.iter();
            let unnumbered = |name: &str| {
                let (number, rest) = name.split_once(':').unwrap_or(("", name));
                if page == " conns" { rest.to_owned() } else { format!("{number}:{rest}") }
            };
            for name in theirs.iter().filter(|name| !is_documented(name)) {
                // Connections come in the order of their file descriptors.
                if page == " conns" {
                    ours_left = ours.iter();
                }
                let found = ours_left.any(|ours| unnumbered(ours) == unnumbered(name));
                assert!(found, "{name} of stats{page}, {engine:?}, in {ours:?}");
            }
        }
    }
}

/// Pages that have no `STAT` lines, or few: the same text.
#[test]
fn short_pages_are_memcacheds() {
    let asks = "set a:b 0 0 1\r\n1\r\nget a:b a:c\r\ndelete a:b\r\nset x 0 0 500\r\n";
    let asks = format!("stats detail on\r\n{asks}{}\r\nget x\r\n", "v".repeat(500));
    let pages = "stats detail dump\r\nstats detail off\r\nstats detail dump\r\nstats detail\r\n\
                 stats detail x\r\nstats sizes\r\nstats sizes_disable\r\nstats sizes\r\n\
                 stats sizes_enable\r\nstats reset\r\nstats nonsense\r\nstats noreply\r\n\
                 stats cachedump\r\nstats cachedump 1 x\r\nstats cachedump 64 0\r\n\
                 stats extstore\r\n";
    let asks = format!("{asks}{pages}");
    let options = ["-t", "1", "-o", "track_sizes"];
    let memcached = ask(&Server::memcached(&options).unwrap(), &asks);
    assert!(memcached.contains("PREFIX a get 2 hit 1 set 1 del 1\r\n"), "{memcached}");
    for engine in ENGINES {
        assert_eq!(ask(&larderd(engine, &options), &asks), memcached, "{engine:?}");
    }
}

/// Sends a few halves of requests: their connections.
fn begin_requests(server: &Server) -> Vec<TcpStream> {
    let half_packet = [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 19][..], &[0; 30]].concat();
    let halves = [&b"set a 0 0 10\r\nabc"[..], b"set b 0 0 10\r\n", b"set c 0", b"", &half_packet];
    let begin = |half: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(half).unwrap();
        stream
    };
    halves.map(begin).into()
}

/// The states of all connections, in alphabetical order.
fn states(asking: &mut TcpStream) -> Vec<String> {
    let page = exchange(asking, "stats conns\r\n", "END\r\n");
    let lines = page.lines().filter(|line| line.contains(":state "));
    let mut states: Vec<String> =
        lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    states.sort();
    states
}

/// What half a request, and who asks, are shown as.
#[test]
fn connections_are_in_memcacheds_states() {
    let options = ["-t", "1"];
    let servers = [Server::memcached(&options).unwrap(), larderd(ENGINES[0], &options)];
    let _begun = servers.each_ref().map(begin_requests);
    let mut asking = servers.each_ref().map(Server::connect);
    // What was sent has to arrive first: then they agree, and go on agreeing.
    let (mut seen, mut times) = ([vec![], vec![]], 0);
    let begun = Instant::now();
    while times < 5 {
        assert!(begun.elapsed() < TIMEOUT, "{seen:?}");
        // They have to agree for a while.
        std::thread::sleep(Duration::from_millis(50));
        seen = asking.each_mut().map(states);
        let same = seen[0] == seen[1] && seen[0].iter().any(|state| state == "conn_nread");
        times = if same { times + 1 } else { 0 };
    }
}

/// memcached finishes one class before it begins the next.
#[test]
fn a_page_of_classes_shows_each_class_in_one_piece() {
    for server in [Server::memcached(&[]).unwrap(), larderd(&["segment"], &[])] {
        let large = "x".repeat(5000);
        ask(&server, &format!("set a 0 0 1\r\n1\r\nset b 0 0 5000\r\n{large}\r\n"));
        for page in ["items", "slabs"] {
            let shown = ask(&server, &format!("stats {page}\r\n"));
            let classes = shown.lines().filter_map(|line| {
                line.trim_start_matches("STAT ").trim_start_matches("items:").split_once(':')
            });
            let mut classes: Vec<&str> = classes.map(|(class, _)| class).collect();
            classes.dedup();
            let distinct: BTreeSet<&str> = classes.iter().copied().collect();
            assert_eq!((classes.len(), distinct.len()), (2, 2), "{shown}");
        }
    }
}
