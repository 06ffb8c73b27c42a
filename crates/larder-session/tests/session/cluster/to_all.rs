//! Tests requests to all groups.

use super::leader::member;
use super::scattering::by_last_byte;
use crate::common::{TestClient, TestEngine, set};
use crate::splits::Delivery;
use larder_session::{ForwardOutcome, GroupIndex, GroupMap, Session};
use std::cell::Cell;

for_each_engine! { flush_all_reaches_all_groups flush_all_reaches_a_group_that_the_map_lists_later a_flush_by_a_node_with_an_old_map_is_refused }

fn flush_all_reaches_all_groups(engine: TestEngine) {
    for leads in [false, true] {
        for (request, answer) in [("flush_all", "OK\r\n"), ("flush_all noreply", "")] {
            let (mut server, leaders) = member(engine, 3, false, &[], usize::MAX);
            server.host.shard_map = by_last_byte(3);
            server.host.leads = leads;
            let sets: Vec<u8> = ["a", "b", "c"].iter().flat_map(|key| set(key, b"5")).collect();
            let stream = [&sets, request.as_bytes(), b"\r\nget a b c\r\n"].concat();
            let (replies, _) = Delivery::at_once().run_in(server, TestClient::new(), &stream);
            let expected = format!("{}{answer}END\r\n", "STORED\r\n".repeat(3));
            assert_eq!(String::from_utf8_lossy(&replies), expected);
            let flushes = |at: usize| leaders[at].lock().unwrap().counters.thread.cmd_flush.get();
            assert_eq!([flushes(0), flushes(1), flushes(2)], [u64::from(!leads), 1, 1]);
        }
    }
}

/// A node may send a flush with an old shard map. A group that knows a newer map refuses it, and the
/// node reads the map. The flush must then also reach the groups that only the newer map lists.
fn flush_all_reaches_a_group_that_the_map_lists_later(engine: TestEngine) {
    /// A map that lists the third group from the second call to `groups` on.
    #[derive(Default)]
    struct Growing(Cell<u16>);
    impl GroupMap for Growing {
        fn group_of(&self, key: &[u8]) -> GroupIndex {
            GroupIndex(u16::from(key.last().copied().unwrap_or_default()) % 3)
        }

        fn groups(&self) -> Vec<GroupIndex> {
            self.0.set(self.0.get() + 1);
            (0..self.0.get().min(2) + 1).map(GroupIndex).collect()
        }

        fn version(&self) -> u64 {
            0
        }
    }
    for leads in [false, true] {
        for refusals in 0..3 {
            let stream: [&[u8]; 2] = [
                b"set c 0 0 1\r\n5\r\nflush_all\r\nget a b c\r\n",
                b"set c 5\r\nflushall\r\nmget a b c\r\n",
            ];
            let expected = ["STORED\r\nOK\r\nEND\r\n", "+OK\r\n+OK\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n"];
            for (is_resp, (stream, expected)) in stream.iter().zip(expected).enumerate() {
                let outcomes =
                    [&[ForwardOutcome::Done][..], &[ForwardOutcome::Retry; 2][..refusals]];
                let (mut server, leaders) =
                    member(engine, 3, false, &outcomes.concat(), usize::MAX);
                server.host.shard_map = Some(Box::new(Growing::default()));
                server.host.leads = leads;
                let mut client = TestClient::new();
                if is_resp == 1 {
                    client.session = Session::resp(0, false);
                }
                let (replies, _) = Delivery::at_once().run_in(server, client, stream);
                assert_eq!(String::from_utf8_lossy(&replies), expected);
                let flushes =
                    |at: usize| leaders[at].lock().unwrap().counters.thread.cmd_flush.get();
                assert_eq!([flushes(0), flushes(1), flushes(2)], [u64::from(!leads), 1, 1]);
            }
        }
    }
}

/// A node may have an old map, which may lack a group: it must read the newer map before its flush
/// takes effect. Other requests do not depend on the age of the map.
fn a_flush_by_a_node_with_an_old_map_is_refused(engine: TestEngine) {
    use larder_session::Conversation::{Memcached, Resp2};
    for (conversation, set, flush) in [
        (Memcached, "set b 0 0 1\r\n5\r\n", "flush_all\r\n"),
        (Resp2, "set b 5\r\n", "flushall\r\n"),
    ] {
        for is_old in [false, true] {
            let (mut server, _) = member(engine, 2, false, &[], usize::MAX);
            server.host.leads = true;
            server.host.shard_map = by_last_byte(2);
            let session = Session::forwarded(conversation, None);
            let mut client = TestClient { session, ..TestClient::new() };
            client.session.note_old_map(is_old);
            client.send(&mut server, set.as_bytes());
            assert!(!client.is_closed);
            client.send(&mut server, flush.as_bytes());
            assert_eq!(client.is_closed, is_old);
            assert_eq!(server.counters.thread.cmd_flush.get(), u64::from(!is_old));
        }
    }
}
