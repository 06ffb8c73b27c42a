//! Tests of RESP. The replies to a stream depend neither on how the input is split nor on waits for
//! slower storage.

mod parts;
mod watched;

use crate::common::{TestClient, TestEngine, TestServer, new_server, pattern, text};
use larder_protocol::reply::resp::{Link, Replication};
use larder_session::Session;

/// Returns a request in the form in which clients send it: an array of bulk strings.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn requests(lines: &[&str]) -> Vec<u8> {
    let words = |line: &&str| request(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    lines.iter().flat_map(words).collect()
}

fn client(login_required: bool) -> TestClient {
    TestClient { session: Session::resp(7, login_required), ..TestClient::new() }
}

/// Sends `pieces` to a new server, and returns the replies.
fn answers<'p>(
    engine: TestEngine,
    login_required: bool,
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> Vec<u8> {
    let (mut server, mut client) = (new_server(engine), client(login_required));
    pieces.into_iter().for_each(|piece| client.send(&mut server, piece));
    close(server, client)
}

fn close(server: TestServer, mut client: TestClient) -> Vec<u8> {
    client.session.close(&server.host);
    assert_eq!(server.host.reserved(), 0, "the session releases its memory");
    client.received
}

#[track_caller]
fn check(engine: TestEngine, login_required: bool, stream: &[u8], expected: &str) {
    let whole = answers(engine, login_required, [stream]);
    assert_eq!(text(&whole), text(expected.as_bytes()));
    for at in 0..=stream.len() {
        let (front, back) = stream.split_at(at);
        assert_eq!(text(&answers(engine, login_required, [front, back])), text(&whole), "at {at}");
    }
    let bytes = stream.chunks(1);
    assert_eq!(text(&answers(engine, login_required, bytes)), text(&whole), "in single bytes");
}

for_each_engine! { values numbers expiries multi_key_commands transactions logins inline_requests large_values oversized_arguments comparisons lists_and_settings connections replication_roles }

fn values(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "GET k",
            "SET k v",
            "get k",
            "SET k w NX",
            "SET k w XX GET",
            "SETNX k x",
            "SETNX n 1",
            "GETSET k y",
            "APPEND k z",
            "APPEND new ab",
            "STRLEN k",
            "STRLEN none",
            "GETRANGE new 1 -1",
            "GETDEL k",
            "GETDEL k",
            "TYPE new",
            "TYPE k",
            "SET k v XX",
            "SET q v GET",
            "DBSIZE",
            "FLUSHALL",
            "GET new",
            "SET k v EX",
            "nope a b",
        ]),
        "$-1\r\n+OK\r\n$1\r\nv\r\n$-1\r\n$1\r\nv\r\n:0\r\n:1\r\n\
         $1\r\nw\r\n:2\r\n:2\r\n:2\r\n:0\r\n\
         $1\r\nb\r\n$2\r\nyz\r\n$-1\r\n+string\r\n+none\r\n$-1\r\n\
         $-1\r\n:3\r\n+OK\r\n$-1\r\n-ERR syntax error\r\n\
         -ERR unknown command 'nope', with args beginning with: 'a' 'b' \r\n",
    );
}

fn numbers(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "INCR n",
            "INCRBY n 41",
            "DECR n",
            "DECRBY n 100",
            "SET n 9223372036854775807",
            "INCR n",
            "GET n",
            "SET n 100",
            "DECR n",
            "GET n",
            "SET n x",
            "INCR n",
            "INCRBY n x",
        ]),
        ":1\r\n:42\r\n:41\r\n:-59\r\n+OK\r\n\
         -ERR increment or decrement would overflow\r\n$19\r\n9223372036854775807\r\n\
         +OK\r\n:99\r\n$2\r\n99\r\n+OK\r\n-ERR value is not an integer or out of range\r\n\
         -ERR value is not an integer or out of range\r\n",
    );
}

