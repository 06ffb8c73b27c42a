//! Loads on servers that stop, reject requests, close connections, send wrong replies, or do not
//! reply. The results must show each of these failures.

use crate::common::broken_server::{Action, BrokenServer, Request, hit};
use crate::common::{self, Server, load};
use larder_bench::{Measured, Outcome, bench};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn run(server: &BrokenServer, line: &str) -> Measured {
    load(&format!("-s 127.0.0.1 -p {} {line}", server.port))
}

fn fault(outcome: &Outcome, name: &str) -> u64 {
    outcome.faults.get(name).copied().unwrap_or(0)
}

/// Checks that each due request is in the run's histogram and in the histogram of one second, and
/// that it was answered or counts as an error or a fault.
fn check_all_is_accounted_for(measured: &Measured) {
    let total = measured.outcome.total();
    let due = total.requests + total.errors + total.never_answered + total.never_sent;
    assert_eq!(measured.histograms["total"].len(), due);
    assert_eq!(fault(&measured.outcome, "never sent"), total.never_sent);
    assert_eq!(fault(&measured.outcome, "never answered"), total.never_answered);
    if let Some(offered) = measured.outcome.offered {
        assert_eq!(offered.due, due);
    }
    let by_second: u64 = measured.by_second.iter().map(|second| second.latency.len()).sum();
    assert_eq!(by_second, due);
}

fn silent_from(number: u64) -> BrokenServer {
    BrokenServer::start(move |request| match request.number {
        earlier if earlier < number => Action::Send(request.right()),
        _ => Action::Ignore,
    })
}

/// In this run, 2,000 requests are due within 2 s. The server answers only the first half of them.
#[test]
fn unanswered_requests_count_with_their_waiting_time() {
    let measured = run(&silent_from(1000), "-t 1 -c 4 --rate 1000 --test-time 2 --timeout 1.5");
    check_all_is_accounted_for(&measured);
    let total = measured.outcome.total();
    assert_eq!((total.requests, total.never_answered, total.never_sent), (1000, 4, 996));
    // The last request that was due waited for 1.5 s.
    assert!(total.latency.p90 >= 1.5e6, "{:?}", total.latency);
    assert!(measured.histograms["total"].value_at_quantile(0.51) >= 1_490_000_000);
    // The ratio of sets to gets is 1:10.
    let set = measured.outcome.commands["set"].clone();
    assert!((85..=96).contains(&set.never_sent), "{}", set.never_sent);
}

#[test]
fn a_run_ends_when_the_server_answers_nothing_any_more() {
    for line in ["-t 2 -c 2 --rate 1000 --test-time 60", "-t 2 -c 2 -n 100000"] {
        let start_time = Instant::now();
        let measured = run(&silent_from(100), &format!("{line} --timeout 2"));
        assert!(start_time.elapsed() < Duration::from_secs(50));
        check_all_is_accounted_for(&measured);
        let (outcome, total) = (&measured.outcome, measured.outcome.total());
        assert_eq!((total.requests, total.never_answered), (100, 4), "{line}");
        let reason = outcome.ended_early.clone().unwrap();
        assert!(reason.contains("the server answered nothing for 2 s"), "{reason}");
        // The unanswered requests waited until the timeout.
        assert!(total.latency.max >= 2e6, "{line}: {:?}", total.latency);
    }
}

#[test]
fn a_server_that_never_answers_is_named() {
    let server = silent_from(0);
    for (line, named) in [
        ("", "accepted connections and answered nothing for 0.5 s"),
        ("--tls", "did not answer the TLS handshake for 0.5 s"),
    ] {
        let measured = run(&server, &format!("-t 1 -c 3 --timeout 0.5 {line}"));
        check_all_is_accounted_for(&measured);
        assert_eq!(measured.outcome.total().never_answered, 3);
        let reason = measured.outcome.ended_early.unwrap();
        assert!(reason.contains(named), "{reason}");
    }
}

#[test]
fn requests_in_flight_at_the_end_of_a_closed_loop_count() {
    let server = silent_from(50);
    let measured = run(&server, "-t 1 -c 3 --test-time 1 --timeout 1.2");
    check_all_is_accounted_for(&measured);
    let total = measured.outcome.total();
    assert_eq!((total.requests, total.never_answered), (50, 3));
    assert!(total.latency.p99 >= 1.2e6, "{:?}", total.latency);
}

