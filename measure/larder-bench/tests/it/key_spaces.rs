//! Runs with several key spaces (`--key-spaces`).

use crate::common::{Server, arguments, load, parse};
use larder_bench::{Command, Measured};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A key space file.
struct File {
    folder: TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("spaces.toml")
    }

    fn option(&self) -> String {
        format!("--key-spaces {}", self.path().display())
    }

    /// Returns the error message for an invalid file.
    fn objection(&self) -> String {
        let arguments = arguments(&format!("-s 127.0.0.1 {}", self.option()));
        let error = arguments.settings().unwrap_err().to_string();
        assert!(error.contains("spaces.toml"), "{error}");
        error
    }
}

fn command(measured: &Measured, name: &str) -> Command {
    measured.outcome.commands.get(name).cloned().unwrap_or_default()
}

/// Returns memcached's reply to a request line, up to the line `END`. Empty if memcached's crawler
/// is busy.
fn ask(server: &Server, line: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "{line}\r\n").unwrap();
    let lines = BufReader::new(stream).split(b'\n').map(Result::unwrap);
    let lines = lines.map(|line| String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
    lines
        .take_while(|line| line != "END" && !line.starts_with("BUSY"))
        .map(|line| line + "\n")
        .collect()
}

/// Returns the keys of a memcached, each with its expiry as a Unix time in seconds, or -1 without
/// an expiry.
///
/// A dump lacks items that memcached's maintenance thread moves during the dump, so this function
/// repeats the dump until a dump contains all items.
fn keys_and_expiries(server: &Server) -> Vec<(String, i64)> {
    let stats = ask(server, "stats");
    let items = stats.lines().find_map(|line| line.strip_prefix("STAT curr_items ")).unwrap();
    let items: usize = items.parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut dump = String::new();
    while dump.matches("key=").count() != items {
        assert!(Instant::now() < deadline, "no dump has all {items} items: {dump}");
        std::thread::sleep(Duration::from_millis(10));
        dump = ask(server, "lru_crawler metadump all");
    }
    let field = |line: &str, name: &str| {
        let fields = line.split(' ').find_map(|field| field.strip_prefix(name).map(str::to_owned));
        fields.unwrap()
    };
    let items = dump.lines().filter(|line| line.starts_with("key="));
    let item = |line: &str| {
        (field(line, "key=").replace("%3A", ":"), field(line, "exp=").parse().unwrap())
    };
    items.map(item).collect()
}

/// Returns the key space file in the documentation.
fn documented() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

const TWO: &str = r#"
    [[key-space]]
    name = "small"
    share = 3
    keys = 100
    key-prefix = "s:"
    data-size = 10
    ratio = "1:1"
    expiry-range = "1000-2000"

    [[key-space]]
    name = "large"
    share = 1
    keys = 50
    data-size-range = "1000-2000"
    ratio = "0:1"
    key-pattern = "S:S"
"#;

#[test]
fn the_documented_example_runs() {
    let server = Server::memcached_with(&["-m", "1024"]);
    let file = File::new(&documented());
    let line = "-t 1 -c 4 -n 5000 --pipeline 10 --fill --verify --distinct-client-seed";
    let measured = server.load(&format!("{line} {}", file.option()));
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    let share = |name: &str| command(&measured, name).requests;
    assert_eq!(share("total"), 20_000);
    // The shares are 60, 30 and 10 %. Three standard deviations of the largest share are 208 of
    // 20,000 requests.
    for (name, expected) in [("sessions", 12_000), ("fragments", 6_000), ("counters", 2_000)] {
        assert!(share(name).abs_diff(expected) <= 208, "{name}: {}", share(name));
    }
    let (set, get) = (share("counters-set"), share("counters-get"));
    assert!(set.abs_diff(get) <= 4, "sets and gets alternate on each connection: {set}, {get}");
    assert!(share("fragments-get") > 25 * share("fragments-set"));
    assert_eq!(command(&measured, "sessions").misses, 0, "--fill has set all keys");
    assert_eq!(measured.histograms["sessions"].len(), share("sessions"));
}

#[test]
fn each_key_space_has_its_keys_sizes_and_expiries() {
    let file = File::new(TWO);
    for protocol in ["text", "meta", "binary"] {
        let server = Server::memcached();
        let line = format!("-P {protocol} -t 2 -c 2 -n 500 --fill --verify {}", file.option());
        let measured = server.load(&line);
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
        let items = keys_and_expiries(&server);
        let (small, large): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|(key, _)| key.starts_with("s:"));
        assert_eq!((small.len(), large.len()), (100, 50), "{protocol}");
        assert!(large.iter().all(|(key, expiry)| key.starts_with("large-") && *expiry == -1));
        assert!(small.iter().all(|(_, expiry)| *expiry > 1000), "{small:?}");
        let get = command(&measured, "large-get");
        assert_eq!((command(&measured, "large-set").requests, get.misses), (0, 0));
        let mean = get.value_bytes / get.hits;
        assert!((1400..1600).contains(&mean), "{mean}");
        let small = command(&measured, "small-get");
        assert_eq!(small.value_bytes, small.hits * 10);
        let sum = command(&measured, "small-set").requests + small.requests;
        assert_eq!(command(&measured, "small").requests, sum);
        let total = measured.outcome.total().requests;
        assert_eq!((total, command(&measured, "small").requests + get.requests), (2000, 2000));
    }
}

