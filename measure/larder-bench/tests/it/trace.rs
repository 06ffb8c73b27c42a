//! Replays of traces (`--trace`).

use crate::common::broken_server::{Action, BrokenServer, Request};
use crate::common::{Server, arguments, load, parse};
use larder_bench::{Command, Measured, run};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A trace in a file.
struct Trace {
    folder: TempDir,
}

impl Trace {
    fn new(text: &str) -> Self {
        let trace = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(trace.path(), text).unwrap();
        trace
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trace.csv")
    }

    fn option(&self) -> String {
        format!("--trace {}", self.path().display())
    }
}

/// A server of memcached's text protocol that records all requests.
struct Recorder {
    port: u16,
    requests: Arc<Mutex<Vec<Received>>>,
}

#[derive(Clone, Debug)]
struct Received {
    /// Number of the connection.
    connection: usize,
    /// The first line of the request, without its line break.
    line: String,
    /// The value, if the request stores one; empty otherwise.
    value: Vec<u8>,
    at: Instant,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || record(connection, &stream.unwrap(), &kept));
            }
        });
        Self { port, requests }
    }

    fn load(&self, line: &str) -> Measured {
        load(&format!("-s 127.0.0.1 -p {} {line}", self.port))
    }

    fn requests(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }

    fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

/// Records the requests of a connection, and answers each like an empty cache.
fn record(connection: usize, stream: &TcpStream, kept: &Mutex<Vec<Received>>) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
        let at = Instant::now();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (answer, len) = match words[0] {
            "get" | "gets" => ("END", None),
            "delete" | "incr" | "decr" => ("NOT_FOUND", None),
            _ => ("STORED", Some(words[4].parse::<usize>().unwrap())),
        };
        let mut value = vec![0; len.map_or(0, |len| len + 2)];
        reader.read_exact(&mut value).unwrap();
        value.truncate(len.unwrap_or(0));
        let received = Received { connection, line: line.trim().to_owned(), value, at };
        kept.lock().unwrap().push(received);
        if write!(&mut &*stream, "{answer}\r\n").is_err() {
            return;
        }
        line.clear();
    }
}

fn command(measured: &Measured, name: &str) -> Command {
    measured.outcome.commands.get(name).cloned().unwrap_or_default()
}

const ALL_OPERATIONS: &str = "\
    100,a,1,5,7,set,60\n\
    100,a,1,5,7,get,0\n\
    100,a,1,5,7,gets,0\n\
    101,b,1,30,8,add,0\n\
    101,a,1,6,8,replace,100\n\
    101,a,1,20,8,cas,30\n\
    102,b,1,2,8,append,0\n\
    102,b,1,3,8,prepend,0\n\
    102,a,1,7,8,incr,0\n\
    103,a,1,7,8,decr,0\n\
    103,b,1,0,8,delete,0\n\
    103,b,1,9,8,get,0\n\
    103,b,1,0,8,delete,0\n";

#[test]
fn a_replay_sends_the_recorded_operations() {
    let (recorder, trace) = (Recorder::start(), Trace::new(ALL_OPERATIONS));
    let measured = recorder.load(&format!("-t 1 -c 1 {}", trace.option()));
    let expected = [
        "set a 0 60 5",
        "get a",
        "gets a",
        "add b 0 0 30",
        "replace a 0 100 6",
        "set a 0 30 20",
        "append b 0 0 2",
        "prepend b 0 0 3",
        "incr a 1",
        "decr a 1",
        "delete b",
        "get b",
        "delete b",
    ];
    assert_eq!(recorder.lines(), expected);
    assert_eq!(measured.outcome.total().requests, 13);
    assert_eq!(measured.histograms["total"].len(), 13);
    assert_eq!(command(&measured, "delete").misses, 2);
    assert!(measured.outcome.faults.is_empty() && measured.outcome.ended_early.is_none());
}

