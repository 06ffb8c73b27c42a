//! Runs of the load generator against memcached and Redis.

use crate::common::{ReservedPort, Server, arguments, load};
use larder_bench::{Command, Measured, run};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const MEMCACHED: [&str; 3] = ["text", "meta", "binary"];

fn command(measured: &Measured, name: &str) -> Command {
    measured.outcome.commands.get(name).cloned().unwrap_or_default()
}

/// Each of 2 × 3 connections sends 1,100 requests: 110 sets and 990 gets.
#[test]
fn every_request_is_counted_once() {
    let (memcached, redis) = (Server::memcached(), Server::redis());
    let servers = MEMCACHED.map(|name| (name, &memcached));
    for (protocol, server) in servers.into_iter().chain([("resp", &redis)]) {
        for depth in ["--pipeline 1", "--pipeline 7", "--pipeline 7 --sliding"] {
            let line = "-t 2 -c 3 -n 1100 --ratio 1:9 --key-maximum 500 --fill --verify -R \
                        --data-size-range 0-3000 --distinct-client-seed";
            let measured = server.load(&format!("-P {protocol} {line} {depth}"));
            let (set, get) = (command(&measured, "set"), command(&measured, "get"));
            assert_eq!((set.requests, get.requests), (660, 5940), "{protocol} {depth}");
            assert_eq!((get.hits, get.misses), (5940, 0), "{protocol} {depth}");
            assert_eq!(measured.outcome.total().requests, 6600);
            assert_eq!(measured.histograms["total"].len(), 6600);
            assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
        }
    }
}

#[test]
fn keys_of_a_multi_get_are_counted_each() {
    let (memcached, redis) = (Server::memcached(), Server::redis());
    let servers = MEMCACHED.map(|name| (name, &memcached));
    for (protocol, server) in servers.into_iter().chain([("resp", &redis)]) {
        // Sets half of the keys from which the gets below choose.
        server.load(&format!("-P {protocol} -t 1 -c 1 -n 1 --ratio 1:0 --key-maximum 99 --fill"));
        let line = "-t 1 -c 2 -n 200 --ratio 0:1 --key-maximum 199 --multi-key-get 5 --pipeline 3 \
                    --verify --data-size 32";
        let get = command(&server.load(&format!("-P {protocol} {line}")), "get");
        assert_eq!((get.requests, get.hits + get.misses), (400, 2000), "{protocol}");
        assert!((800..1200).contains(&get.hits), "{protocol}: {} hits", get.hits);
    }
}

#[test]
fn misses_are_counted() {
    let server = Server::memcached();
    for protocol in MEMCACHED {
        let measured = server.load(&format!("-P {protocol} -t 1 -c 1 -n 50 --ratio 0:1"));
        let get = command(&measured, "get");
        assert_eq!((get.hits, get.misses, get.value_bytes), (0, 50, 0), "{protocol}");
    }
}

