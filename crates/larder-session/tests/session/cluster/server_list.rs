//! Tests the server list that memcached clients look up. Each member of a cluster returns it.

use super::leader::{follower, share_items};
use crate::common::{TestClient, TestEngine, new_server, set, text};
use crate::splits::Delivery;
use larder_protocol::reply::Servers;
use larder_session::ForwardOutcome;

for_each_engine! { every_member_lists_the_servers without_a_cluster_the_list_key_is_ordinary
binary_clients_get_the_server_list }

/// Lookups of the server list, as tuples. The second value is the reply of a leader, of a
/// forwarding member, and of a replica that answers lookups. The third value is the reply if the
/// group has no leader; `None` if that reply equals the second value.
const LISTINGS: [(&str, &str, Option<&str>); 10] = [
    ("get LIST\r\n", "VALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    ("get LIST\n", "VALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    ("gets LIST\r\n", "VALUE LIST 0 LEN 3\r\nSERVERS\r\nEND\r\n", None),
    ("gets LIST\n", "VALUE LIST 0 LEN 3\r\nSERVERS\r\nEND\r\n", None),
    ("mg LIST v c\r\n", "VA LEN c3\r\nSERVERS\r\n", None),
    ("config get cluster\r\n", "CONFIG cluster 0 LEN\r\nSERVERS\r\nEND\r\n", None),
    (
        "get a\r\nget LIST\r\nget b\r\n",
        "VALUE a 0 1\r\n1\r\nEND\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\nEND\r\n",
        Some("NONE\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\nNONE\r\n"),
    ),
    // One server answers all keys of a line. Without a leader, it refuses the whole line.
    (
        "get a LIST b\r\n",
        "VALUE a 0 1\r\n1\r\nVALUE LIST 0 LEN\r\nSERVERS\r\nEND\r\n",
        Some("NONE\r\n"),
    ),
    ("gat 0 LIST\r\n", "END\r\n", Some("NONE\r\n")),
    ("get LIST2\r\n", "END\r\n", Some("NONE\r\n")),
];

const LIST: &str = "3\na||1\n";

fn listed() -> Option<Servers> {
    Some(Servers { version: 3, addresses: vec!["a:1".to_owned()] })
}

fn in_full(short: &str) -> String {
    let full = short.replace("LIST", "AmazonElastiCache:cluster").replace("SERVERS", LIST);
    full.replace("LEN", &LIST.len().to_string()).replace("NONE", "SERVER_ERROR no leader")
}

fn every_member_lists_the_servers(engine: TestEngine) {
    let pieces = [vec![usize::MAX], vec![1], vec![7]];
    for (pieces, (request, answer, alone)) in
        pieces.iter().flat_map(|pieces| LISTINGS.map(|listing| (pieces, listing)))
    {
        let (stream, answer) = (in_full(request) + "mn\r\n", in_full(answer) + "MN\r\n");
        let alone = alone.map_or(answer.clone(), |alone| in_full(alone) + "MN\r\n");
        let delivery = Delivery { pieces: pieces.clone(), ..Delivery::at_once() };
        let run = |server| {
            let (replies, is_closed) =
                delivery.run_in(server, TestClient::new(), stream.as_bytes());
            assert!(!is_closed);
            String::from_utf8(replies).unwrap()
        };
        let leading = || {
            let mut server = new_server(engine);
            (server.settings.forwards, server.host.servers) = (true, listed());
            server.replies_to(&set("a", b"1"));
            server
        };
        assert_eq!(run(leading()), answer, "on the leader: {request}");
        let following = |outcomes: &[ForwardOutcome], serves_reads| {
            let (mut server, leader) = follower(engine, outcomes, usize::MAX);
            (server.host.servers, server.host.serves_reads) = (listed(), serves_reads);
            let mut at = leader.lock().unwrap();
            share_items(engine, &mut server, &mut at);
            (at.settings.forwards, at.host.servers) = (true, listed());
            at.replies_to(&set("a", b"1"));
            server
        };
        assert_eq!(run(following(&[], false)), answer, "forwarded: {request}");
        assert_eq!(run(following(&[], true)), answer, "on a replica: {request}");
        let no_leader = [ForwardOutcome::NoLeader; 200];
        assert_eq!(run(following(&no_leader, false)), alone, "without a leader: {request}");
    }
}

/// Without a cluster, the key of the list is an ordinary key, and the binary opcode is unknown.
fn without_a_cluster_the_list_key_is_ordinary(engine: TestEngine) {
    let mut server = new_server(engine);
    server.host.servers = listed();
    let requests = in_full("get LIST\r\ngets LIST\n");
    assert_eq!(server.replies_to(requests.as_bytes()), b"END\r\nEND\r\n");
    let stored = set(&in_full("LIST"), b"v");
    assert_eq!(server.replies_to(&stored), b"STORED\r\n");
    let found = server.replies_to(requests.as_bytes());
    let item = in_full("VALUE LIST 0 1\r\nv\r\nEND\r\nVALUE LIST 0 1 ");
    assert!(found.starts_with(item.as_bytes()), "{}", text(&found));
    server.host.servers = None;
    assert_eq!(server.replies_to(b"config get cluster\r\n"), b"ERROR\r\n");
    assert_eq!(
        server.replies_to(&binary(0x60, b"cluster")),
        answered(0x60, 0x81, b"", b"Unknown command")
    );
}

/// Returns a binary request that has a key, and neither extras nor a value.
fn binary(opcode: u8, key: &[u8]) -> Vec<u8> {
    let len = u8::try_from(key.len()).unwrap();
    let head = [0x80, opcode, 0, len, 0, 0, 0, 0, 0, 0, 0, len, 1, 2, 3, 4];
    [&head[..], &[0; 8], key].concat()
}

/// Returns the reply to a binary request.
fn answered(opcode: u8, status: u8, extras: &[u8], value: &[u8]) -> Vec<u8> {
    let extras_len = u8::try_from(extras.len()).unwrap();
    let len = extras_len + u8::try_from(value.len()).unwrap();
    let head = [0x81, opcode, 0, 0, extras_len, 0, 0, status, 0, 0, 0, len, 1, 2, 3, 4];
    [&head[..], &[0; 8], extras, value].concat()
}

fn binary_clients_get_the_server_list(engine: TestEngine) {
    let (mut server, _) = follower(engine, &[ForwardOutcome::NoLeader; 9], usize::MAX);
    server.host.servers = listed();
    let list = answered(0x60, 0, &[0; 4], LIST.as_bytes());
    assert_eq!(server.replies_to(&binary(0x60, b"cluster")), list);
    // If a server lacks the opcode of `config get`, clients look up the list under a key. The CAS
    // value of this item is the version of the list.
    let mut item = answered(0x00, 0, &[0; 4], LIST.as_bytes());
    item[23] = 3;
    assert_eq!(server.replies_to(&binary(0x00, b"AmazonElastiCache:cluster")), item);
    // Other configurations are unknown, and the connection stays open.
    let unknown = answered(0x60, 0x81, b"", b"Unknown command");
    let requests =
        [binary(0x60, b"clusters"), binary(0x60, b""), binary(0x60, b"cluster")].concat();
    assert_eq!(server.replies_to(&requests), [unknown.clone(), unknown, list].concat());
}
