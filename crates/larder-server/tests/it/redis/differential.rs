//! Sends thousands of generated requests, valid and broken, in RESP2 and RESP3 to a RESP listener
//! of larderd and to Debian's redis-server. The replies must be the same, byte for byte. The test
//! does not generate requests whose replies differ intentionally (docs/compatibility-redis.md).
#![expect(clippy::print_stderr, reason = "each try that differs is shown")]

use crate::common::{Scratch, Server, TIMEOUT, stat, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of attempts for a round whose replies differ. A clock tick during a round can cause a
/// difference.
const ATTEMPTS: usize = 3;

/// Debian's redis-server. Dropping it kills the process.
struct Redis {
    scratch: Scratch,
    child: Child,
}

impl Redis {
    /// Starts redis-server. Returns `None` if it is not installed.
    fn start() -> Option<Self> {
        Command::new("redis-server").arg("--version").output().ok()?;
        let scratch = Scratch::new("redis");
        let socket = scratch.path("socket");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--databases", "1", "--unixsocket"])
            .arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        wait_for("socket", || UnixStream::connect(&socket).is_ok());
        Some(Self { scratch, child })
    }

    fn ask(&self, request: &[u8]) -> Vec<u8> {
        let stream = UnixStream::connect(self.scratch.path("socket")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        ask(stream, request)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests that end with `QUIT`, and returns the replies.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A small random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }
}

fn key(random: &mut Random) -> String {
    match random.below(30) {
        0 => "k".repeat(250),
        1 => "with a space".to_owned(),
        _ => format!("key{}", random.below(5)),
    }
}

fn value(random: &mut Random) -> String {
    match random.below(8) {
        0 => String::new(),
        1 => "x".repeat(random.below(3000)),
        2 => "007".to_owned(),
        3 => "-1".to_owned(),
        4 => "9223372036854775807".to_owned(),
        5 => "12x".to_owned(),
        _ => random.below(2000).to_string(),
    }
}

fn number(random: &mut Random) -> &'static str {
    random.one(&["0", "1", "-5", "999", "9223372036854775807", "-9223372036854775808", "x", "01"])
}

/// Returns a random expiry in seconds, or rarely an invalid one. Two expiries are rarely equal, so
/// comparisons of two expiries do not depend on milliseconds.
fn expiry(random: &mut Random) -> String {
    match random.below(12) {
        0 => random.one(&["0", "-1", "x", "9223372036854775807", ""]).to_owned(),
        _ => (100 + random.below(1_000_000_000)).to_string(),
    }
}

/// Returns the words of a random request.
fn words(random: &mut Random) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let key = key(random);
    match random.below(43) {
        0..=3 => words.extend(["GET".to_owned(), key]),
        4..=6 => {
            words.extend(["set".to_owned(), key, value(random)]);
            for _ in 0..random.below(3) {
                let option = random.one(&["NX", "xx", "GET", "KEEPTTL", "EX", "EX", "PERSIST"]);
                words.push(option.to_owned());
                if option == "EX" {
                    words.push(expiry(random));
                }
            }
        }
        7 => words.extend(["SETNX".to_owned(), key, value(random)]),
        8 => words.extend(["SetEx".to_owned(), key, expiry(random), value(random)]),
        9 => words.extend(["GETSET".to_owned(), key, value(random)]),
        10 => words.extend(["GETDEL".to_owned(), key]),
        11 => {
            words.extend(["GETEX".to_owned(), key]);
            match random.below(4) {
                0 => words.push("PERSIST".to_owned()),
                1 => words.extend(["EX".to_owned(), (100 + random.below(100_000)).to_string()]),
                2 => words.push(random.one(&["EX", "NX", "bogus"]).to_owned()),
                _ => (),
            }
        }
        12..=15 => {
            words.push(random.one(&["MGET", "DEL", "EXISTS", "TOUCH", "UNLINK"]).to_owned());
            (0..random.below(5)).for_each(|_| words.push(self::key(random)));
        }
        16 => {
            words.push("MSET".to_owned());
            for _ in 0..random.below(4) {
                words.extend([self::key(random), value(random)]);
            }
            if random.below(8) == 0 {
                words.push(key);
            }
        }
        17 => words.extend(["APPEND".to_owned(), key, value(random)]),
        18 => words.extend(["STRLEN".to_owned(), key]),
        19 => {
            let (start, end) = (number(random).to_owned(), number(random).to_owned());
            words.extend(["GETRANGE".to_owned(), key, start, end]);
        }
        20 | 21 => words.extend([random.one(&["INCR", "DECR"]).to_owned(), key]),
        22 | 23 => {
            let name = random.one(&["INCRBY", "DECRBY"]).to_owned();
            words.extend([name, key, number(random).to_owned()]);
        }
        24 | 25 => {
            let name = random.one(&["EXPIRE", "EXPIRE", "EXPIREAT"]);
            let time = if name == "EXPIRE" { expiry(random) } else { "4000000000".to_owned() };
            words.extend([name.to_owned(), key, time]);
            if name == "EXPIRE" {
                for _ in 0..random.below(3) {
                    words.push(random.one(&["NX", "XX", "gt", "LT", "no"]).to_owned());
                }
            }
        }
        26 => words.extend([random.one(&["TTL", "EXPIRETIME", "PERSIST", "TYPE"]).to_owned(), key]),
        27 => {
            let text = random.one(&[
                "PING",
                "PING x",
                "PING x y",
                "ECHO a",
                "ECHO",
                "SELECT 0",
                "SELECT 1",
                "SELECT x",
                "FLUSHALL",
                "FLUSHDB async",
                "FLUSHALL x",
                "CONFIG GET save",
                "SLOWLOG RESET",
                "LATENCY LATEST",
                "CONFIG",
                "CONFIG GET",
                "CLIENT GETNAME",
                "CLIENT SETNAME n",
                "CLIENT nope",
                "CLIENT LIST x",
                "CLIENT LIST ID",
                "CLIENT LIST ID x",
                "CLIENT LIST ID 0",
                "CLIENT LIST TYPE",
                "CLIENT LIST TYPE x",
                "CLIENT LIST TYPE replica",
                "CLIENT LIST ID 1000000000",
                "CLIENT INFO x",
                "CLIENT",
                "AUTH x",
                "AUTH default x",
                "AUTH a b",
                "AUTH a b c",
                "HELLO 4",
                "HELLO x",
                "HELLO 3 x",
                "RESET",
                "TIME x",
                "WAIT 0 0",
                "WAIT 0 100",
                "WAIT x 0",
                "WAIT 0 x",
                "WAIT 0 -1",
                "WAIT 0",
                "COMMAND nope",
                "QUITE a",
                "INFO nope",
                "ROLE",
                "ROLE x",
                "CLIENT NO-EVICT on",
                "CLIENT no-evict x",
                "CONFIG RESETSTAT",
                "CONFIG SET",
                "CONFIG SET maxmemory",
                "CONFIG SET maxmemory x",
                "CONFIG SET nope 1",
                "MEMORY",
                "MEMORY nope",
                "MEMORY USAGE",
                "MEMORY USAGE nothing",
                "MEMORY USAGE nothing SAMPLES 5",
                "MEMORY USAGE nothing SAMPLES x",
                "MEMORY USAGE nothing nope",
                "LATENCY",
                "LATENCY nope",
                "SCAN",
                "SCAN x",
                "SCAN 0 nope",
                "SCAN 0 MATCH",
                "SCAN 0 COUNT 0",
                "SCAN 0 COUNT -1",
                "SCAN 0 COUNT x",
                "SCAN 0 MATCH nothing* COUNT 100000",
                "KEYS",
                "KEYS nothing*",
                "KEYS key[3-4]x",
                "KEYS a b",
            ]);
            words.extend(text.split(' ').map(str::to_owned));
        }
        28..=30 => words.push(random.one(&["MULTI", "EXEC", "EXEC", "DISCARD"]).to_owned()),
        31 => {
            let name = random.one(&["GET", "SET", "INCR", "EXPIRE", "MGET", "TTL", "nope"]);
            words.push(name.to_owned());
            (0..random.below(6)).for_each(|_| words.push(value(random)));
            // Omit a key that only Larder refuses: redis-server would answer the request.
            if words.get(1).is_some_and(|key| key.is_empty() || key.len() > 250) {
                words.truncate(1);
            }
        }
        32 => words.extend(["SUBSTR".to_owned(), key, "0".to_owned(), "2".to_owned()]),
        _ => change_a_part(random, key, &mut words),
    }
    words
}

