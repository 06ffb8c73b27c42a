//! `stats latency`: its counts, and the comparison of its times with the latency that clients
//! measure.

use crate::common::{Server, TIMEOUT, read_some, stat, wait_for};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Instant;

const CLASSES: [&str; 6] = ["get", "store", "delete", "count", "touch", "other"];

fn exchange(stream: &mut TcpStream, request: &str, last: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let (mut answer, mut bytes) = (Vec::new(), [0; 16 << 10]);
    while !answer.ends_with(last.as_bytes()) {
        let len = read_some(stream, &mut bytes).unwrap();
        assert!(len > 0, "closed after {answer:?}");
        answer.extend_from_slice(&bytes[..len]);
    }
    String::from_utf8(answer).unwrap().replace('\r', "")
}

fn latencies(stream: &mut TcpStream) -> String {
    exchange(stream, "stats latency\r\n", "END\r\n")
}

/// Returns the number of requests in each class, or 0 for a class that the page omits.
fn counts(page: &str) -> [u64; 6] {
    CLASSES.map(|class| {
        let shown = page.contains(&format!("STAT {class}:"));
        if shown { stat(page, &format!("{class}:count")).parse().unwrap() } else { 0 }
    })
}

fn micros(page: &str, name: &str) -> f64 {
    stat(page, name).parse().unwrap()
}

/// The server counts the request for a page at the end of the poll that answers it, so only the
/// next page includes this request.
#[test]
fn each_request_is_counted_in_its_class_until_a_reset() {
    let server = Server::larderd(&["-t", "2"]);
    let mut streams = [server.connect(), server.connect(), server.connect()];
    for stream in &mut streams {
        let sets = "set a 0 0 1\r\n1\r\nms b 1\r\n2\r\n";
        let gets = "get a b c\r\nmg a v\r\nincr a 1\r\ntouch a 90\r\ndelete b\r\nmd c q\r\nmn\r\n";
        exchange(stream, &[sets, gets].concat(), "MN\r\n");
    }
    let [asking, ..] = &mut streams;
    // The server counts a poll after sending the replies, so a page may lack the last poll of
    // another connection.
    let (mut page, mut asked) = (String::new(), 0);
    wait_for("counts", || {
        page = latencies(asking);
        asked += 1;
        counts(&page) == [12, 6, 6, 3, 3, 2 + asked]
    });
    let next = latencies(asking);
    assert_eq!(counts(&next), [12, 6, 6, 3, 3, 3 + asked], "{next}");
    for class in CLASSES {
        let at = |name: &str| micros(&page, &format!("{class}:{name}_us"));
        let quantiles = ["p50", "p90", "p99", "p999", "max"].map(at);
        assert!(quantiles.is_sorted() && quantiles[0] > 0.9, "{page}");
        assert!((0.1..=at("max")).contains(&at("mean")), "{page}");
    }
    exchange(asking, "stats reset\r\n", "RESET\r\n");
    let page = latencies(asking);
    assert_eq!(counts(&page), [0, 0, 0, 0, 0, 1], "`stats reset` itself is left: {page}");
}

#[test]
fn datagrams_are_counted_too() {
    let server = Server::larderd(&["-U", "-1"]);
    wait_for("port file", || server.scratch.path("ports").exists());
    let ports = server.scratch.read("ports");
    let port = ports.lines().find_map(|line| line.strip_prefix("UDP INET: ")).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for _ in 0..5 {
        socket
            .send_to(b"\0\x01\0\0\0\x01\0\0mg k v\r\n", ("127.0.0.1", port.parse().unwrap()))
            .unwrap();
        socket.recv(&mut [0; 2048]).expect("an answer");
    }
    assert_eq!(counts(&latencies(&mut server.connect())), [5, 0, 0, 0, 0, 0]);
}

/// Sends one request at a time on one connection, so that the server-side times of the requests do
/// not overlap, and each is part of the time that the client measures. With the delayed engine,
/// requests wait in the engine most of the time.
#[test]
fn latencies_are_within_those_of_the_client() {
    let server = Server::larderd(&[]);
    let mut stream = server.connect();
    exchange(&mut stream, "set k 0 0 1\r\n1\r\n", "STORED\r\n");
    let begun = Instant::now();
    for _ in 0..1000 {
        exchange(&mut stream, "get k\r\n", "END\r\n");
    }
    // The server may count the last poll only after the reply has arrived.
    let page = latencies(&mut stream);
    let seen = begun.elapsed().as_secs_f64() * 1e6;
    assert_eq!(counts(&page)[0], 1000);
    let timed = micros(&page, "get:mean_us") * 1000.0;
    assert!(timed <= seen, "{timed} of {seen}: {page}");
    let waits = std::env::var("LARDER_ENGINE").is_ok_and(|engine| engine == "delayed");
    assert!(!waits || timed > seen / 4.0, "{timed} of {seen}: {page}");
}
