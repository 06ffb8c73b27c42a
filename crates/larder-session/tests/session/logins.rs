//! Tests connections that start with a login. The expected replies come from memcached 1.6.45 for
//! the text protocol, and from memcached 1.6.18 with the PLAIN mechanism of Cyrus SASL for the
//! binary protocol.

use crate::common::{TestEngine, TestServer, new_server, store, text};
use larder_protocol::Parser;

for_each_engine! {
    text_refuses_requests_before_a_login
    text_logs_in
    text_refuses_malformed_logins
    text_limits_the_length_of_a_login
    binary_refuses_requests_before_a_login
    binary_logs_in
    sasl_allows_one_login
    logins_are_counted
    other_dialects_are_refused
    without_a_login_sasl_is_unknown
}

const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
const LOGIN: &[u8] = b"set any 0 0 13\r\nann pass word\r\n";
const MESSAGE: &[u8] = b"\0ann\0pass word";

const GET: u8 = 0x00;
const QUIT: u8 = 0x07;
const NOOP: u8 = 0x0a;
const VERSION: u8 = 0x0b;
const LIST: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;

const OK: u16 = 0;
const INVALID: u16 = 4;
const FAILURE: u16 = 0x20;
const CONTINUE: u16 = 0x21;
const UNKNOWN: u16 = 0x81;
const OUT_OF_MEMORY: u16 = 0x82;

/// The name of a case, its requests, and the statuses of the replies.
type Case = (&'static str, Vec<Vec<u8>>, &'static [u16]);

/// Sends `input` in one piece, and again byte by byte, and checks that the replies are equal.
/// Returns the replies, and whether the session closed the connection.
fn talk(server: &mut TestServer, input: &[u8]) -> (Vec<u8>, bool) {
    let [whole, split] = [input.len().max(1), 1].map(|len| {
        let mut client = server.client();
        input.chunks(len).for_each(|piece| client.send(server, piece));
        (client.received, client.is_closed)
    });
    assert_eq!(text(&split.0), text(&whole.0), "{}", text(input));
    assert_eq!(split.1, whole.1, "{}", text(input));
    whole
}

fn server(engine: TestEngine, opening: Parser) -> TestServer {
    let mut server = new_server(engine);
    server.opening = opening;
    server
}

#[track_caller]
fn answers(server: &mut TestServer, input: &[u8], answer: &[u8], closed: bool) {
    let got = talk(server, input);
    assert_eq!((text(&got.0), got.1), (text(answer), closed), "{}", text(input));
}