/// Appends a command to `words` that changes or reads a part of a value, or that concerns two keys.
fn change_a_part(random: &mut Random, key: String, words: &mut Vec<String>) {
    let offset = random.one(&["0", "3", "7", "8", "100", "2000", "-1", "x", "4294967296", ""]);
    match random.below(9) {
        0 | 1 => words.extend(["SETRANGE".to_owned(), key, offset.to_owned(), value(random)]),
        2 => {
            let bit = random.one(&["0", "1", "1", "2", "x"]).to_owned();
            words.extend(["SETBIT".to_owned(), key, offset.to_owned(), bit]);
        }
        3 => words.extend(["GETBIT".to_owned(), key, offset.to_owned()]),
        4 => bit_count(random, key, words),
        // These fractions are exact in redis-server's binary floating-point numbers.
        5 => {
            let delta =
                random.one(&["0.5", "-2.75", "3", "1.25e2", "1e3", "x", "", " 1", "inf", "nan"]);
            words.extend([
                "INCRBYFLOAT".to_owned(),
                format!("float{}", random.below(2)),
                delta.to_owned(),
            ]);
        }
        6 => {
            let name = random.one(&["RENAME", "RENAMENX"]).to_owned();
            words.extend([name, key, self::key(random)]);
        }
        7 => {
            words.extend(["COPY".to_owned(), key, self::key(random)]);
            for _ in 0..random.below(2) {
                words.push(random.one(&["REPLACE", "DB", "nope"]).to_owned());
            }
        }
        _ => {
            words.push("MSETNX".to_owned());
            for _ in 0..random.below(3) {
                words.extend([self::key(random), value(random)]);
            }
        }
    }
}