/// With 5 ms per reply, one connection achieves 200 of 2,000 requests/s.
#[test]
fn a_server_that_is_too_slow_for_the_rate_is_seen() {
    let slow = |request: &Request<'_>| Action::SendAfter(Duration::from_millis(5), request.right());
    let measured = run(&BrokenServer::start(slow), "-t 1 -c 1 --rate 2000 --test-time 1");
    check_all_is_accounted_for(&measured);
    let (offered, total) = (measured.outcome.offered.unwrap(), measured.outcome.total());
    assert!((offered.per_second - 2000.0).abs() < 1e-9);
    assert_eq!(offered.due, 2000);
    assert!(total.never_sent >= 1000, "{}", total.never_sent);
    assert!(total.per_second <= 200.0, "{}", total.per_second);
    assert!(total.latency.p50 >= 0.5e6, "{:?}", total.latency);
    // The load generator had to wait for the connection. Such a wait does not count as lateness.
    assert!(offered.lateness.p50 < total.latency.p50 / 10.0, "{:?}", offered.lateness);
}

/// With 5 ms per reply, the server is too slow for bursts of 40 requests. Requests that were due
/// count even if they were never sent.
#[test]
fn a_server_that_is_too_slow_for_bursts_is_seen() {
    let slow = |request: &Request<'_>| Action::SendAfter(Duration::from_millis(5), request.right());
    let line = "-t 1 -c 1 --rate-limiting 2000 --test-time 1";
    let measured = run(&BrokenServer::start(slow), line);
    check_all_is_accounted_for(&measured);
    let (offered, total) = (measured.outcome.offered.unwrap(), measured.outcome.total());
    assert_eq!(offered.due, 2000);
    assert!(total.never_sent >= 1000, "{}", total.never_sent);
    assert!(total.per_second <= 200.0, "{}", total.per_second);
    assert!(total.latency.p50 >= 0.5e6, "{:?}", total.latency);
}

/// One of four connections with bursts is open at the start, and each further quarter of the run
/// opens another connection, so an average of 250 requests/s is due, not 400.
#[test]
fn bursts_of_connections_that_are_not_open_yet_are_not_offered() {
    let server = BrokenServer::start(|request| Action::Send(request.right()));
    let steps = "--clients-start 1 --clients-step 1 --step-duration 0.5";
    let measured = run(&server, &format!("-t 1 -c 4 --rate-limiting 100 --test-time 2 {steps}"));
    check_all_is_accounted_for(&measured);
    let (offered, seconds) = (measured.outcome.offered.unwrap(), measured.outcome.seconds);
    assert!(offered.per_second < 300.0, "{offered:?}");
    assert!((offered.per_second * seconds - offered.due as f64).abs() < 0.5, "{offered:?}");
}

#[test]
fn a_rate_beyond_all_measure_is_counted_too() {
    let measured = run(&silent_from(0), "-t 1 -c 1 --rate 1000000000 --test-time 1 --timeout 0.3");
    check_all_is_accounted_for(&measured);
    assert!(measured.outcome.total().never_sent > 200_000_000);
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn random_arrivals_have_the_mean_of_the_rate() {
    let server = BrokenServer::start(|request| Action::Send(request.right()));
    let due = |seed| {
        let line = "-t 1 -c 8 --rate 2000 --test-time 1 --arrivals poisson --seed";
        let measured = run(&server, &format!("{line} {seed}"));
        check_all_is_accounted_for(&measured);
        measured.outcome.offered.unwrap().due
    };
    let counts = [1, 2, 3, 1].map(due);
    // Five times the standard deviation, which is the square root of 2,000.
    assert!(counts.iter().all(|due| due.abs_diff(2000) < 225), "{counts:?}");
    assert_eq!(counts[0], counts[3]);
    assert!(counts[0] != counts[1] || counts[0] != counts[2], "{counts:?}");
}

#[test]
fn error_replies_are_no_throughput() {
    let refuse = |request: &Request<'_>| match request.number % 4 {
        0 => Action::Send(b"SERVER_ERROR out of memory\r\n".to_vec()),
        _ => Action::Send(request.right()),
    };
    let measured = run(&BrokenServer::start(refuse), "-t 1 -c 1 -n 400");
    check_all_is_accounted_for(&measured);
    let total = measured.outcome.total();
    assert_eq!((total.requests, total.errors), (300, 100));
    assert_eq!(fault(&measured.outcome, "SERVER_ERROR out of memory"), 100);
    assert!((total.per_second * measured.outcome.seconds - 300.0).abs() < 0.01);
}

