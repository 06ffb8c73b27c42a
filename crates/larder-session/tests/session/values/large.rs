//! Tests of values that the session receives in pieces as uploads, and sends in pieces from leases.

use crate::common::streams::frame;
use crate::common::{
    ITEM_SIZE_MAX, TestCache, TestClient, TestEngine, TestServer, new_server, pattern, set, store,
    text,
};
use larder_session::{Next, State};
use larder_store::cache::Cache as _;
use larder_store::segment;

const LEN: usize = 200_000;

/// Returns the expected reply to a `get` that hits.
fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    [store(&format!("VALUE {key} 0 {}", value.len()), value), b"END\r\n".to_vec()].concat()
}

/// Sends `request` in pieces, and returns the reply.
fn upload(server: &mut TestServer, request: &[u8]) -> String {
    let mut client = TestClient::new();
    request.chunks(10_000).for_each(|piece| client.send(server, piece));
    assert_eq!(client.session.state(), State::Waiting);
    assert_eq!(server.host.reserved(), 0, "the session releases the head of the upload");
    text(&client.received)
}

fn a_value_is_received_in_pieces(engine: TestEngine) {
    let mut server = new_server(engine);
    let value = pattern(LEN);
    assert_eq!(upload(&mut server, &set("a", &value)), "STORED\\r\\n");
    assert!(server.replies_to(b"get a\r\n") == hit("a", &value));
    assert_eq!(upload(&mut server, &store("append a 0 0 80000", &value[..80_000])), "STORED\\r\\n");
    assert_eq!(upload(&mut server, &store("prepend a 0 0 3", b"abc")), "STORED\\r\\n");
    assert!(
        server.replies_to(b"get a\r\n")
            == hit("a", &[b"abc", &value[..], &value[..80_000]].concat())
    );
}

fn every_dialect_uploads(engine: TestEngine) {
    let mut server = new_server(engine);
    let value = pattern(LEN);
    let reply = upload(&mut server, &store("ms a 200000 k s O9", &value));
    assert_eq!(reply, "HD ka s200000 O9\\r\\n");
    let reply = upload(&mut server, &frame(1, 0, &[0; 8], b"b", &value));
    assert!(reply.starts_with("\\x81\\x01\\x00\\x00\\x00\\x00\\x00\\x00"), "{reply}");
    let reply = upload(&mut server, &store("ms YmlnIQ== 200000 b k", &value));
    assert_eq!(reply, "HD kYmlnIQ== b\\r\\n");
    for key in ["a", "b", "big!"] {
        assert!(
            server.replies_to(format!("get {key}\r\n").as_bytes()) == hit(key, &value),
            "{key}"
        );
    }
}

fn uploads_obey_store_conditions(engine: TestEngine) {
    let mut server = new_server(engine);
    let value = pattern(LEN);
    let reply = |server: &mut TestServer, line: &str| upload(server, &store(line, &value));
    assert_eq!(reply(&mut server, "replace a 0 0 200000"), "NOT_STORED\\r\\n");
    assert_eq!(reply(&mut server, "append a 0 0 200000"), "NOT_STORED\\r\\n");
    assert_eq!(reply(&mut server, "cas a 0 0 200000 7"), "NOT_FOUND\\r\\n");
    assert_eq!(reply(&mut server, "add a 0 0 200000"), "STORED\\r\\n");
    assert_eq!(reply(&mut server, "add a 0 0 200000"), "NOT_STORED\\r\\n");
    assert_eq!(reply(&mut server, "cas a 0 0 200000 0"), "EXISTS\\r\\n");
    assert_eq!(
        reply(&mut server, "append a 0 0 200000"),
        "NOT_STORED\\r\\n",
        "the result would be too large"
    );
    assert_eq!(reply(&mut server, "set b 0 0 200000 noreply"), "");
    assert!(server.replies_to(b"get a\r\n") == hit("a", &value));
    assert!(server.replies_to(b"get b\r\n") == hit("b", &value));
}

