//! Tests the limits on the memory that a session uses for a client, and on the length of a poll.

use crate::common::{TestClient, TestEngine, new_server, pattern, set, text};
use larder_session::{Next, State};
use larder_store::{Engine, HashedKey, Lease, Lookup, Value, dashmap, segment};

/// If a client never reads, the session answers its requests only up to the limit of unsent output.
fn output_is_bounded(engine: TestEngine) {
    let mut server = new_server(engine);
    server.settings.requests_per_poll = usize::MAX;
    let value = pattern(1000);
    server.replies_to(&set("a", &value));
    let requests = b"get a\r\n".repeat(10_000);
    let mut client = TestClient::new();
    client.unread.extend(&requests);
    for _ in 0..10 {
        let mut next = client.poll(&mut server).next;
        while engine.waits() && next == Next::Yield {
            next = client.poll(&mut server).next;
        }
        assert_eq!(next, Next::Write);
    }
    let answer = "VALUE a 0 1000\r\n".len() + value.len() + "\r\nEND\r\n".len();
    assert!(client.unsent.len() <= server.settings.output_max + answer, "{}", client.unsent.len());
    assert_eq!(
        client.unsent.len() / answer,
        (requests.len() - client.unread.len()) / 7,
        "every consumed request has its reply"
    );
    client.received.append(&mut client.unsent);
    client.send(&mut server, b"");
    assert_eq!(client.received.len(), 10_000 * answer);
    assert!(client.received.chunks(answer).all(|chunk| chunk == &client.received[..answer]));
}

/// A poll ends after `requests_per_poll` requests, even if the input contains more.
fn a_poll_is_bounded(engine: TestEngine) {
    let mut server = new_server(engine);
    for (requests, polls) in [
        (1, vec![(5, Next::Read { wanted: 1 })]),
        (20, vec![(100, Next::Read { wanted: 1 })]),
        (21, vec![(100, Next::Yield), (5, Next::Read { wanted: 1 })]),
        (60, vec![(100, Next::Yield), (100, Next::Yield), (100, Next::Read { wanted: 1 })]),
    ] {
        let mut client = TestClient::new();
        client.unread = b"get a".to_vec();
        client.unread = b"mn  \n".repeat(requests);
        for (consumed, next) in polls {
            let progress = client.poll(&mut server);
            assert_eq!((progress.consumed, progress.next), (consumed, next), "{requests} requests");
        }
        assert_eq!(client.unsent.len(), 4 * requests);
    }
}

/// A session that waits for the rest of a value reserves little memory, and does not prevent other
/// sessions from storing.
fn a_stalled_upload_reserves_little(engine: TestEngine) {
    let mut server = new_server(engine);
    let request = set("a", &pattern(200_000));
    let mut stalled: Vec<TestClient> = (0..100).map(|_| TestClient::new()).collect();
    for client in &mut stalled {
        client.send(&mut server, &request[..30_000]);
        assert_eq!((client.session.state(), client.unread.len()), (State::Receiving, 0));
    }
    assert!(server.host.reserved() < 100 * 100, "{}", server.host.reserved());
    assert_eq!(
        text(&server.replies_to(b"set a 0 0 1\r\n1\r\nget a\r\n")),
        "STORED\\r\\nVALUE a 0 1\\r\\n1\\r\\nEND\\r\\n"
    );
    stalled.iter_mut().for_each(|client| client.session.close(&server.host));
    assert_eq!(server.host.reserved(), 0);
}

/// An incomplete short value stays in the driver's buffer, and the session reports the number of
/// missing bytes.
fn a_short_value_stays_in_the_input(engine: TestEngine) {
    let mut server = new_server(engine);
    let mut client = TestClient::new();
    client.unread.extend(b"mn\r\nset a 0 0 1000\r\nabc");
    let progress = client.poll(&mut server);
    assert_eq!((progress.consumed, progress.next), (4, Next::Read { wanted: 999 }));
    assert_eq!(client.session.state(), State::Waiting);
}

/// Once all connections together have reached their memory limit, the session refuses a store with
/// an out-of-memory error.
fn an_upload_may_be_refused(engine: TestEngine) {
    let mut server = new_server(engine);
    server.replies_to(b"set a 0 0 3\r\nold\r\nset b 0 0 3\r\nold\r\n");
    server.host.memory_limit = 0;
    let mut client = TestClient::new();
    for request in
        [set("a", &[b'x'; 200_000]), crate::common::store("append b 0 0 200000", &[b'x'; 200_000])]
    {
        let (front, back) = request.split_at(70_000);
        client.send(&mut server, front);
        assert_eq!(client.session.state(), State::Swallowing);
        client.send(&mut server, back);
    }
    client.send(&mut server, b"get a b\r\n");
    let replies =
        "SERVER_ERROR out of memory storing object\r\n".repeat(2) + "VALUE b 0 3\r\nold\r\nEND\r\n";
    assert_eq!(text(&client.received), text(replies.as_bytes()));
    assert_eq!(server.counters.thread.store_no_memory.get(), 2);
}

for_each_engine!(
    output_is_bounded a_poll_is_bounded a_stalled_upload_reserves_little a_short_value_stays_in_the_input
    an_upload_may_be_refused
);

/// Returns a lease on a large value, or `None` if leases already use too much memory.
fn lease<E: Engine>(engine: &mut E, key: &[u8]) -> Option<E::Lease> {
    let key = HashedKey { bytes: key, hash: engine.hash(key) };
    let lent = engine.content(key, |content| match &content.value {
        Value::Large(lease) => lease.may_be_kept().then(|| lease.clone()),
        Value::Whole(_) => panic!("the value is not large"),
    });
    let Lookup::Hit(lease) = lent else { panic!("the item is missing") };
    lease
}

/// Several leases on one value count the memory of this value only once. If leases use too much
/// memory, the session copies values.
#[test]
fn a_value_is_copied_if_leases_are_exhausted() {
    let mut server = new_server(TestEngine::Segment);
    let value = pattern(290_000);
    server.replies_to(&set("large", &value));
    let same: Vec<_> = (0..1000).map(|_| lease(&mut server.engine, b"large")).collect();
    assert!(same.iter().all(Option::is_some));
    drop(same);
    let mut others = Vec::new();
    let refused = (0..1000).find(|n| {
        let key = format!("other{n}");
        server.replies_to(&set(&key, &value));
        let lease = lease(&mut server.engine, key.as_bytes());
        let refused = lease.is_none();
        others.extend(lease);
        refused
    });
    let key = format!("other{}", refused.expect("leases are limited to half of the memory"));
    let whole = |key: &str| {
        [format!("VALUE {key} 0 290000\r\n").as_bytes(), &value, b"\r\nEND\r\nMN\r\n"].concat()
    };
    assert!(server.replies_to(format!("get {key}\r\nmn\r\n").as_bytes()) == whole(&key));
    assert_eq!(server.counters.thread.response_obj_oom.get(), 0);
    drop(others);
    assert!(lease(&mut server.engine, key.as_bytes()).is_some());
    assert_eq!(server.host.reserved(), 0);
}

/// A session occupies at most 96 bytes. An idle session needs no other memory.
#[test]
fn an_idle_session_is_small() {
    assert!(size_of::<larder_session::Session<dashmap::Handle>>() <= 96);
    assert!(size_of::<larder_session::Session<segment::Handle>>() <= 96);
}
