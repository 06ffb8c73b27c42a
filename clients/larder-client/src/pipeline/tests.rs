use super::*;
use crate::StoreRequest;
use crate::{Item, StoreMode, StoreOutcome, Ttl};
use bytes::Bytes;

const SECOND: Duration = Duration::from_secs(1);

/// A pipeline with a simulated clock.
struct Harness {
    calls: Pipeline<char>,
    now: Instant,
}

impl Harness {
    fn new() -> Self {
        let now = Instant::now();
        Self { calls: Pipeline::new("cache", SECOND, now), now }
    }

    fn open() -> Self {
        let mut harness = Self::new();
        harness.calls.link = LinkState::Opening;
        harness.calls.handle_opened(harness.now);
        harness
    }

    fn push(&mut self, ticket: char, request: &Request<'_>) -> CallId {
        self.calls.push(ticket, request, self.now).unwrap()
    }

    fn get(&mut self, ticket: char) -> CallId {
        let key = ticket.to_string();
        self.push(ticket, &Request::Get { key: key.as_bytes(), cas: false, touch: None })
    }

    fn set(&mut self, ticket: char) -> CallId {
        let key = ticket.to_string();
        let request = StoreRequest {
            mode: StoreMode::Set,
            key: key.as_bytes(),
            value: b"1",
            ttl: Ttl::FOREVER,
            flags: 0,
            cas: None,
        };
        self.push(ticket, &Request::Store(&[request]))
    }

    fn output(&mut self) -> String {
        let output = self.calls.poll_output(self.now, <[u8]>::to_vec);
        String::from_utf8(output.unwrap_or_default()).unwrap()
    }

    fn input(&mut self, input: &str) {
        self.calls.handle_input(input.as_bytes(), self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.calls.handle_time(self.now);
    }

    /// Returns the tickets with results: `=` marks an output, `!` a definite error, and `?` an
    /// ambiguous error.
    fn answers(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.calls.poll_answer())
            .map(|(ticket, answer)| match answer {
                Ok(Output::Item(item)) => {
                    let value = item.map(|item| String::from_utf8(item.value.to_vec()).unwrap());
                    format!("{ticket}={}", value.unwrap_or_default())
                }
                Ok(output) => format!("{ticket}={output:?}"),
                Err(error) => {
                    let kind = format!("{:?}", error.kind());
                    let name = kind.split('(').next().unwrap_or_default();
                    format!("{ticket}{}{name}", if error.is_ambiguous() { '?' } else { '!' })
                }
            })
            .collect()
    }
}

fn hit(key: char) -> String {
    format!("VALUE {key} 0 1\r\n{key}\r\nEND\r\n")
}

#[test]
fn calls_leave_in_one_write_and_each_gets_its_result() {
    let mut harness = Harness::new();
    assert!(!harness.calls.start_opening(), "no call needs a connection");
    harness.get('a');
    harness.set('b');
    assert!(harness.calls.start_opening() && !harness.calls.start_opening());
    assert_eq!(harness.output(), "");
    harness.calls.handle_opened(harness.now);
    assert_eq!(harness.output(), "get a\r\nset b 0 0 1\r\n1\r\n");
    harness.get('c');
    assert_eq!(harness.output(), "get c\r\n");
    let input = format!("{}STORED\r\nEND\r\n", hit('a'));
    for byte in input.chars() {
        harness.input(&byte.to_string());
    }
    assert_eq!(harness.answers(), ["a=a", "b=Stored([Stored])", "c="]);
    assert!(harness.calls.is_idle() && harness.calls.is_open());
}

