//! Tests sessions on a read-only replica. However the input is split, they answer lookups, refuse
//! changes, and answer the requests after a refused change as usual.

use crate::common::{Session, TestClient, TestEngine, new_server, pattern, set, store, text};

for_each_engine! { reads_are_answered_and_changes_refused binary_requests_are_refused_by_a_status
resp_changes_get_readonly }

const REFUSED: &str = "SERVER_ERROR this server is a replica: send changes to its leader\r\n";

/// Sends the requests in `filled`, then makes the server read-only and sends `stream` in pieces of
/// `step` bytes. Returns the replies to `stream`.
fn answers(
    engine: TestEngine,
    session: Session,
    filled: &[u8],
    stream: &[u8],
    step: usize,
) -> Vec<u8> {
    let mut server = new_server(engine);
    server.replies_to(filled);
    server.settings.read_only = true;
    let mut client = TestClient { session, ..TestClient::new() };
    stream.chunks(step).for_each(|piece| client.send(&mut server, piece));
    client.session.close(&server.host);
    assert_eq!(server.host.reserved(), 0, "the session releases its memory");
    client.received
}

fn reads_are_answered_and_changes_refused(engine: TestEngine) {
    let filled = [set("k", b"1"), set("l", b"2")].concat();
    let changes: Vec<Vec<u8>> = [
        &b"set k 0 0 1\r\n9\r\n"[..],
        b"add n 0 0 1\r\n9\r\n",
        b"replace k 0 0 1\r\n9\r\n",
        b"append k 0 0 1\r\n9\r\n",
        b"prepend k 0 0 1\r\n9\r\n",
        b"cas k 0 0 1 1\r\n9\r\n",
        b"ms k 1\r\n9\r\n",
        b"ms k 1 T30 MA\r\n9\r\n",
        b"delete k\r\n",
        b"md k\r\n",
        b"md k I T30\r\n",
        b"incr k 1\r\n",
        b"decr k 1\r\n",
        b"ma k\r\n",
        b"touch k 1\r\n",
        b"gat 1 k l\r\n",
        b"gats 1 k\r\n",
        b"mg k T1 v\r\n",
        b"mg n N1 v\r\n",
        b"mt tag\r\n",
        b"flush_all\r\n",
    ]
    .into_iter()
    .map(<[u8]>::to_vec)
    .chain([store("set k 0 0 300000", &pattern(300_000)), store("ms k 300000", &pattern(300_000))])
    .collect();
    let reads = b"get k l n\r\nmg k v f\r\nme none\r\n";
    let answer = "VALUE k 0 1\r\n1\r\nVALUE l 0 1\r\n2\r\nEND\r\nVA 1 f0\r\n1\r\nEN\r\n";
    for change in changes {
        let stream = [&change[..], reads].concat();
        let steps: &[usize] =
            if change.len() > 1000 { &[usize::MAX, 4000] } else { &[usize::MAX, 1, 7] };
        for step in steps {
            let received = answers(engine, Session::new(), &filled, &stream, *step);
            let name = text(&change[..change.len().min(40)]);
            assert_eq!(
                String::from_utf8_lossy(&received),
                format!("{REFUSED}{answer}"),
                "{name} in steps of {step}"
            );
        }
    }
    // The session does not execute a `noreply` change, and sends no error.
    let stream = [
        &b"set k 0 0 1 noreply\r\n9\r\ndelete k noreply\r\nincr k 1 noreply\r\nflush_all noreply\r\n"[..],
        reads,
    ];
    let received = answers(engine, Session::new(), &filled, &stream.concat(), usize::MAX);
    assert_eq!(String::from_utf8_lossy(&received), answer);
}

/// Returns a binary request.
fn binary(code: u8, key: &[u8], extras: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80, code, 0, u8::try_from(key.len()).unwrap()];
    out.extend([u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    out.extend(u32::try_from(key.len() + extras.len() + value.len()).unwrap().to_be_bytes());
    out.extend([0; 12]);
    [&out, extras, key, value].concat()
}

fn binary_requests_are_refused_by_a_status(engine: TestEngine) {
    let (none, count) = ([0; 8], [0; 20]);
    for request in [
        binary(0x01, b"k", &none, b"9"),
        binary(0x11, b"k", &none, b"9"),
        binary(0x02, b"n", &none, b"9"),
        binary(0x04, b"k", b"", b""),
        binary(0x05, b"k", &count, b""),
        binary(0x08, b"", b"", b""),
        binary(0x0e, b"k", b"", b"9"),
        binary(0x1c, b"k", &[0; 4], b""),
        binary(0x1d, b"k", &[0; 4], b""),
    ] {
        let stream = [&request[..], &binary(0x00, b"k", b"", b"")].concat();
        let received = answers(engine, Session::new(), &set("k", b"1"), &stream, usize::MAX);
        assert_eq!(received[6..8], [0, 0x83], "{:x}", request[1]);
        let len = u32::from_be_bytes(received[8..12].try_into().unwrap()) as usize;
        let next = &received[24 + len..];
        assert_eq!((next[1], &next[6..8], next.last()), (0x00, &[0, 0][..], Some(&b'1')));
    }
}

fn resp_changes_get_readonly(engine: TestEngine) {
    let refused = "-READONLY You can't write against a read only replica.\r\n";
    for line in [
        "SET k 9",
        "SET k 9 EX 10",
        "SETEX k 10 9",
        "SETNX n 9",
        "MSET k 9 n 9",
        "GETSET k 9",
        "APPEND k 9",
        "DEL k",
        "UNLINK k l",
        "GETDEL k",
        "INCR k",
        "DECRBY k 2",
        "EXPIRE k 10",
        "PEXPIREAT k 10",
        "PERSIST k",
        "GETEX k EX 10",
        "FLUSHALL",
        "FLUSHDB",
    ] {
        let stream = format!("{line}\r\nGET k\r\nMULTI\r\n{line}\r\nEXEC\r\nGET k\r\n");
        let read = "$1\r\n1\r\n";
        let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        let expected = format!("{refused}{read}+OK\r\n{refused}{aborted}{read}");
        for step in [usize::MAX, 5] {
            let session = Session::resp(7, false);
            let received = answers(engine, session, &set("k", b"1"), stream.as_bytes(), step);
            assert_eq!(String::from_utf8_lossy(&received), expected, "{line}");
        }
    }
}
