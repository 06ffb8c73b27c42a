//! The extended options of `-o`.

use crate::common::{self, Server, TIMEOUT, larderd, stat, stderr, wait_for};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn exchange(stream: &mut TcpStream, request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

fn page(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let (mut page, mut bytes) = (String::new(), [0; 16 << 10]);
    while !page.ends_with("END\r\n") {
        let len = common::read_some(stream, &mut bytes).unwrap();
        assert!(len > 0, "closed after {page}");
        page.push_str(std::str::from_utf8(&bytes[..len]).unwrap());
    }
    page.replace('\r', "")
}

/// The first lines of the messages and the exit statuses must equal memcached's. Both programs
/// start on an unavailable port, so that they exit even if they accept the options.
#[test]
fn invalid_suboptions_are_refused_like_in_memcached() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for list in [
        "frob",
        "frob=1",
        "maxconns_fast,frob",
        "hashpower",
        "tail_repair_time",
        "tail_repair_time=5",
        "hash_algorithm",
        "hash_algorithm=md5",
        "lru_crawler_sleep",
        "lru_crawler_sleep=2000000",
        "lru_crawler_tocrawl",
        "hot_lru_pct",
        "hot_lru_pct=90",
        "hot_lru_pct=50,warm_lru_pct=50",
        "warm_lru_pct",
        "hot_max_factor=0",
        "warm_max_factor",
        "temporary_ttl",
        "idle_timeout",
        "slab_automove=9",
        "slab_automove_ratio",
        "slab_automove_ratio=2",
        "slab_automove_freeratio",
        "watcher_logbuf_size",
        "watcher_logbuf_size=x",
        "read_buf_mem_limit=x",
        "ext_page_size",
        "ext_page_size=x",
        "ext_max_frag",
        "ext_max_frag=x",
        "ext_item_size",
        "ext_item_size=-1",
        "ext_item_age=x",
        "ext_path",
        "ext_path=/nowhere/file",
        "ext_path=/nowhere/file:1g:frob",
        "ssl_wbuf_size",
        "ssl_wbuf_size=x",
        "ssl_chain_cert",
        "ssl_verify_mode=9",
        "ssl_verify_mode=x",
        "ssl_min_version=9",
        "proxy_config=/x",
        ",",
        "modern,,no_modern",
        "slab_sizes=x",
        "slab_sizes=100-0",
        "slab_sizes=200-100",
        "slab_sizes=100-108",
    ] {
        let words = ["-l", "127.0.0.1", "-p", &port, "-o", list];
        let ours = larderd(&words);
        let mut memcached = Command::new("memcached");
        let theirs = memcached.args(["-u", "root", "-U", "0"]).args(words).stdin(Stdio::null());
        let theirs = theirs.output().expect("memcached; scripts/test installs it");
        assert_eq!(ours.status.code(), theirs.status.code(), "{list}: {}", stderr(&ours));
        let first = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
        assert_eq!(first(stderr(&ours)), first(stderr(&theirs)), "{list}");
    }
}

#[test]
fn suboptions_without_effect_are_accepted_and_logged() {
    let list = "hashpower=20,no_hashexpand,tail_repair_time=10,hash_algorithm=xxh3,lru_maintainer,\
                no_lru_maintainer,temporary_ttl=5,slab_reassign,no_slab_reassign,slab_sizes=100-200,\
                slab_chunk_max=512,no_chunked_items,worker_logbuf_size=64,inline_ascii_resp,\
                no_inline_ascii_resp,modern,drop_privileges,no_drop_privileges,\
                resp_obj_mem_limit=1,sock_cookie_id=1,ext_page_size=64,\
                ext_wbuf_size=4,ext_threads=1,ext_io_depth=1,ext_item_size=512,ext_item_age=1,\
                ext_low_ttl=1,ext_recache_rate=1,ext_compact_under=1,ext_drop_under=1,\
                ext_max_sleep=1,ext_max_frag=0,ext_drop_unread,ssl_ciphers=A,\
                ssl_kernel_tls";
    let server = Server::larderd(&["-v", "-f", "2", "-N", "2", "-o", list]);
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    let said = server.said();
    for name in list.split(',').map(|text| text.split('=').next().unwrap()) {
        assert!(said.contains(&format!("-o {name} has no effect: ")), "{name} in {said}");
    }
    assert!(said.contains("-f has no effect: ") && said.contains("-N has no effect: "), "{said}");
}