fn an_upload_with_a_bad_trailer_changes_nothing(engine: TestEngine) {
    let mut server = new_server(engine);
    server.replies_to(b"set a 0 0 3\r\nold\r\n");
    let mut request = set("a", &pattern(LEN));
    let end = request.len();
    request[end - 1] = b'?';
    request.extend(b"get a\r\n");
    let reply = upload(&mut server, &request);
    assert_eq!(reply, "CLIENT_ERROR bad data chunk\\r\\n".to_owned() + &text(&hit("a", b"old")));
}

/// If a value is too large, the session discards the bytes as they arrive, and replies after all of
/// them have arrived. A classic set, and every meta store, also removes the old value.
fn a_too_large_value_is_discarded(engine: TestEngine) {
    let mut server = new_server(engine);
    let length = 1 << 30;
    for (line, reply, keeps) in [
        (format!("set a 0 0 {length}"), "SERVER_ERROR object too large for cache\r\n", false),
        (format!("set a 0 0 {length} noreply"), "", false),
        (format!("ms a {length} MA q"), "SERVER_ERROR object too large for cache\r\n", false),
        (format!("append a 0 0 {length}"), "SERVER_ERROR object too large for cache\r\n", true),
        (format!("add a 0 0 {length}"), "SERVER_ERROR object too large for cache\r\n", true),
    ] {
        server.replies_to(b"set a 0 0 3\r\nold\r\n");
        let mut client = TestClient::new();
        client.send(&mut server, format!("{line}\r\n").as_bytes());
        let piece = vec![b'x'; 1 << 22];
        (0..length >> 22).for_each(|_| client.send(&mut server, &piece));
        assert_eq!(client.session.state(), State::Swallowing, "{line}");
        assert_eq!((client.received.len(), client.unread.len(), server.host.reserved()), (0, 0, 0));
        client.send(&mut server, b"\r\nmn\r\n");
        assert_eq!(text(&client.received), text(format!("{reply}MN\r\n").as_bytes()), "{line}");
        assert_eq!(server.replies_to(b"get a\r\n").len() > 5, keeps, "{line}");
    }
    assert_eq!(server.counters.thread.store_too_large.get(), 5);
}

fn a_value_is_sent_in_pieces(engine: TestEngine) {
    let mut server = new_server(engine);
    server.settings.output_max = 5000;
    let value = pattern(LEN);
    server.replies_to(&set("a", &value));
    for (request, head, tail) in [
        ("get a", "VALUE a 0 200000\r\n", "\r\nEND\r\n"),
        ("get a b", "VALUE a 0 200000\r\n", "\r\nEND\r\n"),
        ("gat 0 a", "VALUE a 0 200000\r\n", "\r\nEND\r\n"),
        ("mg a v s t", "VA 200000 s200000 t-1\r\n", "\r\n"),
        ("mg a s", "HD s200000\r\n", ""),
    ] {
        let mut client = TestClient::new();
        client.send(&mut server, format!("{request}\r\nmn\r\n").as_bytes());
        let shown = if head.starts_with("HD") { &[][..] } else { &value };
        let expected = [head.as_bytes(), shown, tail.as_bytes(), b"MN\r\n"].concat();
        assert!(client.received == expected, "{request}");
        assert!(client.unsent_max <= 5000 + 64, "{request}: {} bytes unsent", client.unsent_max);
        assert_eq!(server.host.reserved(), 0);
    }
}

/// While the session sends a value, the sent bytes stay the same even if the item is removed or
/// changed.
fn a_value_being_sent_does_not_change(engine: TestEngine) {
    for change in [
        &b"delete a\r\n"[..],
        b"flush_all\r\n",
        &set("a", &[b'?'; LEN]),
        b"append a 0 0 1\r\nx\r\n",
    ] {
        let mut server = new_server(engine);
        let value = pattern(LEN);
        server.replies_to(&set("a", &value));
        let mut client = TestClient::new();
        client.unread.extend(b"get a\r\n");
        assert_eq!(client.poll(&mut server).next, Next::Write);
        assert_eq!(client.session.state(), State::Sending);
        server.replies_to(change);
        (0..50).for_each(|i| drop(server.replies_to(&set(&format!("other{i}"), &[b'!'; LEN]))));
        client.received.append(&mut client.unsent);
        client.send(&mut server, b"");
        assert!(client.received == hit("a", &value), "{}", text(&change[..10]));
    }
}