/// Returns a binary request.
fn packet(op: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = [extras, key, value].concat();
    let mut packet = vec![0x80, op];
    packet.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
    packet.extend([u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    packet.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    packet.extend([0; 12]);
    [packet, body].concat()
}

fn sasl(op: u8, message: &[u8]) -> Vec<u8> {
    packet(op, &[], b"PLAIN", message)
}

/// Splits binary replies. Returns the opcode, the status and the body of each.
fn packets(mut bytes: &[u8]) -> Vec<(u8, u16, String)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<24>() {
        let len = u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize;
        let (body, rest) = rest.split_at(len);
        found.push((head[1], u16::from_be_bytes([head[6], head[7]]), text(body)));
        bytes = rest;
    }
    found
}

/// Returns the statuses of the replies to binary requests, and whether the session closed the
/// connection.
fn statuses(server: &mut TestServer, requests: &[Vec<u8>]) -> (Vec<u16>, bool) {
    let (answer, closed) = talk(server, &requests.concat());
    (packets(&answer).into_iter().map(|packet| packet.1).collect(), closed)
}

fn text_refuses_requests_before_a_login(engine: TestEngine) {
    let lines = [
        "get a",
        "gets a b",
        "gat 0 a",
        "gats 0 a",
        "mg a v",
        "ms a 1",
        "md abc",
        "ma abc",
        "me abc",
        "mn    ",
        "add a 0 0 1",
        "replace a 0 0 1",
        "append a 0 0 1",
        "prepend a 0 0 1",
        "cas a 0 0 1 1",
        "delete a",
        "incr a 1",
        "decr a 1",
        "touch a 0",
        "flush_all",
        "version",
        "verbosity 1",
        "stats",
        "stats settings",
        "stats reset",
        "watch fetchers",
        "lru_crawler metadump all",
        "cache_memlimit 64",
        "slabs automove 1",
        "lru tune 20 40 0.2 2.0",
        "shutdown",
        "refresh_certs",
        " set a 0 0 13",
        "set a 0 0",
        "set a 0 0 -1",
        "set a 0 0 13x",
        "\u{80}binary",
    ];
    let mut server = server(engine, Parser::TEXT_LOGIN);
    for line in lines {
        let input = [line.as_bytes(), b"\r\n"].concat();
        answers(&mut server, &input, UNAUTHENTICATED, false);
        // The session accepts a login after a refused line.
        let input = [&input, LOGIN, b"mn\r\n"].concat();
        answers(&mut server, &input, &[UNAUTHENTICATED, b"STORED\r\nMN\r\n"].concat(), false);
    }
    server.opening = Parser::default();
    answers(&mut server, b"get a any\r\n", b"END\r\n", false);
}

fn text_logs_in(engine: TestEngine) {
    let mut server = server(engine, Parser::TEXT_LOGIN);
    let lines =
        ["set any 0 0 13", "set k flags ttl 13 noreply", "set   k   0 0  13 ", "set 1 2 3 13"];
    for line in lines {
        let input = [&store(line, b"ann pass word")[..], b"get any k\r\n"].concat();
        answers(&mut server, &input, b"STORED\r\nEND\r\n", false);
    }
    for input in [&b"set a 0 0 4\r\nbob \r\n"[..], b"set a 0 0 9\r\n nameless\r\n"] {
        answers(&mut server, input, b"STORED\r\n", false);
    }
    let twice = [LOGIN, LOGIN, b"get any\r\n"].concat();
    let stored = b"STORED\r\nSTORED\r\nVALUE any 0 13\r\nann pass word\r\nEND\r\n";
    answers(&mut server, &twice, stored, false);
    // The login of one connection does not authenticate another connection.
    answers(&mut server, b"get any\r\n", UNAUTHENTICATED, false);
}

fn text_refuses_malformed_logins(engine: TestEngine) {
    let mut server = server(engine, Parser::TEXT_LOGIN);
    let failure = "CLIENT_ERROR authentication failure";
    let cases: [(&[u8], &str); 9] = [
        (b"set a 0 0 8\r\nann pass\r\n", failure),
        (b"set a 0 0 14\r\nann pass word \r\n", failure),
        (b"set a 0 0 14\r\nann  pass word\r\n", failure),
        (b"set a 0 0 13\r\nbob pass word\r\n", failure),
        (b"set a 0 0 4\r\nann \r\n", failure),
        (b"set a 0 0 3\r\nann\r\n", "CLIENT_ERROR bad authentication token format"),
        (b"set a 0 0 0\r\n\r\n", "CLIENT_ERROR bad authentication token format"),
        (b"set a 0 0 12\r\nann pass word\r", "CLIENT_ERROR bad command line termination"),
        (b"set a 0 0 16385\r\n", "CLIENT_ERROR auth token too long"),
    ];
    for (input, line) in cases {
        let (line, next) = (format!("{line}\r\n"), [input, LOGIN, b"mn\r\n"].concat());
        answers(&mut server, input, line.as_bytes(), false);
        answers(&mut server, &next, &[line.as_bytes(), b"STORED\r\nMN\r\n"].concat(), false);
    }
    for short in [&b"mn\r\n"[..], b"quit\r\n", b"\r\n", b"12345\n"] {
        answers(&mut server, short, b"", true);
    }
}

fn text_limits_the_length_of_a_login(engine: TestEngine) {
    let mut server = server(engine, Parser::TEXT_LOGIN);
    answers(&mut server, &[b's'; 2047], b"", false);
    answers(&mut server, &[b's'; 2048], b"", true);
    let keys = [&b"get "[..], &b"key ".repeat(1000)].concat();
    answers(&mut server, &keys, b"", true);
    let mut client = server.client();
    client.send(&mut server, b"set a 0 0 16384\r\n");
    client.send(&mut server, &[b'x'; 16385]);
    assert_eq!(client.received, b"");
    client.send(&mut server, b"x");
    assert_eq!(text(&client.received), r"CLIENT_ERROR bad command line termination\r\n");
    assert!(client.unread.is_empty());
}

fn binary_refuses_requests_before_a_login(engine: TestEngine) {
    let mut server = server(engine, Parser::BINARY_LOGIN);
    for op in (0..=255).filter(|op| ![VERSION, LIST, AUTH, STEP].contains(op)) {
        for request in [packet(op, &[], &[], &[]), packet(op, &[0; 8], b"key", b"value")] {
            let (answer, closed) = talk(&mut server, &[request, sasl(AUTH, MESSAGE)].concat());
            assert_eq!(packets(&answer), [(op, FAILURE, "Auth failure.".to_owned())]);
            assert!(closed);
        }
    }
    let (answer, closed) = talk(&mut server, &packet(VERSION, &[], &[], &[]));
    assert_eq!((packets(&answer), closed), (vec![(VERSION, OK, "1.6.45".to_owned())], false));
    server.opening = Parser::default();
    answers(&mut server, b"get key\r\n", b"END\r\n", false);
}

fn binary_logs_in(engine: TestEngine) {
    let mut server = server(engine, Parser::BINARY_LOGIN);
    let get = packet(GET, &[], b"key", &[]);
    let requests = [packet(LIST, &[], &[], &[]), sasl(AUTH, MESSAGE), get];
    let (answer, closed) = talk(&mut server, &requests.concat());
    let words = packets(&answer).into_iter().map(|packet| packet.2).collect::<Vec<_>>();
    assert_eq!(words, ["PLAIN", "Authenticated", "Not found"]);
    assert!(!closed);
    let good: [&[u8]; 2] = [b"\0ann\0pass word", b"ann\0ann\0pass word"];
    for message in good {
        let requests = [sasl(AUTH, message), packet(NOOP, &[], &[], &[])];
        assert_eq!(statuses(&mut server, &requests), (vec![OK, OK], false), "{}", text(message));
    }
    let bad: [&[u8]; 10] = [
        b"\0ann\0pass",
        b"\0ann\0",
        b"\0\0nameless",
        b"\0bob\0",
        b"\0ann",
        b"\0ann\0pass word\0",
        b"\0ann\0pass word\0more",
        b"bob\0ann\0pass word",
        b"ann pass word",
        b"\0",
    ];
    for message in bad {
        let requests = [sasl(AUTH, message), packet(NOOP, &[], &[], &[])];
        let refused = (vec![FAILURE, FAILURE], true);
        assert_eq!(statuses(&mut server, &requests), refused, "{}", text(message));
    }
}

fn sasl_allows_one_login(engine: TestEngine) {
    let mut server = server(engine, Parser::BINARY_LOGIN);
    let good = || sasl(AUTH, MESSAGE);
    let bad = || sasl(AUTH, b"\0ann\0wrong");
    let start = || sasl(AUTH, b"");
    let list = || packet(LIST, &[], &[], &[]);
    let noop = || packet(NOOP, &[], &[], &[]);
    let step = |message| sasl(STEP, message);
    let named = |op, name: &[u8]| packet(op, &[], name, MESSAGE);
    let open: [Case; 13] = [
        ("after a failure", vec![bad(), good(), noop()], &[FAILURE, OK, OK]),
        ("in two steps", vec![start(), step(MESSAGE), noop()], &[CONTINUE, OK, OK]),
        (
            "started twice",
            vec![start(), start(), step(MESSAGE), noop()],
            &[CONTINUE, CONTINUE, OK, OK],
        ),
        ("started, then in one step", vec![start(), good(), noop()], &[CONTINUE, OK, OK]),
        (
            "a step again",
            vec![start(), step(b"\0ann\0x"), step(MESSAGE), noop()],
            &[CONTINUE, FAILURE, OK, OK],
        ),
        ("an empty step", vec![start(), step(b""), list()], &[CONTINUE, FAILURE, OK]),
        ("a list between", vec![start(), list(), step(MESSAGE), noop()], &[CONTINUE, OK, OK, OK]),
        ("a step of any name", vec![start(), named(STEP, b"FOO"), noop()], &[CONTINUE, OK, OK]),
        ("in small letters", vec![named(AUTH, b"plain"), noop()], &[OK, OK]),
        ("an unknown mechanism", vec![named(AUTH, b"CRAM-MD5"), list()], &[FAILURE, OK]),
        ("two mechanisms", vec![named(AUTH, b"FOO PLAIN"), list()], &[FAILURE, OK]),
        (
            "a mechanism name that is too long",
            vec![named(AUTH, &[b'X'; 33]), good(), noop()],
            &[INVALID, OK, OK],
        ),
        (
            "a message that is too long",
            vec![sasl(AUTH, &[0; 16385]), good(), noop()],
            &[OUT_OF_MEMORY, OK, OK],
        ),
    ];
    for (name, requests, expected) in open {
        assert_eq!(statuses(&mut server, &requests), (expected.to_vec(), false), "{name}");
    }
    let closed: [Case; 11] = [
        ("a step without a start", vec![step(MESSAGE), noop()], &[FAILURE, FAILURE]),
        (
            "a step after a failure",
            vec![bad(), step(MESSAGE), noop()],
            &[FAILURE, FAILURE, FAILURE],
        ),
        ("only started", vec![start(), noop()], &[CONTINUE, FAILURE]),
        ("a second login", vec![good(), good(), noop()], &[OK, FAILURE, FAILURE]),
        ("a step after the login", vec![good(), step(MESSAGE), noop()], &[OK, FAILURE, FAILURE]),
        (
            "a step after a refused start",
            vec![start(), bad(), step(MESSAGE), noop()],
            &[CONTINUE, FAILURE, FAILURE, FAILURE],
        ),
        ("a list after the login", vec![good(), list(), noop()], &[OK, OK, FAILURE]),
        (
            "a second login after a list",
            vec![good(), list(), good(), noop()],
            &[OK, OK, FAILURE, FAILURE],
        ),
        ("no name", vec![packet(AUTH, &[], &[], MESSAGE), list()], &[INVALID]),
        ("extras", vec![packet(AUTH, &[0; 4], b"PLAIN", MESSAGE), list()], &[INVALID]),
        ("a list with a key", vec![packet(LIST, &[], b"a", &[]), list()], &[INVALID]),
    ];
    for (name, requests, expected) in closed {
        assert_eq!(statuses(&mut server, &requests), (expected.to_vec(), true), "{name}");
    }
}

fn logins_are_counted(engine: TestEngine) {
    let count = |server: &TestServer| {
        let thread = &server.counters.thread;
        (thread.auth_cmds.get(), thread.auth_errors.get())
    };
    let mut text = server(engine, Parser::TEXT_LOGIN);
    let input = [b"get abc\r\nset a 0 0 3\r\nann\r\nset a 0 0 5\r\nann x\r\n", LOGIN].concat();
    text.replies_to(&[&input[..], LOGIN].concat());
    assert_eq!(count(&text), (2, 1), "a store after the login is not a login");
    let mut binary = server(engine, Parser::BINARY_LOGIN);
    let list = packet(LIST, &[], &[], &[]);
    let requests = [list, sasl(AUTH, b"x"), sasl(STEP, b""), sasl(AUTH, b""), sasl(STEP, MESSAGE)];
    binary.replies_to(&requests.concat());
    assert_eq!(count(&binary), (3, 2));
}

fn other_dialects_are_refused(engine: TestEngine) {
    let noop = packet(NOOP, &[], &[], &[]);
    for opening in [Parser::BINARY, Parser::BINARY_LOGIN] {
        answers(&mut server(engine, opening), b"get a\r\n", b"", true);
    }
    let version = [packet(VERSION, &[], &[], &[]), b"\n".to_vec()].concat();
    answers(&mut server(engine, Parser::TEXT), &version, b"ERROR\r\n", false);
    answers(&mut server(engine, Parser::TEXT), b"mn\r\n", b"MN\r\n", false);
    let (answer, closed) = talk(&mut server(engine, Parser::BINARY), &noop);
    assert_eq!((packets(&answer), closed), (vec![(NOOP, OK, String::new())], false));
}

fn without_a_login_sasl_is_unknown(engine: TestEngine) {
    let mut server = new_server(engine);
    let requests = [packet(LIST, &[], &[], &[]), sasl(AUTH, MESSAGE), sasl(STEP, MESSAGE)];
    let quit = packet(QUIT, &[], &[], &[]);
    let expected = (vec![UNKNOWN, UNKNOWN, UNKNOWN, OK], true);
    assert_eq!(statuses(&mut server, &[requests.concat(), quit]), expected);
    let (bad, list) = (packet(AUTH, &[], &[], MESSAGE), packet(LIST, &[], b"key", &[]));
    for request in [bad, list] {
        assert_eq!(statuses(&mut server, &[request]), (vec![INVALID], true));
    }
    assert_eq!(server.counters.thread.auth_cmds.get(), 0);
}