fn expiries(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "TTL k",
            "SET k v",
            "TTL k",
            "EXPIRE k 100",
            "TTL k",
            "PTTL k",
            "EXPIRETIME k",
            "EXPIRE k 50 GT",
            "EXPIRE k 50 NX",
            "EXPIRE k 50 LT",
            "PEXPIRE k 60001 XX",
            "TTL k",
            "SET k w KEEPTTL",
            "TTL k",
            "PERSIST k",
            "PERSIST k",
            "TTL k",
            "SETEX k 10 v",
            "TTL k",
            "GETEX k PX 2500",
            "TTL k",
            "GETEX k PERSIST",
            "TTL k",
            "EXPIREAT k 1",
            "EXISTS k",
            "EXPIRE k 10",
            "SET k v EXAT 1",
            "GET k",
            "PSETEX k 0 v",
        ]),
        ":-2\r\n+OK\r\n:-1\r\n:1\r\n:100\r\n:100000\r\n:1700000100\r\n\
         :0\r\n:0\r\n:1\r\n:1\r\n:60\r\n+OK\r\n:60\r\n:1\r\n:0\r\n:-1\r\n+OK\r\n:10\r\n\
         $1\r\nv\r\n:3\r\n$1\r\nv\r\n:-1\r\n:1\r\n:0\r\n:0\r\n+OK\r\n$-1\r\n\
         -ERR invalid expire time in 'psetex' command\r\n",
    );
}

fn multi_key_commands(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "MSET a 1 b 2 c 3",
            "MGET a none c a",
            "EXISTS a a none b",
            "TOUCH a none",
            "DEL a a b none",
            "MGET a b c",
            "UNLINK c",
            "MSET a 1 b",
            "MGET",
            "EXISTS a",
        ]),
        "+OK\r\n*4\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n$1\r\n1\r\n:3\r\n:1\r\n:2\r\n\
         *3\r\n$-1\r\n$-1\r\n$1\r\n3\r\n:1\r\n-ERR wrong number of arguments for 'mset' command\r\n\
         -ERR wrong number of arguments for 'mget' command\r\n:0\r\n",
    );
}

fn transactions(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "MULTI",
            "SET k 1",
            "GET k",
            "INCR k",
            "SET k v NOPE",
            "MGET k none",
            "EXEC",
            "EXEC",
            "MULTI",
            "MULTI",
            "DISCARD",
            "DISCARD",
            "MULTI",
            "GET",
            "SET k 9",
            "EXEC",
            "GET k",
            "MULTI",
            "EXEC",
        ]),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
         *5\r\n+OK\r\n$1\r\n1\r\n:2\r\n-ERR syntax error\r\n*2\r\n$1\r\n2\r\n$-1\r\n\
         -ERR EXEC without MULTI\r\n+OK\r\n-ERR MULTI calls can not be nested\r\n+OK\r\n\
         -ERR DISCARD without MULTI\r\n+OK\r\n-ERR wrong number of arguments for 'get' command\r\n\
         +QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n\
         $1\r\n2\r\n+OK\r\n*0\r\n",
    );
}