#[test]
fn all_requests_are_sent_and_interpreted() {
    let item = |value: &'static str| Item { value: Bytes::from(value), flags: 0, cas: None };
    let store = |key: &'static str| StoreRequest {
        mode: StoreMode::Add,
        key: key.as_bytes(),
        value: b"1",
        ttl: Ttl::secs(5),
        flags: 3,
        cas: None,
    };
    let keys: &[&[u8]] = &[b"a", b"b"];
    for (request, sent, answer, output) in [
        (
            Request::Get { key: b"a", cas: true, touch: Some(Ttl::secs(9)) },
            "gats 9 a\r\n",
            "VALUE a 0 1 7\r\nx\r\nEND\r\n",
            Output::Item(Some(Item { cas: Some(7), ..item("x") })),
        ),
        (
            Request::GetMany { keys, cas: false },
            "get a b\r\n",
            "VALUE b 0 1\r\nx\r\nEND\r\n",
            Output::Items(vec![None, Some(item("x"))]),
        ),
        (
            Request::Store(&[store("a"), store("b")]),
            "add a 3 5 1\r\n1\r\nadd b 3 5 1\r\n1\r\n",
            "STORED\r\nNOT_STORED\r\n",
            Output::Stored(vec![StoreOutcome::Stored, StoreOutcome::NotStored]),
        ),
        (
            Request::Delete(keys),
            "delete a\r\ndelete b\r\n",
            "DELETED\r\nNOT_FOUND\r\n",
            Output::Found(vec![true, false]),
        ),
        (
            Request::Touch { key: b"a", ttl: Ttl::secs(5) },
            "touch a 5\r\n",
            "TOUCHED\r\n",
            Output::Found(vec![true]),
        ),
        (
            Request::Count { key: b"a", down: true, delta: 2 },
            "decr a 2\r\n",
            "5\r\n",
            Output::Counted(crate::CountOutcome::Number(5)),
        ),
        (Request::Flush(Ttl::FOREVER), "flush_all 0\r\n", "OK\r\n", Output::Done),
        (Request::Version, "version\r\n", "VERSION 1\r\n", Output::Version("1".to_owned())),
        (
            Request::Stats(Some("items")),
            "stats items\r\n",
            "STAT a b\r\nEND\r\n",
            Output::Stats(vec![("a".to_owned(), "b".to_owned())]),
        ),
    ] {
        let mut harness = Harness::open();
        harness.push('a', &request);
        assert_eq!(harness.output(), sent);
        harness.input(answer);
        assert_eq!(harness.calls.poll_answer().unwrap().1.unwrap(), output);
    }
    let mut harness = Harness::open();
    for (ticket, request) in ['a', 'b', 'c'].into_iter().zip([
        Request::GetMany { keys: &[], cas: false },
        Request::Store(&[]),
        Request::Delete(&[]),
    ]) {
        harness.push(ticket, &request);
    }
    assert_eq!(harness.answers(), ["a=Items([])", "b=Stored([])", "c=Found([])"]);
    let refused = harness.calls.push('a', &Request::Delete(&[b""]), harness.now);
    assert!(matches!(refused.unwrap_err().1.kind(), ErrorKind::Key(_)));
}

#[test]
fn a_cancelled_call_is_withdrawn_or_its_reply_is_dropped() {
    let mut harness = Harness::open();
    let a = harness.get('a');
    let b = harness.get('b');
    harness.get('c');
    assert_eq!(harness.calls.cancel(b, harness.now), Some('b'));
    assert_eq!(harness.output(), "get a\r\nget c\r\n");
    assert_eq!(harness.calls.cancel(a, harness.now), Some('a'));
    assert_eq!(harness.calls.cancel(a, harness.now), None);
    assert_eq!(harness.calls.under_way().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), ['c']);
    harness.input(&(hit('a') + &hit('c')));
    assert_eq!(harness.answers(), ["c=c"]);
}

#[test]
fn a_call_is_cancelled_after_a_request_without_keys() {
    let mut harness = Harness::open();
    let empty = harness.push('e', &Request::Store(&[]));
    let (a, b) = (harness.get('a'), harness.get('b'));
    assert_eq!(harness.calls.cancel(empty, harness.now), None);
    assert_eq!(harness.calls.cancel(a, harness.now), Some('a'));
    assert_eq!(harness.calls.cancel(b, harness.now), Some('b'));
    assert_eq!(harness.output(), "");
}

