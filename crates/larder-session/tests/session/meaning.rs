//! Compares replies and counters with those of memcached 1.6.18. For commands of later releases,
//! the reference is the documentation of that release.
//!
//! The transcripts of `tests/conformance/` test many more commands. The cases in this file also
//! compare counters, or test details that are easy to break.

use crate::common::streams::frame;
use crate::common::{ITEM_SIZE_MAX, TestEngine, TestServer, new_server, pattern, set, text};

const SET: &[u8] = b"set k 0 0 1\r\n5\r\n";

/// Returns the name and the value of each counter that is not zero.
fn counted(server: &TestServer) -> Vec<(&'static str, u64)> {
    let classes = server.counters.classes.iter().flat_map(|class| class.each());
    let mut all = std::collections::BTreeMap::new();
    for (name, counter) in server.counters.thread.each().chain(classes) {
        *all.entry(name).or_default() += counter.get();
    }
    all.into_iter().filter(|&(_, count)| count > 0).collect()
}

#[track_caller]
fn check(engine: TestEngine, requests: &[u8], counts: &str) {
    let mut server = new_server(engine);
    let answer = server.replies_to(requests);
    let got: Vec<_> =
        counted(&server).iter().map(|(name, count)| format!("{name} {count}")).collect();
    assert_eq!(got.join(", "), counts, "{} replied {}", text(requests), text(&answer));
}

fn retrievals_are_counted(engine: TestEngine) {
    let check = |requests: &[u8], counts| check(engine, &[SET, requests].concat(), counts);
    check(b"get k nope k\r\n", "cmd_set 1, get_hits 2, get_misses 1");
    check(b"gat 0 k nope\r\n", "cmd_set 1, cmd_touch 2, touch_hits 1, touch_misses 1");
    check(b"touch k 0\r\ntouch nope 0\r\n", "cmd_set 1, cmd_touch 2, touch_hits 1, touch_misses 1");
    check(b"mg k v\r\nmg nope v\r\n", "cmd_set 1, get_hits 1, get_misses 1");
    check(b"mg k T30\r\nmg nope T30\r\n", "cmd_set 1, cmd_touch 1, get_misses 1, touch_hits 1");
    check(b"mg new N30\r\nmg new v\r\n", "cmd_set 1, get_hits 2");
    check(b"mg new N30 T50\r\n", "cmd_set 1, cmd_touch 1, touch_hits 1");
    check(b"me k\r\nme nope\r\n", "cmd_meta 2, cmd_set 1");
    check(
        b"flush_all\r\nget k\r\nget k\r\n",
        "cmd_flush 1, cmd_set 1, get_flushed 1, get_misses 2",
    );
    check(
        b"touch k -1\r\nget k\r\nget k\r\n",
        "cmd_set 1, cmd_touch 1, get_expired 1, get_misses 2, touch_hits 1",
    );
}

fn stores_are_counted(engine: TestEngine) {
    let check = |requests: &[u8], counts| check(engine, &[SET, requests].concat(), counts);
    check(b"set k 0 0 1\r\n55555\r\n", "cmd_set 2");
    check(b"add k 0 0 1\r\n1\r\nappend nope 0 0 1\r\n1\r\n", "cmd_set 3");
    check(b"cas k 0 0 1 999999\r\n1\r\n", "cas_badval 1, cmd_set 2");
    check(b"cas nope 0 0 1 9\r\n1\r\nms nope 1 C9\r\n1\r\n", "cas_misses 2, cmd_set 3");
    check(b"ms k 1 MA C9999\r\n1\r\nms nope 1 MA C9\r\n1\r\n", "cmd_set 3");
    check(b"ms k 1 MR C9999\r\n1\r\n", "cas_badval 1, cmd_set 2");
    check(&set("k", &pattern(ITEM_SIZE_MAX)), "cmd_set 1, store_too_large 1");
}