fn logins(engine: TestEngine) {
    check(
        engine,
        true,
        &requests(&["GET k", "HELLO 3", "AUTH wrong", "AUTH bob wrong", "PING", "AUTH bob x"]),
        "-NOAUTH Authentication required.\r\n\
         -NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
         <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
         RESP protocol version at the same time\r\n\
         -WRONGPASS invalid username-password pair or user is disabled.\r\n\
         -WRONGPASS invalid username-password pair or user is disabled.\r\n\
         -NOAUTH Authentication required.\r\n\
         -WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    let stream =
        [request(&[b"AUTH", b"ann", b"pass word"]), requests(&["GET k", "RESET", "GET k"])];
    let expected = "+OK\r\n$-1\r\n+RESET\r\n-NOAUTH Authentication required.\r\n";
    check(engine, true, &stream.concat(), expected);
    check(
        engine,
        false,
        &requests(&["AUTH default x", "AUTH ann x", "AUTH x"]),
        "+OK\r\n-WRONGPASS invalid username-password pair or user is disabled.\r\n\
         -ERR AUTH <password> called without any password configured for the default user. Are you \
         sure your configuration is correct?\r\n",
    );
}

fn inline_requests(engine: TestEngine) {
    check(engine,
        false,
        b"PING\r\n\r\nset k \"a b\"\nGET k\r\nMGET k none\r\nMULTI\r\nGET k\r\nEXEC\r\nPING x\r\n'\r\n",
        "+PONG\r\n+OK\r\n$3\r\na b\r\n*2\r\n$3\r\na b\r\n$-1\r\n+OK\r\n+QUEUED\r\n*1\r\n$3\r\na b\r\n\
         $1\r\nx\r\n-ERR Protocol error: unbalanced quotes in request\r\n",
    );
    check(engine, false, b"POST / HTTP/1.1\r\nHost: a\r\nPING\r\n", "");
}

fn connections(engine: TestEngine) {
    check(
        engine,
        false,
        &requests(&[
            "CLIENT ID",
            "CLIENT GETNAME",
            "CLIENT SETNAME me",
            "CLIENT GETNAME",
            "CLIENT SETINFO LIB-NAME x",
            "CLIENT NOPE",
            "SELECT 0",
            "SELECT 1",
            "ECHO x",
            "CONFIG GET save",
            "HELLO 3 SETNAME you",
            "GET k",
            "CLIENT GETNAME",
            "RESET",
            "GET k",
            "QUIT",
            "PING",
        ]),
        ":7\r\n$-1\r\n+OK\r\n$2\r\nme\r\n+OK\r\n-ERR unknown subcommand 'NOPE'. Try CLIENT HELP.\r\n\
         +OK\r\n-ERR DB index is out of range\r\n$1\r\nx\r\n*2\r\n$4\r\nsave\r\n$0\r\n\r\n\
         %8\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n:3\r\n\
         $2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
         $11\r\nserver_name\r\n$6\r\nlarder\r\n$7\r\nmodules\r\n*0\r\n\
         _\r\n$3\r\nyou\r\n+RESET\r\n$-1\r\n+OK\r\n",
    );
}

/// A server reports its replication role. Without replication, the role is `master`.
fn replication_roles(engine: TestEngine) {
    let requests_sent =
        requests(&["ROLE", "INFO replication", "HELLO 2", "MULTI", "ROLE", "EXEC", "ROLE x"]);
    let hello = |role: &str| {
        let length = role.len();
        format!(
            "*16\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n:2\r\n\
             $2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n${length}\r\n{role}\r\n\
             $11\r\nserver_name\r\n$6\r\nlarder\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    let arity = "-ERR wrong number of arguments for 'role' command\r\n";
    let replies = |replication: Option<Replication>| {
        let (mut server, mut client) = (new_server(engine), client(false));
        server.host.replication = replication;
        client.send(&mut server, &requests_sent);
        String::from_utf8(close(server, client)).unwrap()
    };
    let expected = |role: &str, section: &str, hello_role| {
        let section = format!("# Replication\r\n{section}");
        let section = format!("${}\r\n{section}\r\n", section.len());
        let queued = format!("+OK\r\n+QUEUED\r\n*1\r\n{role}{arity}");
        format!("{role}{section}{}{queued}", hello(hello_role))
    };
    assert_eq!(
        replies(None),
        expected(
            "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
            "role:master\r\nconnected_slaves:0\r\n",
            "master"
        )
    );
    let leader = ("h".to_owned(), 9);
    let link = Link { leader, is_read_only: true, ..Link::default() };
    assert_eq!(
        replies(Some(Replication { link: Some(link), ..Replication::default() })),
        expected(
            "*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:9\r\n$10\r\nconnecting\r\n:-1\r\n",
            "role:slave\r\nmaster_host:h\r\nmaster_port:9\r\nmaster_link_status:down\r\n\
             master_last_io_seconds_ago:-1\r\nmaster_sync_in_progress:0\r\nslave_repl_offset:0\r\n\
             master_link_down_since_seconds:-1\r\nslave_read_only:1\r\nconnected_slaves:0\r\n\
             master_repl_offset:0\r\n",
            "replica"
        )
    );
}

/// The session sends large values in pieces to a slow client, and executes commands that have more
/// keys than a batch has requests.
fn large_values(engine: TestEngine) {
    let value = pattern(200 << 10);
    let keys: Vec<_> = (0..70).map(|i| format!("k{i}")).collect();
    let (mut server, mut client) = (new_server(engine), client(false));
    let mut expected = Vec::new();
    for key in &keys {
        let value = if key.ends_with('5') { &value[..] } else { key.as_bytes() };
        client.send(&mut server, &request(&[b"SET", key.as_bytes(), value]));
        expected.extend_from_slice(b"+OK\r\n");
    }
    let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let mut words: Vec<&[u8]> = vec![b"MGET"];
    words.extend(keys.iter().map(String::as_bytes));
    expected.extend_from_slice(b"*70\r\n");
    for key in &keys {
        let value = if key.ends_with('5') { &value[..] } else { key.as_bytes() };
        expected.extend(bulk(value));
    }
    client.takes = 1000;
    client.send(&mut server, &request(&words));
    client.send(&mut server, &request(&[b"GETRANGE", b"k5", b"100000", b"100009"]));
    expected.extend(bulk(&value[100_000..100_010]));
    client.send(&mut server, &request(&[b"GET", b"k15"]));
    expected.extend(bulk(&value));
    client.send(&mut server, &request(&[b"SET", b"k15", b"x", b"GET"]));
    expected.extend(bulk(&value));
    client.send(&mut server, &request(&[b"GETDEL", b"k25"]));
    expected.extend(bulk(&value));
    let long = pattern(310 << 10);
    client.send(&mut server, &request(&[b"SET", b"k1", &long[..300 << 10]]));
    client.send(&mut server, &request(&[b"GET", b"k1"]));
    expected
        .extend_from_slice(b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    expected.extend(bulk(b"k1"));
    assert!(close(server, client) == expected, "the replies contain the stored values");
}

/// Tests `COMMAND LIST` with filters, and a `CONFIG SET` that names a setting twice.
fn lists_and_settings(engine: TestEngine) {
    let filter = |words: &str| requests(&[&format!("COMMAND LIST {words}")]);
    let stream = [
        filter("FILTERBY PATTERN GETD*"),
        filter("filterby pattern client|set*"),
        filter("FILTERBY MODULE x"),
        filter("FILTERBY ACLCAT string"),
        filter("FILTERBY PATTERN"),
        filter("FILTERBY x y"),
        filter("FILTERBY PATTERN x y"),
        filter("x"),
        requests(&["CONFIG SET maxmemory 100mb MAXMEMORY 200mb"]),
    ];
    let expected = format!(
        "*1\r\n$6\r\ngetdel\r\n*2\r\n$14\r\nclient|setinfo\r\n$14\r\nclient|setname\r\n*0\r\n*0\r\n{}\
         -ERR CONFIG SET failed (possibly related to argument 'MAXMEMORY') - duplicate parameter\r\n",
        "-ERR syntax error\r\n".repeat(4)
    );
    let whole = answers(engine, false, [&stream.concat()[..]]);
    assert_eq!(text(&whole), text(expected.as_bytes()));
}

/// Tests the conditions on values that Redis 8.4 and Valkey 9 have added.
fn comparisons(engine: TestEngine) {
    let long = pattern(100 << 10);
    let other = [&long[..99 << 10], &long[..1 << 10]].concat();
    let set = |value: &[u8]| request(&[b"SET", b"k", value]);
    let stream = [
        requests(&["DELIFEQ k a", "DELEX k", "DELEX k IFNE a", "SET k b IFEQ a", "GET k"]),
        requests(&["SET k a IFNE a", "SET k b IFEQ a EX 100", "SET k c IFEQ a", "SET k c IFNE b"]),
        requests(&[
            "TTL k",
            "SET k c IFEQ x GET",
            "SET k c IFNE x GET",
            "SET k d IFEQ c KEEPTTL GET",
        ]),
        requests(&[
            "DELIFEQ k a",
            "DELEX k IFEQ a",
            "DELEX k IFNE d",
            "DELEX k IFEQ d",
            "EXISTS k",
        ]),
        requests(&["SET k a", "DELEX k IFNE b", "SET k a", "DELIFEQ k a", "SET k a", "DELEX k"]),
        set(&long),
        request(&[b"DELIFEQ", b"k", &other]),
        request(&[b"DELIFEQ", b"k", &long[1..]]),
        request(&[b"SET", b"k", b"a", b"IFNE", &long]),
        request(&[b"DELEX", b"k", b"ifeq", &long]),
        requests(&[
            "SET k a NX IFEQ b",
            "SET k a IFEQ b XX",
            "SET k a IFEQ",
            "SET k a IFEQ a IFNE b",
        ]),
        requests(&["DELEX k IFEQ", "DELEX k x y", "DELIFEQ k", "DELEX k IFEQ a b"]),
    ];
    let syntax = "-ERR syntax error\r\n";
    let arity = |name| format!("-ERR wrong number of arguments for '{name}' command\r\n");
    let expected = [
        ":0\r\n:0\r\n:0\r\n$-1\r\n$-1\r\n",
        "+OK\r\n+OK\r\n$-1\r\n$-1\r\n",
        ":100\r\n$1\r\nb\r\n$1\r\nb\r\n$1\r\nc\r\n",
        ":0\r\n:0\r\n:0\r\n:1\r\n:0\r\n",
        "+OK\r\n:1\r\n+OK\r\n:1\r\n+OK\r\n:1\r\n",
        "+OK\r\n:0\r\n:0\r\n$-1\r\n:1\r\n",
        &syntax.repeat(4),
        &[&arity("delex"), syntax, &arity("delifeq"), &arity("delex")].concat(),
    ];
    let whole = answers(engine, false, [&stream.concat()[..]]);
    assert_eq!(text(&whole), text(expected.concat().as_bytes()));
}

/// The session refuses an argument that is too long, and answers the requests after it.
fn oversized_arguments(engine: TestEngine) {
    const TOO_LARGE: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    let long = pattern(310 << 10);
    let set = |words: &[&[u8]]| {
        let all = [&[&b"SET"[..], b"k", &long], words].concat();
        [request(&[b"SET", b"k", b"old"]), request(&all), request(&[b"GET", b"k"])].concat()
    };
    let in_transaction = [requests(&["MULTI"]), set(&[]), requests(&["EXEC", "GET k"])].concat();
    let huge = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n".to_vec();
    let broken = [&request(&[b"SET", b"k", &long, b"x"])[..], b""].concat();
    let broken = [&broken[..broken.len() - 7], b"?1\r\nx\r\n"].concat();
    let kept = format!("+OK\r\n{TOO_LARGE}$3\r\nold\r\n");
    for (stream, expected, is_closed) in [
        (set(&[]), kept.clone(), false),
        (set(&[b"EX", b"10", b"GET"]), kept.clone(), false),
        (set(&[&long, b"XX"]), kept, false),
        (
            in_transaction,
            format!(
                "+OK\r\n+QUEUED\r\n{TOO_LARGE}+QUEUED\r\n\
                 -EXECABORT Transaction discarded because of previous errors.\r\n$-1\r\n"
            ),
            false,
        ),
        (huge, "-ERR Protocol error: invalid bulk length\r\n".to_owned(), true),
        (broken, "-ERR Protocol error: expected '$', got '?'\r\n".to_owned(), true),
    ] {
        for piece in [usize::MAX, 100_003, 311 << 10, 1000] {
            let (mut server, mut client) = (new_server(engine), client(false));
            for bytes in stream.chunks(piece) {
                client.send(&mut server, bytes);
                assert!(client.unread.len() < 100 << 10 || client.is_closed, "{piece}");
            }
            assert_eq!(client.is_closed, is_closed);
            assert_eq!(text(&close(server, client)), text(expected.as_bytes()), "{piece}");
        }
    }
}