/// The cache stores a value of the maximum length, and refuses a value that is one byte longer.
fn the_limit_is_exact(engine: TestEngine) {
    let mut server = new_server(engine);
    let fits = ITEM_SIZE_MAX - 60;
    assert_eq!(upload(&mut server, &set("a", &pattern(fits))), "STORED\\r\\n");
    let reply = upload(&mut server, &set("a", &pattern(fits + 1)));
    assert_eq!(reply, "SERVER_ERROR object too large for cache\\r\\n");
    let with_flags = store(&format!("set a 1 0 {fits}"), &pattern(fits));
    assert_eq!(upload(&mut server, &with_flags), "SERVER_ERROR object too large for cache\\r\\n");
}

for_each_engine!(
    a_value_is_received_in_pieces every_dialect_uploads uploads_obey_store_conditions
    an_upload_with_a_bad_trailer_changes_nothing a_too_large_value_is_discarded a_value_is_sent_in_pieces
    a_value_being_sent_does_not_change the_limit_is_exact
);

/// Returns a cache of 4 MiB.
fn small_cache(evict: bool) -> segment::Cache {
    segment::Cache::new(segment::Config {
        limit_bytes: 4 << 20,
        cas: true,
        classes: crate::common::classes(),
        seed: 1,
        evict,
        item_size_max: ITEM_SIZE_MAX,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .unwrap()
}

/// A new expiry may need memory for a copy of the item. A full cache without eviction has no such
/// memory.
#[test]
fn a_large_value_that_cannot_be_touched_is_not_sent() {
    let mut server = new_server(TestEngine::Segment);
    server.engine = TestCache::new(small_cache(false)).cache.engine();
    let value = pattern(LEN);
    assert_eq!(server.replies_to(&set("large", &value)), b"STORED\r\n");
    let fills = |number: u32| {
        let stored = server.replies_to(&set(&number.to_string(), &[b'x'; 2_000])) == b"STORED\r\n";
        stored.then_some(number)
    };
    assert!((0..).map_while(fills).count() > 100);
    let answer = server.replies_to(b"mg large v T400000\r\nmn\r\n");
    assert_eq!(text(&answer), "SERVER_ERROR Out of memory allocating new item\\r\\nMN\\r\\n");
}

/// A new expiry may need memory for a copy of the item. The eviction that frees this memory may
/// evict the item itself.
#[test]
fn a_touch_that_evicts_its_item_is_a_miss() {
    let TestCache { cache, .. } = TestCache::new(small_cache(true));
    let client = &|thread: usize| {
        let mut server = new_server(TestEngine::Segment);
        server.engine = cache.engine();
        let mut missed = 0;
        for number in 0..20_000_usize {
            let (key, len) = (format!("{thread}-{number}"), 60 + number * 7919 % 9_000);
            assert_eq!(server.replies_to(&set(&key, &pattern(len))), b"STORED\r\n");
            // Touch recent items, including some that are about to be evicted.
            let key = format!("{thread}-{}", number - number * 104_729 % (number + 1).min(400));
            let lifetime = [1, 30, 300, 3_000, 30_000, 300_000][number % 6];
            let (touch, hit, miss) = match number % 2 {
                0 => (format!("touch {key} {lifetime}\r\nmn\r\n"), "TOUCHED", "NOT_FOUND"),
                _ => (format!("mg {key} T{lifetime}\r\nmn\r\n"), "HD", "EN"),
            };
            let answer = String::from_utf8(server.replies_to(touch.as_bytes())).unwrap();
            let one_of = [hit, miss].map(|line| format!("{line}\r\nMN\r\n"));
            assert!(one_of.contains(&answer), "{key}: {answer}");
            missed += u32::from(answer.starts_with(miss));
        }
        missed
    };
    let missed: u32 = std::thread::scope(|scope| {
        let clients = [0, 1, 2].map(|thread| scope.spawn(move || client(thread)));
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(missed > 100, "{missed}");
}
