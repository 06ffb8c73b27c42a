//! Tests of UDP: sends the same datagrams to larderd and to memcached, and tests additional
//! guarantees of larderd.

use crate::common::{self, Scratch, Server, TIMEOUT, stat, stderr, wait_for};
use socket2::SockRef;
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// A client with one connected socket.
struct Client {
    socket: UdpSocket,
    next_id: u16,
}

/// A received datagram: its four header numbers (request, sequence, total, reserved) and its
/// payload.
type Datagram = ([u16; 4], Vec<u8>);

impl Client {
    fn new(server: &Server) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // All datagrams of a reply arrive at once. The system drops datagrams beyond the receive
        // buffer.
        SockRef::from(&socket).set_recv_buffer_size(1 << 20).unwrap();
        wait_for("port file", || server.scratch.path("ports").exists());
        let ports = server.scratch.read("ports");
        let port = ports.lines().find_map(|line| line.strip_prefix("UDP INET: ")).unwrap();
        socket.connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        Self { socket, next_id: 1 }
    }

    fn send(&self, header: [u16; 4], request: &[u8]) {
        let mut datagram: Vec<u8> = header.iter().flat_map(|number| number.to_be_bytes()).collect();
        datagram.extend_from_slice(request);
        self.socket.send(&datagram).unwrap();
    }

    fn receive(&self) -> Datagram {
        let mut bytes = [0; 2048];
        self.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let len = self.socket.recv(&mut bytes).expect("an answer");
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        ([number(0), number(2), number(4), number(6)], bytes[8..len].to_vec())
    }

    /// Sends a request with the next ID, then a request that always has a reply. Returns the
    /// datagrams before that reply.
    fn ask(&mut self, request: &[u8]) -> Vec<Datagram> {
        self.ask_framed([self.next_id, 0, 1, 0], request)
    }

    fn ask_framed(&mut self, header: [u16; 4], request: &[u8]) -> Vec<Datagram> {
        let last = self.next_id + 1;
        self.next_id += 2;
        self.send(header, request);
        self.send([last, 0, 1, 0], b"mn\r\n");
        let mut answers = Vec::new();
        loop {
            let datagram = self.receive();
            if datagram.0[0] == last {
                return answers;
            }
            answers.push(datagram);
        }
    }

    /// Sends a request as [`Self::ask`] does. Returns the concatenated payloads of the datagrams.
    fn text(&mut self, request: &str) -> String {
        let bytes = self.ask(request.as_bytes()).into_iter().flat_map(|(_, bytes)| bytes).collect();
        String::from_utf8(bytes).unwrap()
    }
}

/// Starts a program on free ports of the loopback.
fn start(program: &str, name: &str, options: &[&str]) -> Server {
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-p", "-1", "-U", "-1", "-t", "1", "-u", "root"]);
    Server::spawn(Scratch::new(&format!("udp-{name}")), command.args(options))
}

fn larderd(name: &str, options: &[&str]) -> Server {
    start(env!("CARGO_BIN_EXE_larderd"), name, options)
}

/// Returns the requests of the comparison. The first requests store items for the other requests.
fn cases() -> Vec<Vec<u8>> {
    let big = "b".repeat(3000);
    let huge = "h".repeat(60_000);
    let mut binary = vec![0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4];
    binary.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, b'a']);
    let text = [
        "set a 5 0 2\r\nhi\r\n",
        "set b 6 0 2\r\nho\r\nset n 0 0 1\r\n1\r\n",
        &format!("set big 0 0 3000\r\n{big}\r\n"),
        &format!("set huge 0 0 60000\r\n{huge}\r\n"),
        "set quiet 0 0 1 noreply\r\n1\r\n",
        "get a\r\n",
        "get quiet\r\nget none\r\n",
        "get a b c\r\nget c a\r\ngat 0 a b\r\n",
        "get big\r\n",
        "get a big b\r\nmn\r\n",
        "get huge\r\n",
        &format!("get {}\r\n", ["a"; 100].join(" ")),
        "mg a v\r\nmn\r\nmg zz v\r\nmg a v q\r\nmg zz v q\r\n",
        "incr n 41\r\ndelete b\r\ndelete b\r\ntouch a 0\r\n",
        "bogus\r\nget a\r\n",
        "stats nothing\r\nverbosity 0\r\n",
        "get a\r\nquit\r\nget a\r\n",
        "get a",
        "watch\r\n",
        "lru_crawler metadump all\r\n",
        "",
        &"x".repeat(3000),
    ];
    text.iter().map(|text| text.as_bytes().to_vec()).chain([binary, b"\x80".to_vec()]).collect()
}