#[test]
fn errors_while_keys_are_set_count() {
    let refuse = |request: &Request<'_>| match request.number {
        number if number < 10 => Action::Send(b"SERVER_ERROR out of memory\r\n".to_vec()),
        _ => Action::Send(request.right()),
    };
    let server = BrokenServer::start(refuse);
    let measured = run(&server, "-t 1 -c 1 -n 100 --key-maximum 99 --fill");
    assert_eq!(fault(&measured.outcome, "fill: SERVER_ERROR out of memory"), 10);
    assert_eq!(measured.outcome.fault_count(), 10);
}

/// Only the first run of a search sets the keys. Faults of these sets affect the exit status, but
/// not whether a rate passes.
#[test]
fn errors_while_keys_are_set_count_in_a_search() {
    let refuse = |request: &Request<'_>| match request.number {
        number if number < 10 => Action::Send(b"SERVER_ERROR out of memory\r\n".to_vec()),
        _ => Action::Send(request.right()),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("search.json");
    let search = |max_faults: u64| {
        let server = BrokenServer::start(refuse);
        let line = format!(
            "-s 127.0.0.1 -p {} -t 1 -c 2 --find-rate 50:1000 --rate 200 --test-time 0.3 --fill \
             --key-maximum 99 -q --max-faults {max_faults} --json-out-file {}",
            server.port,
            path.display()
        );
        let mut table = Vec::new();
        let result = bench(&common::arguments(&line), &mut table);
        (result.map_err(|error| error.to_string()), String::from_utf8(table).unwrap())
    };
    let (result, table) = search(9);
    let error = result.unwrap_err();
    assert!(
        error.contains("10 faults, and --max-faults allows 9: 10 x fill: SERVER_ERROR"),
        "{error}"
    );
    assert!(table.contains("FAULT 10 x fill: SERVER_ERROR out of memory\n"), "{table}");
    assert!(table.contains("even at the maximum of --rate: 200/s"), "{table}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(json["fill_faults"]["fill: SERVER_ERROR out of memory"], 10);
    assert_eq!(json["steps"].as_array().unwrap().last().unwrap()["faults"], 0);
    let (result, table) = search(10);
    assert!(result.is_ok(), "{result:?}: {table}");
}

#[test]
fn a_search_whose_first_run_ends_early_has_no_results() {
    let server = BrokenServer::start(|_| Action::Close);
    let line = "-t 1 -c 2 --find-rate 50:1000 --rate 200 --test-time 10 -q";
    let line = format!("-s 127.0.0.1 -p {} {line}", server.port);
    let mut table = Vec::new();
    let error = bench(&common::arguments(&line), &mut table).unwrap_err().to_string();
    assert!(error.ends_with("; it was the first run, so there are no results"), "{error}");
    assert!(table.is_empty(), "{}", table.escape_ascii());
}

#[test]
fn each_lost_connection_is_counted_once() {
    let hang_up = |request: &Request<'_>| match (request.connection, request.number) {
        (2, 100..) => Action::Close,
        _ => Action::Send(request.right()),
    };
    for line in ["-n 1000", "-n 1000 --rate 5000"] {
        let measured = run(&BrokenServer::start(hang_up), &format!("-t 2 -c 2 {line}"));
        check_all_is_accounted_for(&measured);
        let outcome = &measured.outcome;
        assert_eq!((outcome.lost_connections, outcome.connections), (1, 4), "{line}");
        assert_eq!(fault(outcome, "connection lost: closed by the server"), 1, "{line}");
        assert_eq!(outcome.total().never_answered, 1, "{line}");
        assert!(outcome.total().requests >= 3000, "{line}");
        assert_eq!(outcome.ended_early, None, "{line}");
    }
}