#[test]
fn values_expire_after_their_ttl() {
    let server = Server::memcached();
    let line = "-t 1 -c 1 --key-maximum 9 -n 10 --key-pattern S:S";
    for protocol in MEMCACHED {
        server.load(&format!("-P {protocol} {line} --ratio 1:0 --expiry-range 1-1"));
        // On a busy machine, memcached's clock can lag, and items then expire late, so the test
        // repeats the gets until all miss.
        let start_time = Instant::now();
        let misses = || {
            let measured = server.load(&format!("-P {protocol} {line} --ratio 0:1"));
            command(&measured, "get").misses
        };
        while misses() < 10 {
            assert!(start_time.elapsed() < Duration::from_secs(60), "{protocol}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn a_wrong_value_is_a_fault() {
    let server = Server::memcached();
    let line = "-t 1 -c 1 -n 20 --key-maximum 0 --data-size 5 --key-prefix k";
    server.load(&format!("{line} --ratio 1:0"));
    // The first load ran without --verify, so its values do not derive from their keys. A load with
    // --verify reports them as wrong.
    let wrong = server.load(&format!("{line} --ratio 0:1 --verify"));
    assert_eq!(wrong.outcome.faults.get("wrong value"), Some(&20));
    server.load(&format!("{line} --ratio 1:0 --verify"));
    let right = server.load(&format!("{line} --ratio 0:1 --verify"));
    assert_eq!(right.outcome.faults.get("wrong value"), None);
}

#[test]
fn error_messages_of_the_server_are_reported() {
    let server = Server::memcached();
    let measured = server.load("-t 1 -c 1 -n 3 --ratio 1:0 --data-size 2000000");
    let set = command(&measured, "set");
    assert_eq!((set.requests, set.errors), (0, 3));
    let words = "SERVER_ERROR object too large for cache";
    assert_eq!(measured.outcome.faults.get(words), Some(&3), "{:?}", measured.outcome.faults);
}

/// Requests that were scheduled while the server was stopped count with their full delay.
#[test]
fn the_open_loop_includes_the_delay_of_a_stall() {
    let server = Server::memcached();
    let stalled = || {
        std::thread::scope(|scope| {
            let load = scope.spawn(|| server.load("-t 1 -c 4 --rate 2000 --test-time 3"));
            server.await_requests(2000);
            server.signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(500));
            server.signal(Signal::SIGCONT);
            load.join().unwrap().outcome.total()
        })
    };
    // While the server was stopped for half a second, 1,000 of the 6,000 requests were due, at even
    // intervals. If the load generator waits for a processor at the end of the run, it does not
    // send the last requests. If the test waits for a processor, it stops the server too late. In
    // both cases, the test repeats the load.
    let start_time = Instant::now();
    let mut total = stalled();
    let is_disturbed = |total: &Command| total.requests < 5900 || total.latency.max < 450e3;
    while is_disturbed(&total) && start_time.elapsed() < Duration::from_secs(60) {
        total = stalled();
    }
    assert!((5900..=6002).contains(&total.requests), "{} requests", total.requests);
    assert!(total.latency.max >= 450e3, "{:?}", total.latency);
    assert!(total.latency.p99_9 >= 450e3, "{:?}", total.latency);
    assert!(total.latency.p90 >= 100e3, "{:?}", total.latency);
}

/// While the server was stopped for half a second, 25 bursts were due on each connection. The
/// bursts are sent later, and the first request of each burst counts with its delay.
#[test]
fn bursts_that_were_due_during_a_stall_are_sent_later() {
    let server = Server::memcached();
    let start_time = Instant::now();
    loop {
        let measured = std::thread::scope(|scope| {
            let line = "-t 1 -c 4 --rate-limiting 500 --test-time 3 --pipeline 4";
            let load = scope.spawn(|| server.load(line));
            server.await_requests(2000);
            server.signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(500));
            server.signal(Signal::SIGCONT);
            load.join().unwrap()
        });
        let late = measured.histograms["total"].count_between(100_000_000, u64::MAX);
        let total = measured.outcome.total();
        assert!(total.requests <= 6000 && total.latency.max >= 400e3, "{total:?}");
        // 20 bursts of each connection waited for more than 100 ms. If the load generator waited
        // for a processor, the test repeats the load.
        if total.requests == 6000 && (60..=1000).contains(&late) {
            break;
        }
        assert!(
            start_time.elapsed() < Duration::from_secs(60),
            "{late} late of {}",
            total.requests
        );
    }
}

#[test]
fn the_closed_loop_sends_fewer_requests_during_a_stall() {
    let server = Server::memcached();
    let measured = std::thread::scope(|scope| {
        let load = scope.spawn(|| server.load("-t 1 -c 4 --test-time 2"));
        server.await_requests(1000);
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(500));
        server.signal(Signal::SIGCONT);
        load.join().unwrap()
    });
    assert!(!measured.outcome.open_loop);
    let total = measured.histograms["total"].clone();
    let stalled = total.count_between(400_000_000, u64::MAX);
    assert_eq!(stalled, 4, "one a connection");
}

