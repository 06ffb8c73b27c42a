//! The behaviour that each runtime must have with each engine. `scripts/test-runtimes` runs the
//! other modules under each runtime to compare replies.

use crate::common::{self, RUNTIMES, Scratch, Server, TIMEOUT, stat, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

const ENGINES: [&[&str]; 3] = [&["segment"], &["dashmap", "-M"], &["moka"]];

/// Starts a server for each combination of runtime and engine, and checks all servers concurrently,
/// because most checks wait.
fn each(options: &[&str], check: impl Fn(&Server, &str) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for runtime in RUNTIMES {
            for engine in ENGINES {
                scope.spawn(move || {
                    let chosen = [&["--runtime", runtime, "--engine"], engine, options].concat();
                    check(&Server::larderd(&chosen), &format!("{runtime} over {}", engine[0]));
                });
            }
        }
    });
}

fn page(server: &Server, request: &str) -> String {
    String::from_utf8(server.ask(request.as_bytes())).unwrap().replace('\r', "")
}

fn number(server: &Server, name: &str) -> usize {
    stat(&page(server, "stats\r\n"), name).parse().unwrap()
}

#[test]
fn the_configured_runtime_runs() {
    each(&["-t", "1"], |server, what| {
        let settings = page(server, "stats settings\r\n");
        let (runtime, engine) = (stat(&settings, "runtime"), stat(&settings, "engine"));
        assert_eq!(format!("{runtime} over {engine}"), what);
    });
}

#[test]
fn an_unknown_runtime_is_refused() {
    let output = common::larderd(&["--runtime", "tokio"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(common::stderr(&output).contains("tokio-multi-thread"), "{output:?}");
}

/// Maintenance must process the open segments of every thread without help from requests. The
/// clients only request a crawl and the number of items.
#[test]
fn expired_items_are_removed_without_requests() {
    each(&["-t", "3"], |server, what| {
        let clients: Vec<TcpStream> = (0..12).map(|_| server.connect()).collect();
        std::thread::scope(|scope| {
            for (client, stream) in clients.iter().enumerate() {
                scope.spawn(move || store_for_a_second(stream, client));
            }
        });
        // Wait until the TTL of one second has passed and the server's clock has ticked again.
        std::thread::sleep(Duration::from_millis(2100));
        assert_eq!(server.ask(b"lru_crawler crawl all\r\n"), b"OK\r\n");
        // Moka keeps a few expired items until its next maintenance.
        wait_for(what, || number(server, "curr_items") < 30);
    });
}

fn store_for_a_second(mut stream: &TcpStream, client: usize) {
    for i in 0..300 {
        let set = format!("set {client}-{i} 0 1 5\r\nvalue\r\n");
        stream.write_all(set.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    }
}

const PIECE: usize = 100_000;
const PIECES: usize = 8;

/// Returns a value that identifies its client, its round and each offset.
fn value(client: usize, round: usize) -> Vec<u8> {
    let piece = |piece| format!("{client:03}.{round:03}.{piece:03}.").into_bytes();
    let pieces = (0..PIECES).map(|i| {
        let label = piece(i);
        let mut bytes = label.repeat(PIECE.div_ceil(label.len()));
        bytes.truncate(PIECE);
        bytes
    });
    pieces.collect::<Vec<_>>().concat()
}

/// Sends a value in pieces, so that it arrives in many polls, and reads it back.
fn stores_and_reads_back(stream: &mut TcpStream, client: usize, round: usize) -> bool {
    let value = value(client, round);
    stream.write_all(format!("set large-{client} 0 0 {}\r\n", value.len()).as_bytes()).unwrap();
    for piece in value.chunks(PIECE) {
        stream.write_all(piece).unwrap();
        std::thread::yield_now();
    }
    stream.write_all(format!("\r\nget large-{client}\r\n").as_bytes()).unwrap();
    let head = format!("STORED\r\nVALUE large-{client} 0 {}\r\n", value.len());
    let expected = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    answer == expected
}

/// With work stealing, one thread can receive the start of a value, and another thread can receive
/// the rest.
#[test]
fn large_values_survive_a_change_of_threads() {
    each(&["-t", "4", "-m", "256"], |server, what| {
        std::thread::scope(|scope| {
            for client in 0..12 {
                let mut stream = server.connect();
                let what = &what;
                scope.spawn(move || {
                    for round in 0..5 {
                        let same = stores_and_reads_back(&mut stream, client, round);
                        assert!(same, "{what}: {client}, {round}");
                    }
                });
            }
        });
    });
}

/// All connections increment one counter. Any thread may serve them.
#[test]
fn counts_add_up_over_threads() {
    each(&["-t", "4"], |server, what| {
        assert_eq!(server.ask(b"set n 0 0 1\r\n0\r\n"), b"STORED\r\n");
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| server.ask(&b"incr n 1\r\n".repeat(500)));
            }
        });
        assert_eq!(server.ask(b"incr n 0\r\n"), b"8000\r\n", "{what}");
        assert_eq!(number(server, "cmd_set"), 1, "{what}");
        // Each thread counts commands. No count is lost when a connection moves.
        assert_eq!(number(server, "incr_hits"), 8001, "{what}");
    });
}