#[test]
fn requests_due_after_all_connections_were_lost_are_counted() {
    let hang_up = |request: &Request<'_>| match request.number {
        500.. => Action::Close,
        _ => Action::Send(request.right()),
    };
    let server = BrokenServer::start(hang_up);
    let measured = run(&server, "-t 2 -c 2 --rate 1000 --test-time 60");
    check_all_is_accounted_for(&measured);
    assert_eq!((measured.outcome.total().requests, measured.outcome.lost_connections), (500, 4));
    assert!(measured.outcome.seconds < 30.0);
    let reason = measured.outcome.ended_early.unwrap();
    assert!(reason.contains("all connections were lost"), "{reason}");
}

#[test]
fn the_last_words_of_a_server_are_shown() {
    let server = BrokenServer::refusing(b"ERROR Too many open connections\r\n");
    for line in ["-n 10", "--rate 100 --test-time 60"] {
        let outcome = run(&server, &format!("-t 1 -c 3 {line}")).outcome;
        assert_eq!((outcome.total().requests, outcome.lost_connections), (0, 3), "{line}");
        let reason = outcome.ended_early.unwrap();
        assert!(reason.contains("ERROR Too many open connections"), "{line}: {reason}");
    }
}

#[test]
fn an_answer_to_another_request_ends_the_connection() {
    for answer in ["STORED\r\n", "END\r\n", "VALUE k 0 1\r\nx\r\n"] {
        let wrong = move |request: &Request<'_>| match request.get {
            Some(_) if answer != "STORED\r\n" => Action::Send(request.right()),
            _ => Action::Send(answer.as_bytes().to_vec()),
        };
        let outcome = run(&BrokenServer::start(wrong), "-t 1 -c 1 -n 20 --ratio 1:1").outcome;
        assert_eq!(outcome.lost_connections, 1, "{answer}");
        let reason = outcome.ended_early.unwrap();
        assert!(reason.contains("unexpected answer"), "{answer}: {reason}");
    }
}

/// Returns a damaged reply to a get of `key`. `how` selects the damage.
fn damaged(key: &str, value: &[u8], request: &Request<'_>, how: &str) -> Vec<u8> {
    let (prefix, number) = key.split_at(key.find('-').unwrap() + 1);
    let neighbour = format!("{prefix}{}", number.parse::<u64>().unwrap() ^ 1);
    let other = &request.items[&neighbour];
    match how {
        "halved" => hit(key, &value[..value.len() / 2]),
        "emptied" => hit(key, b""),
        "longer" => hit(key, &[value, b"x"].concat()),
        "a neighbour's" => hit(key, other),
        "a neighbour's, with its key" => hit(&neighbour, other),
        _ => panic!("{how}"),
    }
}

#[test]
fn damaged_values_are_seen_at_any_size() {
    let ways = ["halved", "emptied", "longer", "a neighbour's", "a neighbour's, with its key"];
    for how in ways {
        let server = BrokenServer::start(move |request| match request.get {
            Some(key) if request.items.contains_key(key) => {
                Action::Send(damaged(key, &request.items[key], request, how))
            }
            _ => Action::Send(request.right()),
        });
        for size in ["-d 1", "-d 8", "-d 16", "-d 1000", "--data-size-range 1-500"] {
            let line = "-t 1 -c 1 -n 50 --ratio 0:1 --key-maximum 99 --fill --verify";
            let measured = run(&server, &format!("{line} {size}"));
            assert_eq!(fault(&measured.outcome, "wrong value"), 50, "{how} {size}");
        }
    }
}

#[test]
fn right_values_are_right() {
    let server = BrokenServer::start(|request| Action::Send(request.right()));
    for size in ["-d 0", "-d 1", "-d 16", "--data-size-lognormal 100:1"] {
        let line = "-t 1 -c 1 -n 200 --ratio 1:5 --key-maximum 99 --fill --verify";
        let measured = run(&server, &format!("{line} {size}"));
        assert!(measured.outcome.faults.is_empty(), "{size}: {:?}", measured.outcome.faults);
    }
}