#[test]
fn every_protocol_has_the_operations() {
    let (memcached, redis) = (Server::memcached(), Server::redis());
    let trace = Trace::new(ALL_OPERATIONS);
    let without_prepend: String = ALL_OPERATIONS
        .lines()
        .filter(|line| !line.contains("prepend"))
        .fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        });
    let for_redis = Trace::new(&without_prepend);
    for protocol in ["text", "meta", "binary", "resp"] {
        let (server, trace) = match protocol {
            "resp" => (&redis, &for_redis),
            _ => (&memcached, &trace),
        };
        let line = format!("-P {protocol} -t 1 -c 2 --pipeline 3 {}", trace.option());
        let measured = server.load(&line);
        let faults = &measured.outcome.faults;
        assert!(faults.is_empty() && measured.outcome.ended_early.is_none(), "{faults:?}");
        for (name, requests, hits, misses) in [
            ("set", 1, 0, 0),
            ("get", 2, 1, 1),
            ("gets", 1, 1, 0),
            ("add", 1, 0, 0),
            ("replace", 1, 0, 0),
            ("cas", 1, 0, 0),
            ("append", 1, 0, 0),
            ("incr", 1, 0, 0),
            ("decr", 1, 0, 0),
            ("delete", 2, 0, 1),
        ] {
            let row = command(&measured, name);
            let found = (row.requests, row.hits, row.misses);
            assert_eq!(found, (requests, hits, misses), "{protocol} {name}");
        }
        assert_eq!(command(&measured, "get").value_bytes, 5, "{protocol}");
    }
    let refused = redis.load(&format!("-P resp -t 1 -c 1 {}", trace.option()));
    let reason = refused.outcome.ended_early.unwrap();
    assert!(reason.contains("line 8: RESP has no command that prepends"), "{reason}");
    assert_eq!(refused.outcome.commands["total"].requests, 7, "the requests before it were sent");
}

#[test]
fn requests_of_a_key_stay_in_order_and_on_a_connection() {
    let mut text = String::new();
    for number in 0..3000 {
        let _ = writeln!(text, "{},k{},2,{},1,set,0", number / 100, number * 7 % 40, 100 + number);
    }
    let trace = Trace::new(&text);
    for options in ["-t 2 -c 3 --pipeline 4", "-t 3 -c 2 --pipeline 5 --sliding", "--speed 1000"] {
        let recorder = Recorder::start();
        let measured = recorder.load(&format!("{options} {}", trace.option()));
        assert_eq!(measured.outcome.total().requests, 3000, "{options}");
        let mut by_key: BTreeMap<String, Vec<(usize, usize)>> = BTreeMap::new();
        for request in recorder.requests() {
            let key = request.line.split(' ').nth(1).unwrap().to_owned();
            by_key.entry(key).or_default().push((request.connection, request.value.len()));
        }
        assert_eq!(by_key.len(), 40);
        for (key, requests) in by_key {
            let connections: BTreeSet<usize> = requests.iter().map(|(c, _)| *c).collect();
            assert_eq!((connections.len(), requests.len()), (1, 75), "{options}: {key}");
            assert!(requests.is_sorted_by_key(|(_, len)| *len), "{options}: {key}");
        }
    }
}

#[test]
fn a_get_that_misses_is_followed_by_a_set_if_the_form_says_so() {
    let look_aside = Trace::new("0,a,10,60\n0,b,20\n1,a,10,60\n");
    let twitter = Trace::new("0,a,1,10,1,get,0\n");
    let check = |trace: &Trace, options: &str, expected: &[&str]| {
        let recorder = Recorder::start();
        let measured = recorder.load(&format!("-t 1 -c 1 {options} {}", trace.option()));
        assert_eq!(recorder.lines(), expected, "{options}");
        assert_eq!(measured.outcome.total().requests, expected.len() as u64);
    };
    let sets = ["get a", "set a 0 60 10", "get b", "set b 0 0 20", "get a", "set a 0 60 10"];
    check(&look_aside, "", &sets);
    check(&look_aside, "--on-miss nothing", &["get a", "get b", "get a"]);
    check(&twitter, "", &["get a"]);
    check(&twitter, "--on-miss set", &["get a", "set a 0 0 10"]);
    // No set follows a hit.
    let server = Server::memcached();
    let measured = server.load(&format!("-t 1 -c 1 {}", look_aside.option()));
    let (get, set) = (command(&measured, "get"), command(&measured, "set"));
    assert_eq!((get.hits, get.misses, set.requests), (1, 2, 2));
    assert_eq!(get.value_bytes, 10);
}