#[test]
fn the_open_loop_keeps_its_rate() {
    let server = Server::memcached();
    for depth in ["--pipeline 1", "--pipeline 10"] {
        // If the load generator waits for a processor at the end of the run, it does not send the
        // last requests. The test then repeats the load. A load never sends more requests than the
        // rate allows.
        let start_time = Instant::now();
        loop {
            let measured = server.load(&format!("-t 2 -c 5 --rate 3000 --test-time 2 {depth}"));
            let requests = measured.outcome.total().requests;
            assert!(requests <= 6020, "{depth}: {requests}");
            if requests >= 5900 {
                break;
            }
            assert!(start_time.elapsed() < Duration::from_secs(60), "{depth}: {requests}");
        }
    }
}

#[test]
fn the_servers_process_is_found_and_its_cpu_time_reported() {
    let server = Server::memcached();
    let measured = server.load("-t 1 -c 10 --test-time 1 --pipeline 10");
    let cost = measured.outcome.server.expect("it runs here");
    assert_eq!(cost.pid, server.pid());
    assert!(cost.user_micros + cost.system_micros > 0.1, "{cost:?}");
    assert!(cost.rss_after > 1 << 20, "{cost:?}");
}

#[test]
fn a_server_that_closes_all_connections_ends_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 100]);
            let _ = stream.write_all(b"END\r\nwhat?\r\n");
        }
    });
    let line = format!("-s 127.0.0.1 -p {port} -t 2 -c 2 --ratio 0:1 -n 100");
    let outcome = load(&line).outcome;
    let total = outcome.total();
    assert_eq!((total.requests, total.never_answered, outcome.lost_connections), (4, 0, 4));
    assert!(outcome.ended_early.unwrap().contains("all connections were lost"));
}

#[test]
fn a_server_that_does_not_listen_is_an_error() {
    let reserved = ReservedPort::new();
    let port = reserved.port;
    let line = format!("-s 127.0.0.1 -p {port}");
    let error = run(&arguments(&line).settings().unwrap(), None, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("cannot connect to"), "{error}");
}

/// Returns the number of connections that a memcached has accepted.
fn connections_accepted(server: &Server) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut stats = String::new();
    stream.read_to_string(&mut stats).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT total_connections "));
    line.unwrap().parse().unwrap()
}

#[test]
fn connections_are_opened_again_after_an_interval() {
    let (memcached, redis) = (Server::memcached(), Server::redis_with(&["--requirepass", "word"]));
    for depth in ["--pipeline 1", "--pipeline 4", "--pipeline 4 --sliding", "--rate 2000"] {
        let line = "-t 2 -c 3 -n 100 --reconnect-interval 10 --key-maximum 99 --ratio 1:1 --verify";
        let before = connections_accepted(&memcached);
        let total = memcached.load(&format!("{line} {depth}")).outcome.total();
        assert_eq!((total.requests, total.errors, total.never_answered), (600, 0, 0), "{depth}");
        // Two connections are additional: one from `connections_accepted`, and one from the load
        // generator's statistics query.
        assert_eq!(connections_accepted(&memcached) - before, 6 * 10 + 2, "{depth}");
        let measured = redis.load(&format!("-P resp -a word {line} {depth}"));
        assert_eq!(measured.outcome.total().requests, 600, "{depth}");
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    }
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn connections_are_added_in_steps() {
    let server = Server::memcached();
    let before = connections_accepted(&server);
    let accepted = std::thread::scope(|scope| {
        let line = "-t 2 -c 5 --clients-start 1 --clients-step 3 --step-duration 1 \
                    --test-time 2.5 --pipeline 2";
        let load = scope.spawn(|| server.load(line));
        let mut accepted = Vec::new();
        while !load.is_finished() {
            // Each call to `connections_accepted` also opens a connection.
            let number = connections_accepted(&server) - before;
            accepted.push(number - 1 - accepted.len() as u64);
            std::thread::sleep(Duration::from_millis(20));
        }
        let outcome = load.join().unwrap().outcome;
        assert!(outcome.faults.is_empty() && outcome.ended_early.is_none(), "{outcome:?}");
        accepted
    });
    // Before the load starts, the load generator queries statistics on another connection.
    for step in [2, 8, 10].map(|step| step + 1) {
        assert!(accepted.contains(&step), "{step}: {accepted:?}");
    }
    assert_eq!(accepted.iter().max(), Some(&11), "{accepted:?}");
}
