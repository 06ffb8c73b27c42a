//! Tests of dumps: the listed items, the amount of work in one poll, and the wait for a slow
//! client.

use crate::common::{TestClient, TestEngine, TestServer, new_server, set, text};
use larder_session::test_util::START;
use larder_session::{Next, State};
use larder_store::Seconds;

for_each_engine! {
    a_dump_lists_every_item
    a_dump_lists_the_requested_classes
    a_dump_waits_for_its_client_and_yields
    requests_behind_a_dump_are_answered_after_it
    cachedump_stops_at_its_limit
}

const ITEMS: usize = 5000;

fn filled(engine: TestEngine) -> TestServer {
    let mut server = new_server(engine);
    for i in 0..ITEMS {
        server.replies_to(&set(&format!("key-{i}"), b"value"));
    }
    server
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    std::str::from_utf8(bytes).unwrap().lines().collect()
}

fn a_dump_lists_every_item(engine: TestEngine) {
    let mut server = filled(engine);
    server.now = Seconds(START.0 + 7);
    server.replies_to(b"ms AAEC 2 b T100 F5\r\nhi\r\nset gone 0 -1 1\r\n1\r\n");
    let dumped = server.replies_to(b"lru_crawler metadump all\r\n");
    let dumped = lines(&dumped);
    assert_eq!(dumped.len(), ITEMS + 3);
    assert_eq!((dumped[0], dumped[ITEMS + 2]), ("OK", "END"));
    for i in 0..ITEMS {
        let start = format!("key=key-{i} exp=-1 la={} cas=", START.0);
        let found = dumped.iter().find(|line| line.starts_with(&start)).expect(&start);
        assert!(found.contains(" fetch=no cls=1 size="), "{found}");
    }
    let start = format!("key=%00%01%02 exp={} la={}", START.0 + 107, START.0 + 7);
    let binary = dumped.iter().find(|line| line.starts_with(&start)).expect(&start);
    assert!(binary.ends_with(" size=68 flags=5 "), "{binary}");
    let keys = server.replies_to(b"lru_crawler mgdump hash\r\n");
    let keys = lines(&keys);
    assert_eq!((keys.len(), keys[0], *keys.last().unwrap()), (ITEMS + 3, "OK", "EN"));
    assert!(keys.contains(&"mg key-77") && keys.contains(&"mg AAEC b"));
}

fn a_dump_lists_the_requested_classes(engine: TestEngine) {
    let mut server = new_server(engine);
    server.replies_to(&set("small", b"1"));
    server.replies_to(&set("large", &[b'x'; 1000]));
    for (classes, keys) in [("1", "mg small\r\n"), ("4", "mg large\r\n"), ("2,3,63", "")] {
        let request = format!("lru_crawler mgdump {classes}\r\n");
        let expected = format!("OK\r\n{keys}EN\r\n");
        assert_eq!(text(&server.replies_to(request.as_bytes())), text(expected.as_bytes()));
    }
}

fn a_dump_waits_for_its_client_and_yields(engine: TestEngine) {
    let mut server = filled(engine);
    server.settings.output_max = 4096;
    let mut client = TestClient::new();
    client.unread = b"lru_crawler metadump all\r\n".to_vec();
    for _ in 0..200 {
        let progress = client.poll(&mut server);
        assert!(matches!(progress.next, Next::Yield | Next::Write));
        assert_eq!(client.session.state(), State::Dumping);
        assert_eq!(text(&server.replies_to(b"mn\r\n")), "MN\\r\\n");
    }
    assert!(client.unsent_max < 4096 + 400 * 100, "{}", client.unsent_max);
    client.takes = 1000;
    client.send(&mut server, b"");
    assert_eq!(lines(&client.received).len(), ITEMS + 2);
}

fn requests_behind_a_dump_are_answered_after_it(engine: TestEngine) {
    let mut server = new_server(engine);
    server.replies_to(&set("a", b"1"));
    let answer = server.replies_to(b"mn\r\nlru_crawler mgdump all\r\nget a\r\n");
    assert_eq!(text(&answer), text(b"MN\r\nOK\r\nmg a\r\nEN\r\nVALUE a 0 1\r\n1\r\nEND\r\n"));
}

fn cachedump_stops_at_its_limit(engine: TestEngine) {
    let mut server = filled(engine);
    server.replies_to(b"ms AAEC 2 b\r\nhi\r\n");
    assert_eq!(lines(&server.replies_to(b"stats cachedump 1 7\r\n")).len(), 7 + 1);
    let all = server.replies_to(b"stats cachedump 1 0\r\n");
    assert_eq!(lines(&all).len(), ITEMS + 1, "all items except the one with a binary key");
    assert!(lines(&all).contains(&"ITEM key-3 [5 b; 0 s]"));
    assert_eq!(text(&server.replies_to(b"stats cachedump 2 0\r\n")), "END\\r\\n");
}
