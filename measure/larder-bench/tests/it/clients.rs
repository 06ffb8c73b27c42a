//! `larder bench clients` with correct servers, and with servers that return wrong values, fail or
//! restart.

use crate::common::broken_server::{Action, BrokenServer, hit};
use crate::common::{ReservedPort, Server};
use clap::Parser;
use larder_bench::clients::{self, Arguments, Larder, Threads};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(port: u16, line: &str) -> Arguments {
    let line = format!("clients --server 127.0.0.1:{port} {line}");
    Line::try_parse_from(line.split_whitespace()).unwrap().arguments
}

fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), clients::Error> {
    clients::measure(&Threads::<Larder>::new(arguments), arguments, out)
}

/// Returns the output, and the error if the run failed.
fn measure(port: u16, line: &str) -> (String, Result<(), clients::Error>) {
    let mut out = Vec::new();
    let ended = run(&arguments(port, line), &mut out);
    (String::from_utf8(out).unwrap(), ended)
}

/// Maps the name of each figure in the CSV lines to its value.
fn figures(csv: &str) -> BTreeMap<String, f64> {
    let lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let figures = lines.filter(|fields| fields.len() == 5);
    figures.map(|fields| (fields[3].to_owned(), fields[4].parse().unwrap())).collect()
}

#[test]
fn each_mode_has_its_times_and_figures() {
    let server = Server::memcached();
    for mode in ["shared", "pool", "none", "thread"] {
        let line = format!("--csv --mode {mode} --threads 1,3 --rounds 2 --secs 0.05 --calls 3");
        let (csv, ended) = measure(server.port, &line);
        ended.unwrap();
        let times = csv.lines().filter(|line| line.split(',').count() == 6);
        let mut places: Vec<&str> = times.map(|line| line.rsplit_once(',').unwrap().0).collect();
        places.sort_unstable();
        let rounds = ["1,1,0", "1,2,0", "3,1,0", "3,1,1", "3,1,2", "3,2,0", "3,2,1", "3,2,2"];
        assert_eq!(places, rounds.map(|place| format!("larder,{mode},{place}")));
        let figures = figures(&csv);
        assert!(figures.values().zip(figures.keys()).all(|(value, name)| match &**name {
            "errors" | "times_errors" => *value == 0.0,
            _ => *value > 0.0,
        }));
        assert!(figures["p99_us"] >= figures["p50_us"]);
    }
}

#[test]
fn tables_are_for_people() {
    let server = Server::memcached();
    let (text, ended) = measure(server.port, "--threads 2,4 --rounds 1 --secs 0.02 --calls 1");
    ended.unwrap();
    let firsts: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(firsts, ["threads", "2", "4", "threads", "2", "4", "keys", "6", "100"], "{text}");
}

#[test]
fn a_wrong_value_ends_the_run() {
    let lying = BrokenServer::start(|request| match request.get {
        Some(key) if request.number > 50 => Action::Send(hit(key, b"foreign")),
        _ => Action::Send(request.right()),
    });
    for measure_name in ["times", "load"] {
        let line = format!("--measure {measure_name} --threads 4 --rounds 20 --secs 30");
        let error = measure(lying.port, &line).1.unwrap_err().to_string();
        let begin = "the value of bench-1-";
        assert!(error.starts_with(begin) && error.contains("\"foreign\""), "{error}");
    }
}

#[test]
fn errors_are_counted() {
    let failing = BrokenServer::start(|request| match request.number % 10 {
        9 => Action::Send(b"SERVER_ERROR out of luck\r\n".to_vec()),
        _ => Action::Send(request.right()),
    });
    let line = "--measure times,load --threads 1 --rounds 100 --secs 0.5";
    let (text, ended) = measure(failing.port, &format!("--csv {line}"));
    ended.unwrap();
    let figures = figures(&text);
    assert!(figures["times_errors"] > 10.0 && figures["errors"] > 0.0, "{figures:?}");
    let (text, _) = measure(failing.port, line);
    assert!(text.contains("first error: 127.0.0.1:") && text.contains("out of luck"), "{text}");
}

#[test]
fn a_server_that_is_gone_is_named() {
    let reserved = ReservedPort::new();
    let port = reserved.port;
    let error = measure(port, "").1.unwrap_err().to_string();
    assert!(error.starts_with(&format!("127.0.0.1:{port}: cannot connect")), "{error}");
}

/// A writer that sends the written text to the test.
struct ChannelWriter(mpsc::Sender<String>);

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn recovery_lasts_until_the_server_is_back() {
    let server = Server::memcached();
    let arguments = arguments(server.port, "--csv --measure recovery");
    let (sender, written) = mpsc::channel();
    // The outage starts with the first failing operation, which can start before the server stops,
    // so the start of the run is the lower bound for the start of the outage.
    let start_time = std::time::Instant::now();
    let running = std::thread::spawn(move || run(&arguments, &mut ChannelWriter(sender)));
    let mut text = String::new();
    while !text.ends_with("ready,1.000\n") {
        text.push_str(&written.recv().unwrap());
    }
    let _again = Server::memcached_at(server.stop());
    running.join().unwrap().unwrap();
    text.extend(written.try_iter());
    let outage = figures(&text)["outage_us"];
    assert!(outage > 0.0 && outage <= start_time.elapsed().as_secs_f64() * 1e6, "{text}");
}
