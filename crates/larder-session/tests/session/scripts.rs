//! Tests known scripts in RESP. The tests call them with `EVALSHA` and the hashes that the
//! libraries send.

use crate::common::{Session, TestClient, TestEngine, TestServer, new_server, text};
use larder_protocol::encode::resp::command;

for_each_engine! { locks counters rates values_are_compared_and_shown_whole wrong_calls scripts_are_known_by_text_and_hash }

/// The hashes of the scripts of redis-py, redsync, node-redlock, Laravel, django-redis, limits,
/// cashews, rate-limit-redis, rate-limiter-flexible and redis_rate (see `larder-protocol`'s
/// `script/known.rs`).
mod hashes {
    pub(super) const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    pub(super) const EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
    pub(super) const REACQUIRE: &str = "1cac51482acf5858da00f6d685d68f886cd6b6b2";
    pub(super) const REDSYNC_RELEASE: &str = "e950836ed1e694540c503ef9972b8de518044d3b";
    pub(super) const REDSYNC_TOUCH: &str = "b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79";
    pub(super) const REDLOCK_LOCK: &str = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    pub(super) const REDLOCK_EXTEND: &str = "aed6f382e410db8ba7926d4e5e9aab410bf2a78a";
    pub(super) const LARAVEL_ADD: &str = "a08c9c69b7c07ae2485190873b90d128a23e502d";
    pub(super) const DJANGO_INCREMENT: &str = "f4a7da3e5d8ea3b46642af08427151cae0190400";
    pub(super) const LIMITS: &str = "628bd136a573a06b346879695681af12ccef300f";
    pub(super) const CASHEWS: &str = "0f8a745c1b5efe281bd1299ea0d1b2994c6ae601";
    pub(super) const HIT: &str = "3f424a504987d231baa2e19159bb5def8ad32f87";
    pub(super) const HIT_IN_WINDOW: &str = "81dbecea94d2d10514719b20ed51faf711529d9d";
    pub(super) const HITS: &str = "6aeb97ed6086dcdeafdc6fda3999a0d0e38ec96a";
    pub(super) const CONSUME: &str = "a1de965f42e177aa339706bd580f049065eca79a";
    pub(super) const RATE: &str = "f52a5b566060d79fd321d695df55bc918339c4aa";
    pub(super) const RATE_AT_MOST: &str = "054143318f521948424aa25df61d7f7ba835a9d7";
}
use hashes::*;

/// Sends a command, and returns the reply with escaped control characters.
fn ask(server: &mut TestServer, client: &mut TestClient, words: &[&[u8]]) -> String {
    let mut request = Vec::new();
    command(words, &mut request);
    client.send(server, &request);
    text(&std::mem::take(&mut client.received))
}

/// Checks the replies to `EVALSHA <hash> 1 k <arguments>` and other commands, in order.
#[track_caller]
fn check(engine: TestEngine, steps: &[(&str, &str)]) {
    let (mut server, session) = (new_server(engine), Session::resp(0, false));
    let mut client = TestClient { session, ..TestClient::new() };
    for (words, expected) in steps {
        if let Some(secs) = words.strip_prefix("wait ") {
            server.advance(secs.parse().unwrap());
            continue;
        }
        let words: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        let call = match words.as_slice() {
            [hash, rest @ ..] if hash.len() == 40 => {
                [&[&b"EVALSHA"[..], hash, b"1", b"k"], rest].concat()
            }
            words => words.to_vec(),
        };
        let replies = ask(&mut server, &mut client, &call);
        let words = text(&words.join(&b' '));
        assert_eq!(replies, text(expected.replace(' ', "\r\n").as_bytes()), "{words}");
    }
    client.session.close(&server.host);
    assert_eq!(server.host.reserved(), 0, "the session releases its memory");
}

/// Formats a step that calls a script.
macro_rules! call {
    ($hash:expr, $arguments:expr) => {
        &format!("{} {}", $hash, $arguments)
    };
}