#[test]
fn values_of_another_key_space_are_seen() {
    let server = Server::memcached();
    let space = |prefix: &str| {
        let keys = "name = \"a\"\nshare = 1\nkeys = 10\ndata-size = 100";
        File::new(&format!("[[key-space]]\n{keys}\nkey-prefix = \"{prefix}\""))
    };
    let (first, second) = (space("a"), space("b"));
    let line = "-t 1 -c 1 -n 100 --verify --fill";
    server.load(&format!("{line} {}", first.option()));
    let value = ask(&server, "get a1");
    server.load(&format!("{line} {}", second.option()));
    let other = ask(&server, "get b1");
    assert_ne!(value.lines().nth(1), other.lines().nth(1));
}

/// The complete key, with the prefix of its key space, determines its server.
#[test]
fn keys_are_distributed_over_several_servers() {
    let servers = [Server::memcached(), Server::memcached()];
    let file = File::new(TWO);
    let ports = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port)).join(",");
    let line = format!("-s {ports} -t 1 -c 2 -n 1000 --fill --verify {}", file.option());
    let measured = load(&line);
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    assert_eq!(command(&measured, "total").misses, 0);
    let keys = servers.each_ref().map(|server| keys_and_expiries(server).len());
    assert_eq!(keys[0] + keys[1], 150);
    assert!(keys.iter().all(|keys| (40..=110).contains(keys)), "{keys:?}");
}

#[test]
fn the_open_loop_counts_requests_that_were_never_sent_by_key_space() {
    let server = Server::memcached();
    let file = File::new(TWO);
    let measured = std::thread::scope(|scope| {
        let line = format!("-t 1 -c 2 --rate 2000 --test-time 1 --timeout 2 {}", file.option());
        let load = scope.spawn(move || server.load(&line));
        load.join().unwrap()
    });
    let offered = measured.outcome.offered.unwrap();
    assert_eq!(measured.histograms["total"].len(), offered.due);
    let rows = ["small-set", "small-get", "large-get"];
    let rows = rows.map(|name| command(&measured, name));
    let due: u64 = rows.iter().map(|row| row.requests + row.never_sent).sum();
    assert_eq!(due, offered.due);
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let check = |text: &str, expected: &str| {
        let error = File::new(text).objection();
        assert!(error.contains(expected), "{text}: {error}");
    };
    let one = |more: &str| format!("[[key-space]]\nname = \"a\"\nshare = 1\nkeys = 9\n{more}");
    check("", "expected 1 to 100 tables [[key-space]]");
    check("[[key-space]]\nname = \"a\"\nkeys = 1", "missing field `share`");
    check(&one("colour = 3"), "unknown field `colour`");
    check("[other]", "unknown field `other`");
    check(&one("data-size = 3\ndata-size-list = \"1:2\""), "more than one field");
    check(&one("data-size-range = \"9-3\""), "`a`: data-size-range: expected MIN-MAX");
    check(&one("data-size-list = \"1\""), "`a`: data-size-list 1: expected sizes");
    check(&one("expiry-range = \"x\""), "expiry-range: expected MIN-MAX");
    check(&one("key-pattern = \"Q:R\""), "key-pattern Q:R: expected two of");
    check(&one("ratio = \"0:0\""), "ratio: expected sets:gets");
    check(&one("").replace("= 9", "= 0"), "keys must be at least 1");
    check(&one("").replace("= 1", "= 0"), "a share above 0");
    let half = |name: &str| {
        let share = format!("= {}", 1_u32 << 31);
        one("").replace("= 1", &share).replace("\"a\"", &format!("\"{name}\""))
    };
    check(&(half("a") + &half("b")), "expected shares with a sum below 2^32");
    check(&one("").replace("\"a\"", "\"a b\""), "a name has letters");
    check(&one("").replace("\"a\"", "\"total\""), "another row");
    check(&format!("{}{}", one(""), one("")), "another row");
    let prefix = |name: &str, prefix: &str| {
        one(&format!("key-prefix = \"{prefix}\"\n")).replace("\"a\"", &format!("\"{name}\""))
    };
    check(&(prefix("a", "x") + &prefix("b", "x1")), "can have the same keys");
    let missing = arguments("-s 127.0.0.1 --key-spaces /nonexistent/spaces.toml").settings();
    assert!(missing.unwrap_err().to_string().contains("No such file"));
}

#[test]
fn options_that_the_file_replaces_are_refused() {
    for option in [
        "--ratio 1:1",
        "--key-prefix x",
        "--key-maximum 5",
        "--key-pattern Z:Z",
        "--data-size 5",
        "--data-size-list 1:1",
        "--expiry-range 1-2",
    ] {
        let error = parse(&format!("--key-spaces f {option}")).unwrap_err().to_string();
        assert!(error.contains("cannot be used with"), "{option}: {error}");
    }
    let file = File::new(TWO);
    let line = format!("-s 127.0.0.1 -n allkeys {}", file.option());
    assert!(arguments(&line).settings().is_err());
}

/// Unsent requests for a frozen server are divided among the key spaces by their shares.
#[test]
fn requests_that_were_never_sent_are_those_of_all_key_spaces() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let file = File::new(
        "[[key-space]]\nname = \"a\"\nshare = 30\nkeys = 10\nratio = \"1:2\"\n\
         [[key-space]]\nname = \"b\"\nshare = 10\nkeys = 10\nratio = \"0:1\"\n",
    );
    let line = format!("-s 127.0.0.1 -p {port} -t 1 -c 1 --rate 4000 --test-time 1 --timeout 1");
    let measured = load(&format!("{line} {}", file.option()));
    let rows = ["a-set", "a-get", "b-get"].map(|row| command(&measured, row).never_sent);
    let all = measured.outcome.total().never_sent;
    assert!(all > 2000 && rows.iter().sum::<u64>() == all, "{rows:?} of {all}");
    for (row, parts) in rows.into_iter().zip([1, 2, 1]) {
        assert!(row.abs_diff(all * parts / 4) <= 100, "{rows:?}");
    }
}