/// Appends a `BITCOUNT` to `words`. The range is always valid, because redis-server 7.0 does not
/// check the range if there is no item.
fn bit_count(random: &mut Random, key: String, words: &mut Vec<String>) {
    words.extend(["BITCOUNT".to_owned(), key]);
    let range = random.one(&["", "0 -1", "1 13 BIT", "-5 999 byte", "13 -1 BIT", "999 0", "-1 -5"]);
    words.extend(range.split_whitespace().map(str::to_owned));
}

fn write(words: &[String], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
}

/// Returns a pipeline of requests. It starts with a flush, so that its replies do not depend on
/// earlier pipelines.
fn pipeline(random: &mut Random, resp3: bool) -> Vec<u8> {
    let mut out = b"FLUSHALL\r\n".to_vec();
    let words_of = |random: &mut Random, out: &mut Vec<u8>| match random.below(40) {
        0 => out.extend(random.one(&["PING\r\n", "\r\n", "set key1 'a b'\n", "*0\r\n"]).bytes()),
        _ => write(&words(random), out),
    };
    if resp3 {
        // The reply differs intentionally, and after_hello() removes it.
        out.extend(b"HELLO 3\r\n");
    }
    out.extend(b"ECHO begin\r\n");
    (0..1 + random.below(40)).for_each(|_| words_of(random, &mut out));
    if random.below(6) == 0 {
        let broken =
            ["*x\r\n", "*1\r\nGET\r\n", "*1\r\n$-1\r\n", "*2\r\n$3\r\nGET\r\n$x\r\n", "'a\r\n"];
        out.extend(random.one(&broken).bytes());
    }
    out.extend(b"*1\r\n$4\r\nQUIT\r\n");
    out
}