#[test]
fn a_number_of_requests_or_a_time_ends_a_replay() {
    let (recorder, trace) = (Recorder::start(), Trace::new(ALL_OPERATIONS));
    let measured = recorder.load(&format!("-t 2 -c 2 -n 5 {}", trace.option()));
    assert_eq!((measured.outcome.total().requests, recorder.lines().len()), (5, 5));
    // The six records of the first two seconds are due within 1.67 s. The later records are due
    // after the end of the run.
    let recorder = Recorder::start();
    let line = format!("-t 1 -c 1 --speed 1 --test-time 1.99 {}", trace.option());
    let measured = recorder.load(&line);
    let offered = measured.outcome.offered.unwrap();
    assert_eq!((offered.due, recorder.lines().len()), (6, 6));
    assert!(measured.outcome.ended_early.is_none() && measured.outcome.faults.is_empty());
}

/// The trace has 20 requests per second for two seconds. At twice this speed, one request is due
/// every 25 ms.
#[test]
fn the_open_loop_keeps_the_times_of_the_trace() {
    let mut text = String::new();
    for number in 0..40 {
        let _ = writeln!(text, "{},k{number},3,10,1,set,100", 1000 + number / 20);
    }
    let trace = Trace::new(&text);
    let check = || {
        let recorder = Recorder::start();
        let measured = recorder.load(&format!("-t 2 -c 2 --speed 2 {}", trace.option()));
        assert_eq!(measured.outcome.offered.unwrap().due, 40);
        assert!(measured.outcome.open_loop);
        let requests = recorder.requests();
        let start = requests.iter().map(|request| request.at).min().unwrap();
        let late = |number: usize| {
            let line = format!("set k{number} 0 50 10");
            let request = requests.iter().find(|request| request.line == line).unwrap();
            (request.at - start).as_secs_f64() - number as f64 * 0.025
        };
        let late: Vec<f64> = (0..40).map(late).collect();
        // Delays are relative to the delay of the first request. If the first request was itself
        // late, other delays can be negative.
        let earliest = late.iter().copied().fold(0.0, f64::min);
        let punctual = late.iter().filter(|late| **late - earliest < 0.01).count();
        (earliest > -0.02 && punctual >= 28).then_some(()).ok_or(late)
    };
    // A busy machine delays some requests. The test then repeats the load.
    let start_time = Instant::now();
    while let Err(late) = check() {
        assert!(start_time.elapsed() < Duration::from_secs(60), "{late:?}");
    }
}

#[test]
fn the_open_loop_includes_the_delay_of_a_stall() {
    let mut text = String::new();
    for number in 0..2000 {
        let _ = writeln!(text, "{}.{:03},k{number},10", number / 1000, number % 1000);
    }
    let (server, trace) = (Server::memcached(), Trace::new(&text));
    let line = format!("-t 1 -c 4 --speed 1 --on-miss nothing {}", trace.option());
    let measured = std::thread::scope(|scope| {
        let load = scope.spawn(|| server.load(&line));
        server.await_requests(700);
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(500));
        server.signal(Signal::SIGCONT);
        load.join().unwrap()
    });
    let total = measured.outcome.total();
    assert_eq!((total.requests, measured.histograms["total"].len()), (2000, 2000));
    assert!(total.latency.max >= 450e3, "{:?}", total.latency);
    // While the server was stopped for half a second, 500 of the 2,000 requests were due, at even
    // intervals.
    assert!(total.latency.p90 >= 200e3, "{:?}", total.latency);
}

#[test]
fn wrong_answers_to_recorded_requests_are_seen() {
    let trace = Trace::new("0,k,1,10,1,set,0\n0,k,1,10,1,get,0\n0,l,1,10,1,get,0\n");
    for (to_set, to_get) in [
        ("NOT_STORED", None),
        ("END", None),
        ("DELETED", None),
        ("12", None),
        ("STORED", Some("STORED")),
    ] {
        let server =
            BrokenServer::start(move |request: &Request<'_>| match (request.get, to_get) {
                (Some(_), None) => Action::Send(request.right()),
                (Some(_), Some(line)) => Action::Send(format!("{line}\r\n").into()),
                (None, _) => Action::Send(format!("{to_set}\r\n").into()),
            });
        let line = format!("-s 127.0.0.1 -p {} -t 1 -c 1 {}", server.port, trace.option());
        let outcome = load(&line).outcome;
        let is_lost = outcome.lost_connections == 1;
        assert!(is_lost || outcome.faults.contains_key("NOT_STORED"), "{to_set}: {outcome:?}");
        assert_eq!(is_lost, to_set != "NOT_STORED", "{to_set}");
    }
}