#[test]
fn suboptions_appear_in_the_settings() {
    let list = "no_lru_crawler,lru_crawler_sleep=7,lru_crawler_tocrawl=8,hot_lru_pct=30,\
                warm_lru_pct=31,hot_max_factor=0.5,warm_max_factor=3,slab_automove=2,\
                slab_automove_ratio=0.7,slab_automove_window=9,idle_timeout=99,\
                watcher_logbuf_size=512,read_buf_mem_limit=12,track_sizes,ssl_wbuf_size=32";
    let server = Server::larderd(&["-o", list, "-o", "no_maxconns_fast"]);
    let settings = page(&mut server.connect(), "stats settings\r\n");
    for (name, value) in [
        ("lru_crawler", "no"),
        ("lru_crawler_sleep", "7"),
        ("lru_crawler_tocrawl", "8"),
        ("hot_lru_pct", "30"),
        ("warm_lru_pct", "31"),
        ("hot_max_factor", "0.50"),
        ("warm_max_factor", "3.00"),
        ("slab_automove", "2"),
        ("slab_automove_ratio", "0.70"),
        ("slab_automove_window", "9"),
        ("idle_timeout", "99"),
        ("watcher_logbuf_size", "524288"),
        ("read_buf_mem_limit", "12582912"),
        ("track_sizes", "yes"),
        ("maxconns_fast", "no"),
        ("ssl_wbuf_size", "32768"),
    ] {
        assert_eq!(stat(&settings, name), value, "{name}");
    }
}

/// memcached stores the number of bytes in 32 bits, and shows it even without TLS.
#[test]
fn the_buffer_of_tls_is_shown_as_memcached_shows_it() {
    for (options, bytes) in [
        (&[][..], "16384"),
        (&["-o", "ssl_wbuf_size=1"], "1024"),
        (&["-o", "ssl_wbuf_size=0,ext_max_frag=0"], "0"),
        (&["-o", "ssl_wbuf_size=4194305"], "1024"),
    ] {
        let ours = Server::larderd(options).ask_text("stats settings\r\n");
        let theirs = memcached(options).ask_text("stats settings\r\n");
        let shown =
            [&ours, &theirs].map(|page| page.contains(&format!("STAT ssl_wbuf_size {bytes}\r\n")));
        assert_eq!(shown, [true, true], "{options:?}: {ours}");
    }
}

/// Returns the lines of `stats settings` about external storage.
fn flash_settings(server: &Server) -> String {
    let page = server.ask_text("stats settings\r\n");
    let is_one = |line: &&str| {
        line.starts_with("STAT ext_") || line.starts_with("STAT slab_automove_freeratio ")
    };
    page.lines().filter(is_one).map(|line| format!("{line}\n")).collect()
}

/// memcached shows and changes these settings even without external storage.
#[test]
fn settings_of_flash_equal_those_of_memcached() {
    let rate = "ext_recache_rate=2000";
    let all = "ext_item_size=100,ext_item_age=60,ext_low_ttl=30,ext_recache_rate=9,\
               ext_wbuf_size=8,ext_compact_under=7,ext_drop_under=5,ext_max_sleep=1000,\
               ext_max_frag=0.555,slab_automove_freeratio=0.0126,ext_drop_unread";
    for list in [rate, all] {
        let options = ["-o", list];
        let (ours, theirs) = (Server::larderd(&options), memcached(&options));
        let shown = flash_settings(&ours);
        assert_eq!(shown, flash_settings(&theirs), "{list}");
        assert_eq!(shown.lines().count(), 11, "{shown}");
        for commands in [
            "item_size,item_size x,frob 1,item_size 7,low_ttl 3,recache_rate 4,compact_under 0",
            "item_age 11,drop_under 6,drop_unread 2,max_frag 0.25,max_sleep 70",
            "item_age 4294967295,drop_unread 0,free_memchunks 63 2,free_memchunks 64 2",
        ] {
            let commands: String =
                commands.split(',').map(|command| format!("extstore {command}\r\n")).collect();
            let answers = ours.ask_text(&commands);
            assert_eq!(answers, theirs.ask_text(&commands), "{commands}");
            assert!(answers.contains("OK\r\n"), "{answers}");
            assert_eq!(flash_settings(&ours), flash_settings(&theirs), "{commands}");
        }
    }
}