fn locks(engine: TestEngine) {
    let (yes, no) = (":1 ", ":0 ");
    check(
        engine,
        &[
            // redis-py.
            (call!(RELEASE, "token"), no),
            ("SET k token PX 50000", "+OK "),
            (call!(RELEASE, "other"), no),
            (call!(EXTEND, "other 1000 0"), no),
            (call!(EXTEND, "token 10000 0"), yes),
            ("PTTL k", ":60000 "),
            (call!(EXTEND, "token 10000 1"), yes),
            ("PTTL k", ":10000 "),
            (call!(REACQUIRE, "other 1000"), no),
            (call!(REACQUIRE, "token 20000"), yes),
            ("PTTL k", ":20000 "),
            (call!(RELEASE, "token"), yes),
            ("EXISTS k", no),
            ("SET k token", "+OK "),
            (call!(EXTEND, "token 1000 0"), no),
            (call!(REACQUIRE, "token -1"), yes),
            ("EXISTS k", no),
            // node-redlock.
            (call!(REDLOCK_EXTEND, "token 1000"), no),
            (call!(REDLOCK_LOCK, "token 5000"), yes),
            (call!(REDLOCK_LOCK, "other 5000"), no),
            (call!(REDLOCK_EXTEND, "other 1000"), no),
            (call!(REDLOCK_EXTEND, "token 9000"), yes),
            ("PTTL k", ":9000 "),
            ("wait 9", ""),
            (call!(REDLOCK_EXTEND, "token 9000"), no),
            // redsync.
            (call!(REDSYNC_RELEASE, "token"), ":-1 "),
            (call!(REDSYNC_TOUCH, "token 4000"), yes),
            (call!(REDSYNC_TOUCH, "other 5000"), no),
            (call!(REDSYNC_TOUCH, "token 3000"), yes),
            ("PTTL k", ":3000 "),
            (call!(REDSYNC_RELEASE, "other"), no),
            (call!(REDSYNC_RELEASE, "token"), yes),
            // Laravel.
            (call!(LARAVEL_ADD, "value 100"), "+OK "),
            (call!(LARAVEL_ADD, "other 100"), "$-1 "),
            ("GET k", "$5 value "),
            ("TTL k", ":100 "),
        ],
    );
}

fn counters(engine: TestEngine) {
    check(
        engine,
        &[
            (call!(DJANGO_INCREMENT, "5"), "$-1 "),
            ("EXISTS k", ":0 "),
            ("SET k 7 EX 100", "+OK "),
            (call!(DJANGO_INCREMENT, "5"), ":12 "),
            ("TTL k", ":100 "),
            ("DEL k", ":1 "),
            (call!(LIMITS, "60 2"), ":2 "),
            ("wait 10", ""),
            (call!(LIMITS, "60 2"), ":4 "),
            ("TTL k", ":50 "),
            ("wait 50", ""),
            (call!(LIMITS, "60 2"), ":2 "),
            ("DEL k", ":1 "),
            (call!(CASHEWS, "1 5000"), ":1 "),
            (call!(CASHEWS, "1 9000"), ":2 "),
            ("PTTL k", ":5000 "),
            ("DEL k", ":1 "),
            (call!(HITS, ""), "*2 $-1 :-2 "),
            (call!(HIT, "0 5000"), "*2 :1 :5000 "),
            ("wait 1", ""),
            (call!(HIT, "0 5000"), "*2 :2 :4000 "),
            (call!(HIT, "1 5000"), "*2 :3 :5000 "),
            (call!(HITS, ""), "*2 $1 3 :5000 "),
            ("wait 5", ""),
            (call!(HIT_IN_WINDOW, "0 5000"), "*2 :1 :5000 "),
            ("wait 1", ""),
            (call!(HIT_IN_WINDOW, "0 5000"), "*2 :2 :4000 "),
            (call!(HIT_IN_WINDOW, "1 7000"), "*2 :3 :7000 "),
            ("SET k 9", "+OK "),
            (call!(HIT_IN_WINDOW, "0 5000"), "*2 :1 :5000 "),
            ("DEL k", ":1 "),
            (call!(CONSUME, "3 10"), "*2 :3 :10000 "),
            ("wait 2", ""),
            (call!(CONSUME, "2 10"), "*2 :5 :8000 "),
            ("SET k 1", "+OK "),
            (call!(CONSUME, "1 10"), "*2 :2 :10000 "),
            ("PTTL k", ":10000 "),
        ],
    );
}