/// An open loop counts the unsent requests of lost clients.
#[test]
fn requests_for_lost_clients_are_counted() {
    let mut text = String::new();
    for number in 0..400 {
        let _ = writeln!(text, "{}.{:03},k{number},10", number / 1000, number % 1000);
    }
    let trace = Trace::new(&text);
    // Of the four connections of each load, the server closes two at their first request.
    let second = |request: &Request<'_>| request.connection % 4 >= 2;
    let server = BrokenServer::start(move |request: &Request<'_>| match second(request) {
        true => Action::Close,
        false => Action::Send(request.right()),
    });
    for speed in ["--speed 1", ""] {
        let options = format!("-t 2 -c 2 {speed} --on-miss nothing {}", trace.option());
        let outcome = load(&format!("-s 127.0.0.1 -p {} {options}", server.port)).outcome;
        let total = outcome.total();
        let all = total.requests + total.never_sent + total.never_answered;
        assert!(outcome.lost_connections > 0, "{outcome:?}");
        if !speed.is_empty() {
            assert_eq!(all, 400, "{speed}: {outcome:?}");
        }
    }
}

/// The server accepts connections and sends no replies.
#[test]
fn due_requests_that_are_not_sent_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut text = String::new();
    for number in 0..300 {
        let _ = writeln!(text, "{},k,1,10,1,get,0", number / 100);
    }
    let trace = Trace::new(&text);
    let line = "-t 1 -c 1 --pipeline 3 --speed 1 --test-time 2 --timeout 1";
    let measured = load(&format!("-s 127.0.0.1 -p {port} {line} {}", trace.option()));
    let total = measured.outcome.total();
    assert_eq!(total.never_answered, 3);
    // The run ends after a second without a reply. By then, about 100 requests were due.
    let due = measured.histograms["total"].len();
    assert_eq!(due, 3 + total.never_sent);
    assert!((90..=201).contains(&due), "{due}");
    assert!(total.latency.max >= 900e3, "{:?}", total.latency);
}

#[test]
fn traces_that_cannot_be_read_are_refused() {
    let server = Server::memcached();
    let attempt = |options: &str| {
        let line = format!("-s 127.0.0.1 -p {} -t 2 -c 2 {options}", server.port);
        run(&arguments(&line).settings().unwrap(), None, &mut |_| ())
    };
    let check = |text: &str, expected: &str| {
        let error = attempt(&Trace::new(text).option()).unwrap_err().to_string();
        assert!(error.contains("trace.csv: ") && error.contains(expected), "{text:?}: {error}");
    };
    check("", "the trace has no requests");
    check("0,a\n", "line 1: expected time_secs,key,size");
    check("0,a,1,2,3,touch,0\n", "line 1: the operation");
    let missing = attempt("--trace /nonexistent/trace.csv").unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
    // A malformed line later in the trace ends the run.
    let trace = Trace::new("0,a,1\n0,b,1\n1,c,1,soon\n1,d,1\n");
    for speed in ["", "--speed 1"] {
        let outcome = attempt(&format!("{speed} {}", trace.option())).unwrap().outcome;
        let reason = outcome.ended_early.clone().unwrap();
        assert!(reason.contains("line 3: the TTL"), "{reason}");
        assert_eq!(outcome.commands["get"].requests, 2);
    }
}

#[test]
fn options_that_a_trace_makes_meaningless_are_refused() {
    for option in [
        "--ratio 1:1",
        "--key-pattern Z:Z",
        "--key-maximum 5",
        "--data-size 5",
        "--data-size-range 1-2",
        "--expiry-range 1-2",
        "--multi-key-get 2",
        "--rate 5",
        "--rate-limiting 5",
        "--arrivals poisson",
        "--find-rate 99:1 --test-time 1",
        "--fill",
        "--verify",
        "--seed 2",
        "--client-stats p",
        "--key-spaces f",
        "--sliding --speed 1",
    ] {
        let error = parse(&format!("--trace f {option}")).unwrap_err().to_string();
        assert!(error.contains("cannot be used with"), "{option}: {error}");
    }
    for option in ["--speed 1", "--on-miss set"] {
        assert!(parse(option).is_err(), "{option} without --trace");
    }
    assert!(parse("--trace f --speed 0").is_err());
    let error = arguments("-s 127.0.0.1,127.0.0.1:1 --trace f").settings().unwrap_err().to_string();
    assert!(error.contains("expected one server"), "{error}");
    assert!(arguments("-s 127.0.0.1 --trace f -n allkeys").settings().is_err());
}