#[test]
fn calls_fail_at_their_deadline_and_then_a_silent_connection_ends() {
    let mut harness = Harness::open();
    harness.set('a');
    harness.output();
    assert_eq!(harness.calls.poll_time(harness.now), Some(harness.now + SECOND));
    harness.now += SECOND / 2;
    harness.get('b');
    harness.output();
    harness.input("STO");
    harness.set('c');
    harness.pass(SECOND / 2);
    // Call `a` times out. After a second without a reply, the pipeline closes the connection, so
    // call `b` fails before its deadline.
    assert_eq!(harness.answers(), ["a?Timeout", "b!Timeout"]);
    assert!(!harness.calls.is_open());
    harness.pass(SECOND);
    assert_eq!(harness.answers(), ["c!Timeout"], "it was never sent");
    assert_eq!(harness.calls.poll_time(harness.now), None);
}

#[test]
fn a_late_reply_is_dropped() {
    let mut harness = Harness::open();
    harness.get('a');
    harness.get('b');
    harness.output();
    harness.now += SECOND * 3 / 4;
    harness.input(&hit('a'));
    harness.get('c');
    harness.output();
    harness.pass(SECOND / 4);
    assert_eq!(harness.answers(), ["a=a", "b!Timeout"]);
    assert!(harness.calls.is_open());
    assert!(harness.calls.poll_time(harness.now) <= Some(harness.now + SECOND * 3 / 4));
    harness.input(&(hit('b') + &hit('c')));
    assert_eq!(harness.answers(), ["c=c"]);
}

#[test]
fn unsent_calls_use_the_next_connection() {
    let mut harness = Harness::open();
    harness.get('a');
    harness.set('b');
    harness.output();
    harness.set('c');
    harness.calls.handle_lost(None, harness.now);
    assert_eq!(harness.answers(), ["a!Closed", "b?Closed"]);
    assert!(harness.calls.start_opening());
    harness.calls.handle_opened(harness.now);
    assert_eq!(harness.output(), "set c 0 0 1\r\n1\r\n");
    harness.input("STORED\r\n");
    assert_eq!(harness.answers(), ["c=Stored([Stored])"]);
}

#[test]
fn unexpected_input_ends_the_connection() {
    for (input, expected) in [
        ("END\r\nEND\r\n", ["a!Unexpected", "b!Unexpected"]),
        ("VALUE x 0 1\r\nx\r\nEND\r\n", ["a!Unexpected", "b!Unexpected"]),
        ("NONSENSE\r\n", ["a!Unexpected", "b!Unexpected"]),
        ("ERROR\r\n", ["a!Unexpected", "b!Unexpected"]),
    ] {
        let mut harness = Harness::open();
        harness.get('a');
        if input != "END\r\nEND\r\n" {
            harness.get('b');
        }
        harness.output();
        harness.input(input);
        assert!(!harness.calls.is_open(), "{input:?}");
        let answers = harness.answers();
        let len = answers.len();
        assert_eq!(answers, expected[..len], "{input:?}");
        harness.input("END\r\n");
        assert_eq!(harness.answers(), [""; 0]);
    }
}

#[test]
fn the_breaker_opens_after_several_failures() {
    let mut harness = Harness::new();
    for _ in 0..5 {
        harness.get('a');
        harness.get('b');
        assert!(harness.calls.start_opening());
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        harness.calls.handle_failed(refused, harness.now);
        assert_eq!(harness.answers(), ["a!Connect", "b!Connect"]);
    }
    let request = Request::Version;
    let (ticket, error) = harness.calls.push('a', &request, harness.now).unwrap_err();
    assert!(matches!((ticket, error.kind()), ('a', ErrorKind::Unavailable { .. })));
    // One call probes. If this call is cancelled, the next call probes.
    harness.now += SECOND;
    let probe = harness.push('a', &request);
    assert!(harness.calls.push('b', &request, harness.now).is_err());
    assert!(harness.calls.cancel(probe, harness.now).is_some());
    harness.push('b', &request);
    assert!(harness.calls.start_opening());
    harness.calls.handle_opened(harness.now);
    harness.output();
    harness.input("VERSION 1\r\n");
    harness.push('c', &request);
    harness.push('d', &request);
}

#[test]
fn closing_fails_all_calls() {
    let mut harness = Harness::open();
    harness.set('a');
    harness.output();
    harness.set('b');
    harness.calls.close(harness.now);
    assert_eq!(harness.answers(), ["a?ClientClosed", "b!ClientClosed"]);
    assert!(!harness.calls.is_open());
}