/// The replies are those of memcached 1.6.45. Debian's 1.6.18 accepts no abbreviations of
/// subcommands.
#[test]
fn subcommands_of_extstore_can_be_abbreviated() {
    let server = Server::larderd(&[]);
    for (command, answer) in [
        ("extstore", "ERROR"),
        ("extstore item_size", "ERROR"),
        ("extstore item_size 1 2 3", "OK"),
        ("extstore item_size -1", "ERROR"),
        ("extstore item_size 4294967296", "ERROR"),
        ("extstore item_sizes 1", "ERROR"),
        ("extstore i 100", "OK"),
        ("extstore item_a 11", "OK"),
        ("extstore l 1", "OK"),
        ("extstore r 4", "OK"),
        ("extstore c 8", "OK"),
        ("extstore d 6", "OK"),
        ("extstore drop_un 5", "OK"),
        ("extstore drop_unr 1", "OK"),
        ("extstore m 70", "OK"),
        ("extstore max_f 0.25", "OK"),
        ("extstore free_memchunks 1", "ERROR"),
        ("extstore f 1 2", "OK"),
        ("extstore f 1 x", "ERROR"),
        ("EXTSTORE item_size 1", "ERROR"),
    ] {
        assert_eq!(
            server.ask_text(&format!("{command}\r\n")),
            format!("{answer}\r\n"),
            "{command}"
        );
    }
    let quiet = "extstore low_ttl 3 noreply\r\nextstore item_age noreply\r\nmn\r\n";
    assert_eq!(server.ask_text(quiet), "MN\r\n");
    let settings = server.ask_text("stats settings\r\n").replace('\r', "");
    for (name, value) in [
        ("ext_item_size", "100"),
        ("ext_item_age", "11"),
        ("ext_low_ttl", "3"),
        ("ext_recache_rate", "4"),
        ("ext_compact_under", "8"),
        ("ext_drop_under", "5"),
        ("ext_max_sleep", "70"),
        ("ext_max_frag", "0.25"),
        ("ext_drop_unread", "yes"),
    ] {
        assert_eq!(stat(&settings, name), value, "{name}");
    }
}

fn memcached(options: &[&str]) -> Server {
    Server::memcached(options).expect("memcached; scripts/test installs it")
}

#[test]
fn a_connection_beyond_the_limit_is_refused() {
    let server = Server::larderd(&["-c", "2"]);
    let mut first = server.connect();
    let mut second = server.connect();
    exchange(&mut second, "mn\r\n", "MN\r\n");
    let mut refused = String::new();
    server.connect().read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    let stats = page(&mut first, "stats\r\n");
    assert_eq!(stat(&stats, "rejected_connections"), "1");
    assert_eq!(stat(&stats, "listen_disabled_num"), "0");
    assert_eq!(stat(&stats, "accepting_conns"), "1");
}