#[test]
fn a_server_that_accepts_no_connection_is_named() {
    // The listener never accepts, and its full backlog admits no further connection.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    let line = format!("-s 127.0.0.1 -p {port} -t 1 -c 10 --connection-timeout 0.3");
    let settings = common::arguments(&line).settings().unwrap();
    let error = larder_bench::run(&settings, None, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("no connection within 0.3 s (--connection-timeout)"), "{error}");
}

/// The server accepts only the first connection. Later connections wait in its full backlog.
#[test]
fn a_connection_that_is_never_made_during_the_run_is_a_fault() {
    for (limit, option) in [("--connection-timeout 0.4", "--connection-timeout"), ("", "--timeout")]
    {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        std::thread::spawn(move || {
            let (first, _) = socket.accept().unwrap();
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
            let _filling: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).collect();
            let mut first = TcpStream::from(first);
            let gets = BufReader::new(first.try_clone().unwrap()).lines();
            for _ in gets.map_while(Result::ok) {
                std::thread::sleep(Duration::from_millis(1));
                let _ = first.write_all(b"END\r\n");
            }
        });
        let steps = "--clients-start 1 --clients-step 1 --step-duration 0.3 --test-time 1.5";
        let line = format!("-s 127.0.0.1 -p {} -t 1 -c 2 --ratio 0:1", address.port());
        let start_time = Instant::now();
        let measured = load(&format!("{line} {steps} {limit} --timeout 0.4"));
        // The system's own limit for connecting is two minutes.
        assert!(start_time.elapsed() < Duration::from_secs(60), "{:?}", start_time.elapsed());
        let lost = format!("connection lost: no connection within 0.4 s ({option})");
        assert_eq!(fault(&measured.outcome, &lost), 1, "{:?}", measured.outcome.faults);
        // Ignore unanswered requests: on a busy machine, the last reply on the first connection may
        // arrive too late.
        let faults = measured.outcome.faults.keys().filter(|words| *words != "never answered");
        assert_eq!(faults.count(), 1, "{:?}", measured.outcome.faults);
        assert_eq!((measured.outcome.lost_connections, measured.outcome.ended_early), (1, None));
    }
}

/// SIGSTOP stops memcached during the load. memcached continues only after the run.
#[test]
fn memcached_that_freezes_is_seen() {
    let server = Server::memcached();
    let measured = std::thread::scope(|scope| {
        // The server stops after 1,000 requests, so the last reply arrives after at least a second.
        // The timeout of 2.9 s therefore expires after the end of the schedule at 3 s.
        let line = "-t 1 -c 4 --rate 1000 --test-time 3 --timeout 2.9";
        let load = scope.spawn(|| server.load(line));
        server.await_requests(1000);
        server.signal(Signal::SIGSTOP);
        let measured = load.join().unwrap();
        server.signal(Signal::SIGCONT);
        measured
    });
    check_all_is_accounted_for(&measured);
    let total = measured.outcome.total();
    assert_eq!(measured.outcome.offered.unwrap().due, 3000);
    assert!(total.requests <= 2000, "{}", total.requests);
    assert!(total.never_answered + total.never_sent >= 1000);
    // At least a third of the due requests waited until the timeout.
    assert!(total.latency.p90 >= 2.9e6, "{:?}", total.latency);
}

/// SIGSTOP stops memcached before the end of the schedule. The server continues after two seconds.
/// Every due request is still sent and answered, and counts with its full delay.
#[test]
fn memcached_that_stops_at_the_end_is_seen() {
    let server = Server::memcached();
    let measured = std::thread::scope(|scope| {
        let load = scope.spawn(|| server.load("-t 1 -c 4 --rate 1000 --test-time 3"));
        server.await_requests(1500);
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(2000));
        server.signal(Signal::SIGCONT);
        load.join().unwrap()
    });
    check_all_is_accounted_for(&measured);
    assert_eq!(measured.outcome.offered.unwrap().due, 3000);
    // At least a quarter of the due requests waited for half a second or more.
    let delayed = measured.histograms["total"].count_between(500_000_000, u64::MAX);
    assert!(delayed >= 750, "{delayed}");
}