fn removals_and_arithmetic_are_counted(engine: TestEngine) {
    let check = |requests: &[u8], counts| check(engine, &[SET, requests].concat(), counts);
    check(b"delete k\r\ndelete k\r\n", "cmd_set 1, delete_hits 1, delete_misses 1");
    check(b"md k C9999\r\n", "cmd_set 1, delete_misses 1");
    check(b"md k I\r\nmd k x\r\n", "cmd_set 1, delete_hits 1");
    check(
        b"incr k 1\r\nincr nope 1\r\ndecr nope 1\r\n",
        "cmd_set 1, decr_misses 1, incr_hits 1, incr_misses 1",
    );
    check(b"ma k\r\nma k MD\r\nma nope\r\n", "cmd_set 1, decr_hits 1, incr_hits 1, incr_misses 1");
    check(b"ma new N0 J5\r\nma new N0 MD\r\nma k C9999\r\n", "cmd_set 1, decr_hits 1");
    check(b"set k 0 0 1\r\nx\r\nincr k 1\r\n", "cmd_set 2");
}

fn binary_requests_are_counted(engine: TestEngine) {
    let set = frame(1, 0, &[0; 8], b"k", b"5");
    let check = |requests: &[u8], counts| check(engine, &[&set, requests].concat(), counts);
    check(&frame(4, 9999, &[], b"k", &[]), "cmd_set 1");
    let create = [&1_u64.to_be_bytes()[..], &[0; 12]].concat();
    check(&frame(5, 0, &create, b"n", &[]).repeat(2), "cmd_set 1, incr_hits 1");
    check(&frame(1, 9999, &[0; 8], b"k", b"6"), "cas_badval 1, cmd_set 2");
    check(&frame(0x1d, 0, &[0; 4], b"k", &[]), "cmd_set 1, cmd_touch 1, touch_hits 1");
}

#[track_caller]
fn check_replies(engine: TestEngine, requests: &str, answers: &str) {
    let mut server = new_server(engine);
    assert_eq!(
        text(&server.replies_to(requests.as_bytes())),
        text(answers.as_bytes()),
        "{requests}"
    );
}

/// The flags `h` and `l` return the state of the item before the request, even if the engine
/// repeats the lookup to change the item.
fn a_stale_item_is_won_once(engine: TestEngine) {
    check_replies(
        engine,
        "set k 0 0 1\r\n5\r\nmd k I\r\nmg k h l t v\r\nmg k h v\r\nmg k h u\r\n",
        "STORED\r\nHD\r\nVA 1 h0 l0 t-1 X W\r\n5\r\nVA 1 h1 Z X\r\n5\r\nHD h1 Z X\r\n",
    );
    check_replies(engine, "mg k N30 h\r\nmg k h\r\n", "HD h0 W\r\nHD h1 Z\r\n");
}

/// If an increment adds a digit, the number becomes a new item that no client has fetched.
/// Otherwise, the old item stays.
fn a_number_that_grows_becomes_a_new_item(engine: TestEngine) {
    let grows = "set k 0 0 1\r\n9\r\nmg k\r\nincr k 1\r\nmg k h\r\n";
    check_replies(engine, grows, "STORED\r\nHD\r\n10\r\nHD h0\r\n");
    let fits = "set k 0 0 1\r\n5\r\nmg k\r\nincr k 1\r\nmg k h\r\n";
    check_replies(engine, fits, "STORED\r\nHD\r\n6\r\nHD h1\r\n");
}

/// With a lower CAS value and the flag `I`, a set stores a stale item, but an append is refused.
fn a_late_append_is_refused(engine: TestEngine) {
    check_replies(
        engine,
        "ms k 1 E50\r\n1\r\nms k 1 C40 I\r\n2\r\nmg k v\r\n",
        "HD\r\nHD\r\nVA 1 X W\r\n2\r\n",
    );
    check_replies(
        engine,
        "ms k 1 E50\r\n1\r\nms k 1 C40 I MA\r\n2\r\nmg k v\r\n",
        "HD\r\nEX\r\nVA 1\r\n1\r\n",
    );
}

/// A client can set the maximum CAS value on an item, and a later store can still change this item.
fn a_client_can_choose_any_cas(engine: TestEngine) {
    let mut server = new_server(engine);
    let answer = server.replies_to(b"ms k 1 E18446744073709551615 c\r\n1\r\nms k 1 c\r\n2\r\n");
    let answer = text(&answer);
    assert!(answer.starts_with("HD c18446744073709551615\\r\\nHD c"), "{answer}");
    assert!(!answer.ends_with("HD c18446744073709551615\\r\\n"), "{answer}");
}

for_each_engine!(
    retrievals_are_counted stores_are_counted removals_and_arithmetic_are_counted binary_requests_are_counted
    a_stale_item_is_won_once a_number_that_grows_becomes_a_new_item a_late_append_is_refused
    a_client_can_choose_any_cas
);