#[test]
fn a_connection_beyond_the_limit_waits_without_maxconns_fast() {
    let server = Server::larderd(&["-c", "2", "-o", "no_maxconns_fast"]);
    let mut first = server.connect();
    for times in 1..4 {
        let mut second = server.connect();
        exchange(&mut second, "mn\r\n", "MN\r\n");
        let mut third = server.connect();
        third.write_all(b"mn\r\n").unwrap();
        wait_for("closed gate", || stat(&page(&mut first, "stats\r\n"), "accepting_conns") == "0");
        third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let waits = common::read_some(&mut third, &mut [0; 1]).unwrap_err().kind();
        assert!(matches!(waits, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{waits}");
        let stats = page(&mut first, "stats\r\n");
        assert_eq!(stat(&stats, "accepting_conns"), "0");
        // The count grows by at least one in each iteration. It can grow by two, because the gate
        // may close again when the admission of `third` reaches the limit.
        assert!(stat(&stats, "listen_disabled_num").parse::<u64>().unwrap() >= times, "{stats}");
        assert!(!stats.contains("rejected_connections"));
        drop(second);
        third.set_read_timeout(Some(TIMEOUT)).unwrap();
        exchange(&mut third, "", "MN\r\n");
        drop(third);
        wait_for("open gate", || {
            let stats = page(&mut first, "stats\r\n");
            stat(&stats, "curr_connections") == "1" && stat(&stats, "accepting_conns") == "1"
        });
    }
    let stats = page(&mut first, "stats\r\n");
    assert!(stat(&stats, "time_in_listen_disabled_us").parse::<u64>().unwrap() > 100_000);
}

#[test]
fn only_idle_connections_are_closed() {
    let server = Server::larderd(&["-o", "idle_timeout=3"]);
    let mut busy = server.connect();
    let mut idle = server.connect();
    exchange(&mut idle, "mn\r\n", "MN\r\n");
    // A connection with an incomplete value is not idle.
    let mut sending = server.connect();
    sending.write_all(b"set a 0 0 5\r\nab").unwrap();
    let ended = std::thread::spawn(move || idle.read_to_end(&mut Vec::new()).unwrap());
    let begun = Instant::now();
    while !ended.is_finished() || begun.elapsed() < Duration::from_secs(6) {
        exchange(&mut busy, "mn\r\n", "MN\r\n");
        // Pause between the requests of the busy connection.
        std::thread::sleep(Duration::from_millis(50));
        assert!(begun.elapsed() < TIMEOUT, "it is still open");
    }
    assert_eq!(ended.join().unwrap(), 0);
    exchange(&mut sending, "cde\r\n", "STORED\r\n");
    let stats = page(&mut busy, "stats\r\n");
    assert_eq!(stat(&stats, "idle_kicks"), "1");
}

#[test]
fn a_slow_watcher_has_the_configured_buffer() {
    // The 1000 lines have about 90 bytes each, so they fit in the larger buffer only. The server
    // sends each line within 20 ms.
    for (kib, skips) in [(1, true), (200, false)] {
        let size = format!("watcher_logbuf_size={kib}");
        let server = Server::larderd(&["-o", &size]);
        let mut watcher = server.connect();
        exchange(&mut watcher, "watch fetchers\r\n", "OK\r\n");
        server.ask_text(&"get a\r\n".repeat(1000));
        let stats = server.ask_text("stats\r\n").replace('\r', "");
        let skipped: u64 = stat(&stats, "log_watcher_skipped").parse().unwrap();
        assert!(skipped < 1000 && (skipped > 0) == skips, "{kib} KiB: {skipped} skipped");
    }
}

/// The memory limit of all connections in bytes with `-o read_buf_mem_limit=1`.
const HELD_MAX: usize = 1 << 20;

/// The maximum number of bytes that connections may hold while the server is closing connections to
/// enforce the limit.
const HELD_FOR_NOW_MAX: usize = HELD_MAX / 2 * 3;

/// Returns whether the server has closed a connection because of the buffer limit. The closed
/// connection may be the connection that needed more memory, or a stalled connection.
fn is_one_refused(server: &Server) -> bool {
    // The server may also close the connection that requests the statistics.
    let stats = server.ask_text("stats\r\n").replace('\r', "");
    let counted =
        |name: &str| stats.contains(&format!("STAT {name} ")) && stat(&stats, name) != "0";
    let refused = counted("read_buf_oom") || counted("stalled_kicks");
    let held: usize = if refused { stat(&stats, "read_buf_bytes").parse().unwrap() } else { 0 };
    assert!(held <= HELD_FOR_NOW_MAX, "{held} bytes");
    refused
}

/// Tests values that the server buffers in the connection's memory until they are complete. The
/// test needs a large memory limit: with a smaller limit, the server would upload values of this
/// length into the engine as they arrive.
#[test]
fn incomplete_requests_stay_within_the_buffer_limit() {
    let server = Server::larderd(&["-m", "1024", "-o", "read_buf_mem_limit=1"]);
    let half = format!("set a 0 0 60000\r\n{}", "x".repeat(50_000));
    let begin = |count: usize| -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = server.connect();
            // The server may close the connection before everything is written.
            let _ = stream.write_all(half.as_bytes());
            stream
        };
        (0..count).map(connect).collect()
    };
    let few = begin(5);
    wait_for("requests", || {
        let stats = server.ask_text("stats\r\n").replace('\r', "");
        stat(&stats, "read_buf_bytes").parse::<usize>().unwrap() >= 5 * half.len()
    });
    assert!(!is_one_refused(&server), "it all fits");
    let many = begin(30);
    wait_for("refusal", || is_one_refused(&server));
    drop((few, many));
}

/// The part of an unread reply that the server must buffer depends on the kernel's buffers. For
/// this reason, the test requests replies of different lengths until the limit is reached.
#[test]
fn unread_replies_stay_within_the_buffer_limit() {
    let server = Server::larderd(&["-o", "read_buf_mem_limit=1"]);
    let mut greedy = Vec::new();
    let begun = Instant::now();
    while !is_one_refused(&server) {
        assert!(begun.elapsed() < TIMEOUT, "{} connections exceed the limit", greedy.len());
        if greedy.len() < 300 {
            let (key, len) = (greedy.len(), 60_000 - 97 * greedy.len());
            server.ask_text(&format!("set {key} 0 0 {len}\r\n{}\r\n", "x".repeat(len)));
            let mut stream = connect_with_a_small_buffer(server.port());
            let _ = stream.write_all(format!("get {key}\r\n").repeat(500).as_bytes());
            greedy.push(stream);
        }
    }
}

/// Connects a client with a small receive buffer.
fn connect_with_a_small_buffer(port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
    socket.into()
}