fn rates(engine: TestEngine) {
    check(
        engine,
        &[
            // The rate allows a burst of 3 requests, then one request every 2 seconds.
            (call!(RATE, "3 1 2 1"), "*4 :1 :2 $2 -1 $1 2 "),
            (call!(RATE, "3 1 2 2"), "*4 :2 :0 $2 -1 $1 6 "),
            (call!(RATE, "3 1 2 1"), "*4 :0 :0 $1 2 $1 6 "),
            ("wait 2", ""),
            (call!(RATE, "3 1 2 1"), "*4 :1 :0 $2 -1 $1 6 "),
            ("wait 4", ""),
            (call!(RATE_AT_MOST, "3 1 2 5"), "*4 :2 :0 $2 -1 $1 6 "),
            (call!(RATE_AT_MOST, "3 1 2 5"), "*4 :0 :0 $1 2 $1 6 "),
            ("wait 6", ""),
            (call!(RATE_AT_MOST, "3 1 2 1"), "*4 :1 :2 $2 -1 $1 2 "),
        ],
    );
}

/// Scripts compare and return large values, a number with a line end is not a number, and a
/// script's `SET` stores a new item without tags.
fn values_are_compared_and_shown_whole(engine: TestEngine) {
    let (mut server, session) = (new_server(engine), Session::resp(0, false));
    let mut client = TestClient { session, ..TestClient::new() };
    let long = crate::common::pattern(200 << 10);
    let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let number = b"-ERR value is not an integer or out of range\r\n".to_vec();
    let steps: [(&[&[u8]], Vec<u8>); 13] = [
        (&[b"SET", b"k", &long], b"+OK\r\n".to_vec()),
        (
            &[b"EVALSHA", HITS.as_bytes(), b"1", b"k"],
            [&b"*2\r\n"[..], &bulk(&long), b":-1\r\n"].concat(),
        ),
        (&[b"EVALSHA", RELEASE.as_bytes(), b"1", b"k", &long[1..]], b":0\r\n".to_vec()),
        (&[b"EVALSHA", DJANGO_INCREMENT.as_bytes(), b"1", b"k", b"1"], number.clone()),
        (&[b"EVALSHA", RELEASE.as_bytes(), b"1", b"k", &long], b":1\r\n".to_vec()),
        (&[b"SET", b"k", b"5\n"], b"+OK\r\n".to_vec()),
        (&[b"EVALSHA", DJANGO_INCREMENT.as_bytes(), b"1", b"k", b"1"], number),
        (&[b"SET", b"k", b"5  "], b"+OK\r\n".to_vec()),
        (&[b"EVALSHA", DJANGO_INCREMENT.as_bytes(), b"1", b"k", b"1"], b":6\r\n".to_vec()),
        (&[b"DEL", b"k"], b":1\r\n".to_vec()),
        (&[b"EVALSHA", REDLOCK_LOCK.as_bytes(), b"1", b"k", b"token", b"9000"], b":1\r\n".to_vec()),
        (
            &[b"EVALSHA", REDLOCK_EXTEND.as_bytes(), b"1", b"k", b"token", b"9000"],
            b":1\r\n".to_vec(),
        ),
        (&[b"GET", b"k"], b"$5\r\ntoken\r\n".to_vec()),
    ];
    for (step, (words, expected)) in steps.iter().enumerate() {
        assert_eq!(ask(&mut server, &mut client, words), text(expected), "{step}");
    }
}