fn compare(seed: u64, rounds: u64, resp3: bool) {
    let Some(redis) = Redis::start() else {
        eprintln!("redis-server is not installed: nothing is compared");
        return;
    };
    let larderd = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    let port = *larderd.ports().last().unwrap();
    for round in 0..rounds {
        let request = pipeline(&mut Random(seed << 32 | round), resp3);
        let difference = |_| {
            await_start_of_second();
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            difference(&redis.ask(&request), &ask(stream, &request), &request)
        };
        let differences = (0..ATTEMPTS).map_while(difference);
        let mut shown =
            differences.inspect(|shown| eprintln!("seed {seed} round {round}, {shown}"));
        assert!(shown.nth(ATTEMPTS - 1).is_none(), "different {ATTEMPTS} times");
    }
}

/// Waits until 100 to 400 ms of the current second have passed. In the second half of a second,
/// redis-server rounds expiries up to the next second.
fn await_start_of_second() {
    let millis = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
    wait_for("the next second", || (100..400).contains(&millis()));
}

/// Describes the first difference between the replies. Returns `None` if they are equal.
fn difference(expected: &[u8], got: &[u8], request: &[u8]) -> Option<String> {
    let [expected, got] = [expected, got].map(after_hello);
    if expected == got {
        return None;
    }
    let at = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
    let show = |text: &str| {
        let bytes = text.as_bytes();
        let near = &bytes[at.saturating_sub(200).min(bytes.len())..(at + 120).min(bytes.len())];
        near.escape_ascii().to_string()
    };
    let (theirs, ours, request) = (show(&expected), show(&got), request.escape_ascii());
    Some(format!("byte {at}\nredis:   {theirs}\nlarderd: {ours}\nrequest: {request}"))
}

/// Returns the replies that follow those to `HELLO` and `ECHO begin`.
fn after_hello(answers: &[u8]) -> String {
    let text = String::from_utf8_lossy(answers).into_owned();
    text.split_once("$5\r\nbegin\r\n").expect("the server answers").1.to_owned()
}

#[test]
fn resp2_replies_equal_those_of_redis_server() {
    compare(1, 400, false);
}

#[test]
fn resp3_replies_equal_those_of_redis_server() {
    compare(2, 400, true);
}

/// Returns the replies to inline requests.
fn inline(server: &Server, requests: &str) -> String {
    let stream = TcpStream::connect(("127.0.0.1", *server.ports().last().unwrap())).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let answers = ask(stream, format!("{requests}\r\nQUIT\r\n").as_bytes());
    String::from_utf8(answers).unwrap().strip_suffix("+OK\r\n").unwrap().to_owned()
}

#[test]
fn the_memory_limit_is_shown_and_can_be_changed() {
    let server = Server::larderd(&["-m", "100", "-l", "proto[resp]:127.0.0.1"]);
    let limit = |mib: u64| format!("*2\r\n$9\r\nmaxmemory\r\n$9\r\n{}\r\n", mib << 20);
    assert_eq!(inline(&server, "CONFIG GET maxmemory"), limit(100));
    assert_eq!(inline(&server, "CONFIG SET maxmemory 200mb"), "+OK\r\n");
    assert_eq!(inline(&server, "CONFIG GET maxmemory"), limit(200));
    assert_eq!(stat(&server.ask_text("stats\r\n"), "limit_maxbytes"), (200 << 20).to_string());
    let refused = inline(&server, "CONFIG SET maxmemory 1kb");
    let begin = "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - the limit can be from ";
    assert!(refused.starts_with(begin), "{refused}");
    assert_eq!(inline(&server, "CONFIG GET maxmemory"), limit(200));
}

