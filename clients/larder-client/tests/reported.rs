//! Tests that the metrics reported through the crate `metrics` equal the client's own metrics, and
//! that neither these metrics nor the events of the crate `tracing` contain secrets.
//!
//! This test is a separate program, because it installs the process-wide recorder and subscriber.

#[path = "it/common/mod.rs"]
mod common;

use common::any_client::{AnyClient, each_client};
use common::cluster::Cluster;
use common::{Action, FakeServer, wait_until};
use larder_client::metrics::{CloseReason, Command, ServerMetrics};
use larder_client::{Discovery, Lease};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

const LONG: Duration = Duration::from_secs(60);

/// Returns the exporter of this process.
fn exporter() -> &'static PrometheusHandle {
    static EXPORTER: OnceLock<PrometheusHandle> = OnceLock::new();
    EXPORTER.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap())
}

/// The traced events of this process.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn of_process() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .with_max_level(LevelFilter::TRACE)
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .init();
            log
        })
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the level and text of each event about a server.
    fn lines(&self, port: u16) -> Vec<String> {
        let (text, server) = (self.text(), format!("\"127.0.0.1:{port}\""));
        let lines = text.lines().filter(|line| line.contains(&server));
        lines.map(|line| line.split_once(' ').unwrap().1.trim().to_owned()).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the value of a server's metric series, or `None` if the series does not exist.
fn reported(name: &str, port: u16, label: &str) -> Option<u64> {
    let text = exporter().render();
    let server = format!("server=\"127.0.0.1:{port}\"");
    let is_match = |line: &&str| {
        line.split_once('{').is_some_and(|(this, labels)| {
            this == name && labels.contains(&server) && labels.contains(label)
        })
    };
    let line = text.lines().find(is_match)?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn of(client: &AnyClient) -> ServerMetrics {
    let [server] = client.metrics().servers.try_into().unwrap();
    server
}

/// Checks that the numbers reported for a server equal the client's own metrics for that server.
#[track_caller]
fn compare(client: &AnyClient, port: u16) {
    let server = of(client);
    let number = |name, label: &str| reported(name, port, label);
    for command in Command::ALL {
        let label = format!("command=\"{}\"", command.name());
        let calls = server.latency(command);
        let count = number("larder_client_call_duration_seconds_count", &label);
        assert_eq!(count.unwrap_or(0), calls.count(), "{label}");
    }
    for reason in CloseReason::ALL {
        let label = format!("reason=\"{}\"", reason.name());
        let count = number("larder_client_connections_closed_total", &label);
        assert_eq!(count, Some(server.closed(reason)), "{label}");
    }
    for (error, count) in server.errors() {
        let label = format!("error=\"{error}\"");
        assert_eq!(number("larder_client_errors_total", &label), Some(count), "{label}");
    }
    for (name, count) in [
        ("larder_client_connections_opened_total", server.opened),
        ("larder_client_connections", server.open as u64),
        ("larder_client_degraded_total", server.degraded),
        ("larder_client_abandoned_total", server.abandoned),
        ("larder_client_breakers_opened_total", server.breaker_opened),
        ("larder_client_open_breakers", server.breaker_is_open.into()),
    ] {
        assert_eq!(number(name, ""), Some(count), "{name}");
    }
    assert_eq!(number("larder_client_wait_duration_seconds_count", "").unwrap_or(0), 0);
}

/// The server replies correctly at first, and later with the value of another key.
#[test]
fn exported_metrics_equal_the_client_s_and_contain_no_secrets() {
    let log = Log::of_process();
    exporter();
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number {
            // The login is the first request.
            0..=4 => Action::Reply,
            _ => Action::Send(b"VALUE secret-key 0 12\r\nsecret-value\r\nEND\r\n".to_vec()),
        });
        let port = server.port;
        let builder = client(format!("127.0.0.1:{port}")).timeout(LONG);
        let client = builder.degrade(true).login("ann", "secret-word").build().unwrap();
        client.set("secret-key", "secret-value", 0).unwrap();
        for _ in 0..3 {
            client.get("secret-key").unwrap();
        }
        wait_until(|| {
            drop(client.get("other-secret-key"));
            of(&client).breaker_is_open
        });
        drop(client.get("other-secret-key"));
        // The task of a shared connection closes the connection slightly later.
        wait_until(|| of(&client).open == 0);
        wait_until(|| reported("larder_client_connections", port, "") == Some(0));
        compare(&client, port);
        assert_eq!(of(&client).breaker_opened, 1);
        let lines = log.lines(port);
        assert!(lines[0].starts_with("DEBUG larder_client: connection opened"));
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(has("connection closed") && has("reason=\"unexpected\""), "{lines:#?}");
        assert!(has("breaker opened") && has("WARN"), "{lines:#?}");
        drop(client);
        let left = reported("larder_client_open_breakers", port, "");
        assert_eq!(left, Some(0), "the breaker is dropped with its client");
    });
    let all = log.text() + &exporter().render();
    assert!(!all.contains("secret"), "{all}");
}