/// A call with a wrong argument changes no item.
fn wrong_calls(engine: TestEngine) {
    let (number, time) = (
        "-ERR value is not an integer or out of range\r\n",
        "-ERR invalid expire time in 'set' command\r\n",
    );
    let replies = |words: &[&str]| {
        let (mut server, session) = (new_server(engine), Session::resp(0, false));
        let mut client = TestClient { session, ..TestClient::new() };
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let mut request = Vec::new();
        command(&[b"SET", b"k", b"token"], &mut request);
        command(&words, &mut request);
        command(&[b"GET", b"k"], &mut request);
        client.send(&mut server, &request);
        let reply = client.received.strip_prefix(b"+OK\r\n").unwrap();
        let reply = reply.strip_suffix(b"$5\r\ntoken\r\n").expect("the item stays");
        String::from_utf8(reply.to_vec()).unwrap()
    };
    for (arguments, expected) in [
        (&[REACQUIRE, "1", "k", "token", "x"][..], number),
        (
            &[REACQUIRE, "1", "k", "token", "9223372036854775807"],
            "-ERR invalid expire time in 'pexpire' command\r\n",
        ),
        (&[REDSYNC_TOUCH, "1", "k", "other", "0"], time),
        (&[HIT, "1", "k", "0", "1000"], number),
        (&[DJANGO_INCREMENT, "1", "k", "1"], number),
        (&[CONSUME, "1", "k", "1", "0"], time),
        (&[RATE, "1", "k", "1", "0", "1", "1"], number),
        (&[RATE, "1", "k", "1", "1"], "-ERR the script has too few arguments\r\n"),
        (&[RELEASE, "-1", "k"], "-ERR Number of keys can't be negative\r\n"),
        (&[RELEASE, "2", "k"], "-ERR Number of keys can't be greater than number of args\r\n"),
        (&[RELEASE, "0", "k"], "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        (&[RELEASE, "2", "k", "l", "token"], "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        (&["x", "1", "k"], "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        (&[RELEASE, "x", "k"], number),
        (&[RELEASE], "-ERR wrong number of arguments for 'evalsha' command\r\n"),
    ] {
        assert_eq!(replies(&[&["EVALSHA"], arguments].concat()), expected, "{arguments:?}");
    }
    let release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    for script in [
        "return 1",
        "return redis.call('get', KEYS[1])",
        "",
        "return '",
        &format!("; {release}"),
        &format!("--[=[\n{release}\n--]=]"),
        &format!("-- only in dry runs\rif true then return 'dry' end\n{release}"),
    ] {
        let reply = replies(&["EVAL", script, "1", "k", "token"]);
        assert!(reply.starts_with("-ERR unknown script: this server runs no Lua"), "{reply}");
    }
}

fn scripts_are_known_by_text_and_hash(engine: TestEngine) {
    // This script has the same normal form as the scripts with which many libraries release a lock.
    let script = "-- release\nif redis.call('GET', KEYS[1]) == ARGV[1] then\n return redis.call('DEL', KEYS[1]);\nelse return 0 end";
    let hash = larder_protocol::resp::hex(&larder_protocol::resp::hash_of(script.as_bytes()));
    let (mut server, session) = (new_server(engine), Session::resp(0, false));
    let mut client = TestClient { session, ..TestClient::new() };
    let unknown = "0".repeat(40);
    for (words, expected) in [
        (&["SET", "k", "token"][..], "+OK\r\n".to_owned()),
        (
            &["EVALSHA", &hash, "1", "k", "token"],
            "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(),
        ),
        (
            &["SCRIPT", "EXISTS", &hash, RELEASE, &unknown, "x"],
            "*4\r\n:0\r\n:1\r\n:0\r\n:0\r\n".to_owned(),
        ),
        (&["SCRIPT", "LOAD", script], format!("$40\r\n{hash}\r\n")),
        (&["SCRIPT", "EXISTS", &hash.to_uppercase()], "*1\r\n:1\r\n".to_owned()),
        (&["EVALSHA", &hash, "1", "k", "other"], ":0\r\n".to_owned()),
        (&["SCRIPT", "FLUSH"], "+OK\r\n".to_owned()),
        (
            &["EVALSHA", &hash, "1", "k", "token"],
            "-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(),
        ),
        (&["EVAL", script, "1", "k", "other"], ":0\r\n".to_owned()),
        (&["EVALSHA", &hash, "1", "k", "token"], ":1\r\n".to_owned()),
        (&["SCRIPT", "FLUSH", "ASYNC"], "+OK\r\n".to_owned()),
        (
            &["SCRIPT", "FLUSH", "NOW"],
            "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n".to_owned(),
        ),
        (&["SCRIPT"], "-ERR wrong number of arguments for 'script' command\r\n".to_owned()),
    ] {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = ask(&mut server, &mut client, &words);
        assert_eq!(reply, text(expected.as_bytes()), "{}", text(&words.join(&b' ')));
    }
}