#[test]
fn all_databases_share_the_same_items() {
    let server = Server::larderd(&["-o", "resp_db=1", "-l", "proto[resp]:127.0.0.1"]);
    let answers = inline(&server, "SELECT 1\r\nSET k v\r\nCOPY k c DB 1\r\nSELECT 0\r\nGET c");
    assert_eq!(answers, "+OK\r\n+OK\r\n:1\r\n+OK\r\n$1\r\nv\r\n");
    let refused = inline(&server, "SELECT 2\r\nSELECT -1\r\nCOPY k c DB 2\r\nCOPY k k DB -1");
    assert_eq!(refused, "-ERR DB index is out of range\r\n".repeat(4));
    let databases = "*2\r\n$9\r\ndatabases\r\n$1\r\n2\r\n";
    assert_eq!(inline(&server, "CONFIG GET databases"), databases);
}

/// Returns the bulk strings of a reply.
fn bulks(answer: &str) -> Vec<String> {
    let lines: Vec<&str> = answer.split("\r\n").collect();
    let heads = lines.iter().enumerate().filter(|(_, line)| line.starts_with('$'));
    heads.map(|(at, _)| lines[at + 1].to_owned()).collect()
}

/// Calls `SCAN` with these options until the cursor is 0. Returns the found keys and the number of
/// calls.
fn scan(server: &Server, options: &str) -> (Vec<String>, usize) {
    let (mut cursor, mut keys, mut calls) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let mut found = bulks(&inline(server, &format!("SCAN {cursor}{options}"))).into_iter();
        cursor = found.next().unwrap();
        keys.extend(found);
        calls += 1;
        if cursor == "0" {
            keys.sort();
            return (keys, calls);
        }
    }
}

#[test]
fn all_keys_are_listed() {
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    let mut expected: Vec<_> = (0..5_000).map(|n| format!("key:{n}")).collect();
    let sets = expected.iter().map(|key| format!("SET {key} v\r\n"));
    inline(&server, sets.collect::<String>().trim_end());
    expected.sort();
    let (keys, calls) = scan(&server, "");
    assert!(keys == expected && calls > 50, "{} keys in {calls} calls", keys.len());
    let (keys, calls) = scan(&server, " COUNT 1000");
    assert!(keys == expected && calls < 50, "{} keys in {calls} calls", keys.len());
    let matching = |key: &&String| key.starts_with("key:1") && key.len() == 6;
    let expected: Vec<_> = expected.iter().filter(matching).cloned().collect();
    assert_eq!(scan(&server, " MATCH key:1? COUNT 500 TYPE string").0, expected);
    assert_eq!(scan(&server, " TYPE list COUNT 1000").0, Vec::<String>::new());
    let mut keys = bulks(&inline(&server, "KEYS key:1[0-9]"));
    keys.sort();
    assert_eq!(keys, expected);
    // Call `KEYS` in a transaction, and `SCAN` with a cursor that no call has returned.
    let answers = inline(&server, "MULTI\r\nKEYS key:17\r\nGET key:17\r\nEXEC\r\nPING");
    assert!(answers.ends_with("*2\r\n*1\r\n$6\r\nkey:17\r\n$1\r\nv\r\n+PONG\r\n"), "{answers}");
    assert!(inline(&server, "SCAN 12345678901234567890\r\nSCAN 4294967295").starts_with("*2\r\n"));
    assert_eq!(inline(&server, "FLUSHALL\r\nKEYS *"), "+OK\r\n*0\r\n");
}

#[test]
fn too_many_keys_for_one_reply_are_refused_and_can_be_scanned() {
    const KEYS: usize = 70_000;
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    let name = |n: usize| format!("{n:0>250}");
    for n in (0..KEYS).step_by(1_000) {
        let sets = (n..n + 1_000).map(|n| format!("SET {} v\r\n", name(n)));
        inline(&server, sets.collect::<String>().trim_end());
    }
    let refusal = "-ERR the keys take too much memory: use SCAN\r\n";
    assert_eq!(inline(&server, "KEYS *\r\nPING"), format!("{refusal}+PONG\r\n"));
    assert_eq!(inline(&server, "SCAN 0 COUNT 1000000"), refusal);
    let (keys, _) = scan(&server, " COUNT 5000");
    assert!(keys.len() == KEYS && keys[1] == name(1), "{}", keys.len());
    assert_eq!(bulks(&inline(&server, "KEYS *69999")), [name(69_999)]);
}