/// The server must stop even if idle and busy connections are open.
#[test]
fn a_stop_does_not_wait_for_clients() {
    for runtime in RUNTIMES {
        let mut server = Server::larderd(&["--runtime", runtime, "-t", "3", "-A"]);
        let idle: Vec<TcpStream> = (0..30).map(|_| server.connect()).collect();
        let mut watcher = server.connect();
        watcher.write_all(b"watch fetchers\r\n").unwrap();
        watcher.read_exact(&mut [0; 4]).unwrap();
        let mut busy = server.connect();
        busy.write_all(&b"mn\r\n".repeat(100_000)).unwrap();
        assert_eq!(server.ask(b"shutdown\r\n"), b"", "{runtime}");
        assert_eq!(server.ends().code(), Some(0), "{runtime}");
        drop((idle, watcher, busy));
    }
}

/// Returns a process's CPU time, in hundredths of a second.
fn ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn waiting_uses_no_cpu_time() {
    each(&["-t", "2", "-o", "idle_timeout=60"], |server, what| {
        let mut asked = server.connect();
        asked.write_all(b"mn\r\n").unwrap();
        asked.read_exact(&mut [0; 4]).unwrap();
        let mut half = server.connect();
        half.write_all(b"set a 0 0 1000000\r\nab").unwrap();
        let mut watcher = server.connect();
        watcher.write_all(b"watch evictions\r\n").unwrap();
        // This client reads no replies, so the server can neither read from its connection nor
        // write to it.
        let mut deaf = server.connect();
        deaf.write_all(b"set big 0 0 500000\r\n").unwrap();
        deaf.write_all(&[&[b'x'; 500_000][..], b"\r\n"].concat()).unwrap();
        deaf.write_all(&b"get big\r\n".repeat(100)).unwrap();
        // Wait until the server has processed the requests.
        wait_for(&format!("rest, {what}"), || {
            let before = ticks(server);
            // Measure the CPU time while the server has no work.
            std::thread::sleep(Duration::from_secs(2));
            ticks(server) - before < 30
        });
    });
}

#[test]
fn idle_connections_are_closed() {
    each(&["-t", "2", "-o", "idle_timeout=3"], |server, what| {
        let mut half = server.connect();
        half.write_all(b"set a 0 0 2\r\nh").unwrap();
        let mut silent = [server.connect(), server.connect()];
        silent[0].write_all(b"mn\r\n").unwrap();
        silent[0].read_exact(&mut [0; 4]).unwrap();
        for silent in &mut silent {
            assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0, "{what}");
        }
        assert_eq!(number(server, "idle_kicks"), 2, "{what}");
        // A connection with an incomplete request is not idle.
        half.write_all(b"i\r\n").unwrap();
        let mut answer = [0; 8];
        half.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n", "{what}");
    });
}

/// The test runs longer than three seconds, after which a thread counts as stalled.
#[test]
fn idle_threads_keep_notifying_the_watchdog() {
    std::thread::scope(|scope| {
        for runtime in RUNTIMES {
            scope.spawn(move || expect_notifications(runtime, Duration::from_millis(4500)));
        }
    });
}

fn expect_notifications(runtime: &str, time: Duration) {
    let scratch = Scratch::new(&format!("watchdog-{runtime}"));
    let path = scratch.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "800000")];
    let _server = Server::larderd_with(&["-t", "4", "--runtime", runtime], &variables);
    let mut bytes = [0; 64];
    let mut receives = || {
        let len = manager.recv(&mut bytes).unwrap();
        assert!(bytes[..len].starts_with(b"READY=1") || bytes[..len].starts_with(b"WATCHDOG=1"));
    };
    let begun = Instant::now();
    while begun.elapsed() < time {
        receives();
    }
    receives();
}
