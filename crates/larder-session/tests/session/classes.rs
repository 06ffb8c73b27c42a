//! Tests that each request counts once, in its class of latency statistics.

use crate::common::{ITEM_SIZE_MAX, TestEngine, new_server, pattern, set, store};
use larder_operations::{AnsweredCounts, CommandClass};

for_each_engine! { requests_count_in_their_class stores_count_with_any_outcome cuts_of_the_input_do_not_change_counts }

/// Returns the numbers of answered requests of the classes get, store, delete, count, touch and
/// other, in this order.
fn counts(answered: &AnsweredCounts) -> [u32; 6] {
    CommandClass::ALL.map(|class| answered.of(class))
}

fn check(engine: TestEngine, input: &[u8], expected: [u32; 6]) {
    let mut server = new_server(engine);
    let mut client = server.client();
    client.send(&mut server, input);
    assert_eq!(counts(&client.answered), expected, "{}", crate::common::text(&client.received));
}

fn requests_count_in_their_class(engine: TestEngine) {
    check(
        engine,
        b"get k\r\nmg k v\r\nmg k s\r\nmg k N30\r\nget a b\r\ngets a\r\n",
        [7, 0, 0, 0, 0, 0],
    );
    check(
        engine,
        b"set k 0 0 1\r\n1\r\nms k 1\r\n1\r\nappend k 0 0 1 noreply\r\n2\r\n",
        [0, 3, 0, 0, 0, 0],
    );
    check(engine, b"delete k\r\nmd k I\r\n", [0, 0, 2, 0, 0, 0]);
    check(engine, b"incr k 1\r\nma k N0\r\ndecr k 1\r\n", [0, 0, 0, 3, 0, 0]);
    check(engine, b"touch k 1\r\ngat 1 k l\r\nmg k T30 v\r\n", [0, 0, 0, 0, 4, 0]);
    check(
        engine,
        b"mn\r\nversion\r\nverbosity 1\r\nflush_all\r\nbad\r\nme k\r\nquit\r\n",
        [0, 0, 0, 0, 0, 7],
    );
}

/// A store counts once, whether it succeeds or is refused, and even if the session receives its
/// value in pieces.
fn stores_count_with_any_outcome(engine: TestEngine) {
    let mixed = [
        set("k", b"1"),
        set("large", &pattern(200_000)),
        b"get large\r\nget k\r\n".to_vec(),
        store(&format!("set k 0 0 {}", ITEM_SIZE_MAX + 1), &pattern(ITEM_SIZE_MAX + 1)),
        b"set k 0 0 1\r\n12\r\nset k 0 0 -1\r\n".to_vec(),
    ];
    // The faults are a negative length, and the surplus bytes of a value that is longer than its
    // announced length.
    check(engine, &mixed.concat(), [2, 4, 0, 0, 0, 2]);
}

fn cuts_of_the_input_do_not_change_counts(engine: TestEngine) {
    let input = b"set k 0 0 5\r\nvalue\r\nget k l m\r\nmg k t v\r\nincr k 1\r\nmn\r\nget k\r\n";
    for cut in 0..input.len() {
        let mut server = new_server(engine);
        server.settings.requests_per_poll = 1 + cut % 3;
        let mut client = server.client();
        client.send(&mut server, &input[..cut]);
        client.send(&mut server, &input[cut..]);
        assert_eq!(counts(&client.answered), [5, 1, 0, 1, 0, 1], "cut at {cut}");
    }
}