#[test]
fn keys_are_not_listed_where_dumps_are_disabled() {
    let server = Server::larderd(&["-X", "-l", "proto[resp]:127.0.0.1"]);
    let refusal = "-ERR dumping keys is disabled\r\n";
    assert_eq!(
        inline(&server, "KEYS *\r\nSCAN 0\r\nPING"),
        [refusal, refusal, "+PONG\r\n"].concat()
    );
}

#[test]
fn sizes_and_latencies_are_shown() {
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    inline(&server, "SET k 0123456789\r\nGET k\r\nGET k");
    let size = inline(&server, "MEMORY USAGE k");
    let size: u64 = size.trim().strip_prefix(':').unwrap().parse().unwrap();
    assert!((50..100).contains(&size), "{size}");
    wait_for("counts", || {
        let histogram = inline(&server, "HELLO 3\r\nLATENCY HISTOGRAM get nope");
        histogram
            .contains("%1\r\n$3\r\nget\r\n%2\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n%")
    });
    let all = inline(&server, "LATENCY HISTOGRAM");
    assert!(all.contains("$5\r\nstore\r\n*4\r\n$5\r\ncalls\r\n:1\r\n"), "{all}");
    inline(&server, "CONFIG RESETSTAT");
    wait_for("reset", || inline(&server, "LATENCY HISTOGRAM get") == "*0\r\n");
    assert_eq!(stat(&server.ask_text("stats\r\n"), "get_hits"), "0");
}

#[test]
fn a_refused_set_leaves_the_old_value() {
    let server = Server::larderd(&["-I", "2k", "-l", "proto[resp]:127.0.0.1"]);
    let long = "x".repeat(3000);
    let answers = inline(&server, &format!("SET k old\r\nSET k {long}\r\nGET k"));
    assert!(answers.starts_with("+OK\r\n-ERR "), "{answers}");
    assert!(answers.ends_with("$3\r\nold\r\n"), "{answers}");
}

#[test]
fn sets_are_watched_logged_in_and_kept_for_exec() {
    let server = Server::larderd(&["-l", "proto[resp]:127.0.0.1"]);
    let mut watcher = TcpStream::connect(("127.0.0.1", server.ports()[0])).unwrap();
    watcher.set_read_timeout(Some(TIMEOUT)).unwrap();
    watcher.write_all(b"watch mutations deletions\r\n").unwrap();
    let mut lines = BufReader::new(watcher).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("OK"));
    assert_eq!(
        inline(&server, "MULTI\r\nSET key value\r\nEXEC"),
        "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n"
    );
    let line = lines.next().unwrap();
    assert!(line.contains("type=item_store key=key status=stored cmd=set"), "{line}");
    assert_eq!(inline(&server, "INCR n\r\nINCR n\r\nEXPIRE n 0"), ":1\r\n:2\r\n:1\r\n");
    let line = lines.next().unwrap();
    assert!(line.contains("type=item_store key=n status=stored cmd=add"), "{line}");
    let line = lines.next().unwrap();
    assert!(line.contains("type=deleted key=n cmd=delete"), "{line}");
    let scratch = Scratch::new("passwords");
    let file = scratch.path("file");
    std::fs::write(&file, "user:secret\n").unwrap();
    let server = Server::larderd(&["-Y", file.to_str().unwrap(), "-l", "proto[resp]:127.0.0.1"]);
    let answers = inline(&server, "SET k v\r\nAUTH user secret\r\nGET k\r\nSET k v\r\nGET k");
    assert!(answers.starts_with("-NOAUTH"), "{answers}");
    assert!(answers.ends_with("+OK\r\n$-1\r\n+OK\r\n$1\r\nv\r\n"), "{answers}");
}