#[test]
fn the_same_datagrams_get_the_replies_of_memcached() {
    let memcached = start("memcached", "memcached", &[]);
    let larderd = larderd("larderd", &[]);
    let (mut theirs, mut ours) = (Client::new(&memcached), Client::new(&larderd));
    for request in cases() {
        let [mut theirs, ours] = [&mut theirs, &mut ours].map(|client| {
            let mut answers = Vec::new();
            // memcached's crawler may be running.
            wait_for("end of the crawler's round", || {
                answers = client.ask(&request);
                !answers.iter().any(|(_, payload)| payload.starts_with(b"BUSY "))
            });
            answers
        });
        // memcached replies to `quit` with a header without a payload. larderd sends nothing.
        theirs.retain(|(_, payload)| !payload.is_empty());
        let start = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        assert!(ours == theirs, "{start:?}: {} and {} datagrams", ours.len(), theirs.len());
    }
}

#[test]
fn frames_are_parsed_like_in_memcached() {
    let memcached = start("memcached", "memcached-frames", &[]);
    let larderd = larderd("larderd-frames", &[]);
    for server in [&memcached, &larderd] {
        let mut client = Client::new(server);
        client.ask(b"set a 0 0 1\r\n1\r\n");
        for ([sequence, total, reserved], answered) in [
            ([0, 1, 0], true),
            ([3, 1, 0], true),
            ([0, 1, 9], true),
            ([0, 2, 0], false),
            ([0, 0, 0], false),
        ] {
            let header = [7, sequence, total, reserved];
            let answers = client.ask_framed(header, b"get a\r\n");
            let expected = ([7, 0, 1, 0], b"VALUE a 0 1\r\n1\r\nEND\r\n".to_vec());
            assert_eq!(answers, if answered { vec![expected] } else { vec![] }, "{header:?}");
        }
        // Send datagrams with a missing or incomplete header.
        for len in 0..8 {
            client.socket.send(&[0, 0, 0, 0, 0, 1, 0, 0][..len]).unwrap();
        }
        assert_eq!(client.ask(b"get a\r\n").len(), 1);
    }
}

/// larderd must drop an incomplete request. memcached differs: it treats the next datagram as the
/// rest of the value.
#[test]
fn half_a_request_is_dropped_with_its_datagram() {
    let server = larderd("halves", &[]);
    let mut client = Client::new(&server);
    for half in ["set a 0 0 10\r\nhi", "set a 0 0 100000\r\nhi", "get", "mg", "\u{80}"] {
        assert!(client.ask(half.as_bytes()).is_empty(), "{half:?}");
        assert_eq!(client.text("get a\r\n"), "END\r\n");
    }
}

#[test]
fn neither_the_log_nor_dumps_are_sent_by_udp() {
    let server = larderd("dumps", &[]);
    let mut client = Client::new(&server);
    client.text("set a 0 0 1\r\n1\r\n");
    for request in ["watch", "lru_crawler metadump all", "lru_crawler mgdump all"] {
        assert_eq!(client.text(&format!("{request}\r\nget a\r\n")), "", "{request}");
    }
    let page = server.ask_text("stats\r\n");
    assert_eq!(stat(&page, "log_watchers"), "0");
}

/// Requests a value whose datagrams fit the client's receive buffer, and a value above the limit
/// for replies.
#[test]
fn a_long_value_is_sent_in_several_datagrams() {
    let server = larderd("large", &["-I", "32m", "-m", "128"]);
    let mut client = Client::new(&server);
    for (key, len) in [("fits", 100_000), ("too-large", 17 << 20)] {
        let value = "v".repeat(len);
        server.ask_text(&format!("set {key} 0 0 {len}\r\n{value}\r\n"));
    }
    let answers = client.ask(b"get fits\r\n");
    let head = "VALUE fits 0 100000\r\n".len();
    assert_eq!(answers.len(), (head + 100_000 + "\r\nEND\r\n".len()).div_ceil(1392));
    for (at, ([_, sequence, total, _], payload)) in answers.iter().enumerate() {
        assert_eq!((usize::from(*sequence), usize::from(*total)), (at, answers.len()));
        assert!(payload.len() == 1392 || at + 1 == answers.len());
    }
    assert!(client.ask(b"get too-large\r\n").is_empty());
    assert_eq!(
        stat(&server.ask_text("stats\r\n"), "read_buf_bytes").parse::<usize>().unwrap() >> 20,
        0
    );
}