#[test]
fn the_closing_of_a_breaker_is_traced() {
    let log = Log::of_process();
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let client = client(format!("127.0.0.1:{port}")).build().unwrap();
        (0..5).for_each(|_| drop(client.get("a")));
        let _server =
            FakeServer::at(TcpListener::bind(("127.0.0.1", port)).unwrap(), |_| Action::Reply);
        wait_until(|| client.get("a").is_ok());
        let lines = log.lines(port);
        let position = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
        assert!(lines[position("breaker opened")].contains("error=\"connect\""), "{lines:#?}");
        assert!(position("breaker opened") < position("breaker closed"), "{lines:#?}");
    });
}

#[test]
fn computations_are_reported_for_all_clients_together() {
    exporter();
    each_client(|client| {
        let server = FakeServer::start(|request| match &*request.verb {
            "mn" => Action::Send(b"MN\r\n".to_vec()),
            _ => Action::Send(b"EN\r\n".to_vec()),
        });
        let count = || {
            let text = exporter().render();
            let name = "larder_client_computations_total{outcome=\"failed\"} ";
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        let before = count();
        let client = client(format!("127.0.0.1:{}", server.port)).timeout(LONG).build().unwrap();
        client.get_or_compute("k", Lease::ttl(60), || Err::<&str, _>("no")).unwrap_err();
        assert_eq!((count(), client.metrics().computing.failed), (before + 1, 1));
    });
}

#[test]
fn a_replaced_list_is_traced() {
    let log = Log::of_process();
    each_client(|client| {
        let (cluster, servers) =
            (Cluster::start(), [(); 2].map(|()| FakeServer::start(|_| Action::Reply)));
        cluster.set_list(1, &[servers[0].port]);
        let builder = client(cluster.address()).discovery(Discovery::Cluster);
        let client = builder.discovery_interval(Duration::from_millis(20)).build().unwrap();
        let ports = servers.each_ref().map(|server| server.port);
        cluster.set_list(2, &ports);
        let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
        let line =
            format!("DEBUG larder_client: list of servers replaced servers=\"{first},{second}\"");
        wait_until(|| log.text().contains(&line));
        wait_until(|| client.metrics().servers.len() == 2);
    });
}

/// Checks that docs/rust.md lists exactly the names of the reported metrics.
#[test]
fn all_metric_names_are_documented() {
    exporter();
    let server = FakeServer::start(|_| Action::Reply);
    let client = larder_client::blocking::Client::connect(format!("127.0.0.1:{}", server.port));
    client.unwrap().get("a").unwrap();
    let names = |text: &str, before: &str| -> BTreeSet<String> {
        let pieces = text.split(before).skip(1);
        let name = |piece: &str| {
            let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
            piece.split(is_end).next().unwrap().to_owned()
        };
        pieces.map(name).filter(|name| name.starts_with("larder_client_")).collect()
    };
    let page = include_str!("../../../docs/rust.md");
    let rendered = exporter().render();
    let reported = names(&rendered, "# TYPE ");
    let documented = names(page, "| `");
    assert_eq!(reported, documented);
    let helped = names(&rendered, "# HELP ");
    assert_eq!(helped, reported, "each metric has a help text");
}