#[test]
fn udp_is_off_by_default_and_then_on_the_loopback() {
    let off = Server::larderd(&[]);
    off.port();
    assert!(!off.scratch.read("ports").contains("UDP"));
    assert_eq!(stat(&off.ask_text("stats settings\r\n"), "udpport"), "0");

    let scratch = Scratch::new("udp-loopback");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    let on = Server::spawn(scratch, command.args(["-p", "-1", "-U", "-1", "-t", "1"]));
    let page = on.ask_text("stats conns\r\n");
    let udp: Vec<&str> = page.lines().filter(|line| line.contains("addr udp")).collect();
    let inside = |line: &&str| line.contains("127.0.0.1") || line.contains("[::1]");
    assert!(!udp.is_empty() && udp.iter().all(inside), "{page}");
    assert!(page.contains(":UDP UDP\r\n"), "{page}");
}

/// Returns a port that is free for TCP and taken for UDP.
fn taken_by_udp() -> (UdpSocket, String) {
    let mut sockets = std::iter::repeat_with(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    let taken = sockets.find_map(|socket| {
        let address = socket.local_addr().unwrap();
        TcpListener::bind(address).ok().map(|_| (socket, address.port().to_string()))
    });
    taken.unwrap()
}

#[test]
fn a_udp_port_in_use_is_named() {
    let (_taken, port) = taken_by_udp();
    let output = common::larderd(&["-l", "127.0.0.1", "-U", &port]);
    assert_eq!(output.status.code(), Some(71), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("UDP port {port}")), "{}", stderr(&output));
}

/// Starts larderd on a UDP port. Returns `None` if another process has taken the port.
fn on_udp_port(port: &str) -> Option<Server> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-l", "127.0.0.1", "-U", port, "-t", "1"]);
    let mut server = Server::spawn(Scratch::new("udp-both"), &mut command);
    let mut ended = false;
    wait_for("start", || {
        ended = server.child.try_wait().unwrap().is_some();
        ended || server.scratch.path("ports").exists()
    });
    assert!(!ended || server.said().contains(port), "{}", server.said());
    (!ended).then_some(server)
}

#[test]
fn a_udp_port_alone_sets_the_tcp_port_too() {
    let start = |_| {
        let (taken, port) = taken_by_udp();
        drop(taken);
        on_udp_port(&port).map(|server| (server, port))
    };
    let (both, port) = (0..10).find_map(start).expect("a free port");
    assert_eq!(both.port().to_string(), port);
    assert_eq!(Client::new(&both).text("mn\r\n"), "MN\r\n");
}

/// A server can serve UDP without TCP.
#[test]
fn udp_works_without_tcp() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    let words = ["-l", "127.0.0.1", "-p", "0", "-U", "-1", "-t", "1"];
    let server = Server::spawn(Scratch::new("udp-alone"), command.args(words));
    server.port();
    assert_eq!(Client::new(&server).text("mn\r\n"), "MN\r\n");
}

#[test]
fn one_datagram_draws_a_bounded_answer() {
    const ANSWERS_MAX: u64 = 16 << 20;
    let server = larderd("bounded", &[]);
    let value = "v".repeat(1_000_000);
    server.ask_text(&format!("set v 0 0 {}\r\n{value}\r\n", value.len()));
    let written = || stat(&server.ask_text("stats\r\n"), "bytes_written").parse::<u64>().unwrap();
    let (before, client) = (written(), Client::new(&server));
    client.send([1, 0, 1, 0], "get v\r\n".repeat(100).as_bytes());
    // The server answers this request only after the first datagram. Repeat the request, because
    // the reply may be lost if many datagrams arrive at once.
    client.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    wait_for("the end of the answers", || {
        client.send([2, 0, 1, 0], b"mn\r\n");
        let mut bytes = [0; 2048];
        while let Ok(len) = client.socket.recv(&mut bytes) {
            if len >= 8 && bytes[..2] == [0, 2] {
                return true;
            }
        }
        false
    });
    let drawn = written() - before;
    // Allow more than the limit, because the server's output also includes the page of `stats`.
    assert!((ANSWERS_MAX / 2..=ANSWERS_MAX + (64 << 10)).contains(&drawn), "{drawn} bytes");
}
