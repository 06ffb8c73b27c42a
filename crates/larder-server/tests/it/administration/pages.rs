//! The pages of `stats`, compared with memcached's.

use super::helpers::{ENGINES, ask, exchange, larderd, value};
use crate::common::{Server, TIMEOUT, wait_for};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Returns the names and shares on the page of hot keys or prefixes.
fn hot(server: &Server, page: &str, name: &str) -> Vec<(String, f64)> {
    let page = ask(server, &format!("stats {page}\r\n"));
    (1..)
        .map_while(|rank| {
            let start = format!("STAT {rank}:{name} ");
            page.lines().find_map(|line| line.strip_prefix(&start)).map(|hot| {
                let share = value(&page, &format!("{rank}:share")).parse().unwrap();
                (hot.to_owned(), share)
            })
        })
        .collect()
}

#[test]
fn hot_keys_are_found_among_many_others() {
    let server = larderd(ENGINES[0], &["-D", "/"]);
    assert_eq!(ask(&server, "stats hotkeys\r\n"), "STAT samples 0\r\nEND\r\n");
    // Three of eight requested keys are `user/hot`: one in a multi-key lookup, one in a meta
    // lookup, and one in a store. One of 160 requested keys is `large`.
    let large = "v".repeat(100_000);
    let mut requests = String::new();
    for n in 0..20_000 {
        requests += &format!("get page/{n}\r\nget page/a{n} user/hot page/b{n}\r\n");
        requests += &format!("mg user/hot v\r\nset page/{n} 0 0 1\r\n1\r\nincr other 1\r\n");
        requests += "set user/hot 0 0 1\r\n1\r\n";
        if n % 20 == 0 {
            requests += &format!("set large 0 0 100000\r\n{large}\r\n");
        }
    }
    server.ask(requests.as_bytes());
    let keys = hot(&server, "hotkeys", "key");
    assert_eq!(keys[0].0, "user%2Fhot", "{keys:?}");
    assert!((0.3..0.45).contains(&keys[0].1), "{keys:?}");
    assert_eq!(keys[1].0, "other", "{keys:?}");
    assert!((0.08..0.17).contains(&keys[1].1), "{keys:?}");
    assert!(keys.iter().any(|(key, share)| key == "large" && (0.001..0.02).contains(share)));
    let prefixes = hot(&server, "prefixes", "prefix");
    let names: Vec<&str> = prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect();
    assert_eq!(names, ["page", "user"]);
    assert_eq!(
        ask(&server, "stats reset\r\nstats hotkeys\r\n"),
        "RESET\r\nSTAT samples 0\r\nEND\r\n"
    );
}

#[test]
fn hot_keys_are_disabled_with_dumps() {
    let server = larderd(ENGINES[0], &["-X"]);
    for page in ["hotkeys", "prefixes"] {
        let answer = ask(&server, &format!("stats {page}\r\n"));
        assert_eq!(answer, "CLIENT_ERROR stats with keys not allowed\r\n");
    }
    assert!(ask(&server, "stats conns\r\n").ends_with("END\r\n"));
}

#[test]
fn tuning_commands_change_the_settings_page() {
    let server = larderd(ENGINES[0], &[]);
    let asks = "lru_crawler sleep 7\r\nlru_crawler tocrawl 8\r\nlru tune 9 10 0.11 1.20\r\n\
                slabs automove 1\r\nslabs automove ratio 0.50\r\nslabs automove window 30\r\n";
    assert_eq!(ask(&server, asks), "OK\r\n".repeat(6));
    let settings = ask(&server, "stats settings\r\n");
    for (name, value) in [
        ("lru_crawler", "yes"),
        ("lru_crawler_sleep", "7"),
        ("lru_crawler_tocrawl", "8"),
        ("hot_lru_pct", "9"),
        ("warm_lru_pct", "10"),
        ("hot_max_factor", "0.11"),
        ("warm_max_factor", "1.20"),
        ("slab_automove", "1"),
        ("slab_automove_ratio", "0.50"),
        ("slab_automove_window", "30"),
        ("slab_reassign", "no"),
        ("lru_maintainer_thread", "no"),
    ] {
        let line = format!("STAT {name} {value}\r\n");
        assert!(settings.contains(&line), "{line}");
    }
}

/// Client libraries parse the ID as a number.
#[test]
fn listeners_have_ids_like_connections() {
    let names = |server: &Server| {
        let page = ask(server, "stats conns\r\n");
        let lines = page.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(':'));
        let (numbers, names): (Vec<_>, Vec<_>) = lines.unzip();
        let numbers: BTreeSet<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 2, "{page}");
        let mut names: Vec<_> = names.iter().map(|name| name.split(' ').next()).collect();
        // The order of file descriptors is not defined.
        names.sort_unstable();
        names.into_iter().map(|name| name.unwrap().to_owned()).collect::<Vec<_>>()
    };
    let memcached = names(&Server::memcached(&[]).unwrap());
    assert_eq!(names(&larderd(ENGINES[0], &[])), memcached);
}

#[test]
fn a_delimiter_enables_prefix_counts_from_the_start() {
    let server = larderd(ENGINES[0], &["-D", "/"]);
    let asks = "set a/b 0 0 1\r\n1\r\nget a/b\r\nget a:b\r\nstats detail dump\r\n";
    let answer = ask(&server, asks);
    assert!(answer.ends_with("END\r\nPREFIX a get 1 hit 1 set 1 del 0\r\nEND\r\n"), "{answer}");
    let settings = ask(&server, "stats settings\r\n");
    assert!(settings.contains("STAT stat_key_prefix /\r\nSTAT detail_enabled yes\r\n"));
    let refused = "CLIENT_ERROR stats detail not allowed\r\n";
    assert_eq!(ask(&larderd(ENGINES[0], &["-X"]), "stats detail on\r\n"), refused);
}

/// Returns the names of a page, in order.
fn names(page: &str) -> Vec<String> {
    let names = page.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Returns whether the table of differences contains a name in backticks, in full or as a pattern
/// such as `ext_*`.
fn is_documented(name: &str) -> bool {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let table = std::fs::read_to_string(file).unwrap();
    let (differences, _) = table.split_once("## Options\n").unwrap();
    let cells = differences.lines().filter_map(|row| row.split('|').nth(1));
    let mut names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.any(|named| match named.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => named == name,
    })
}

#[test]
fn every_statistic_of_memcached_exists_in_its_order() {
    let options = ["-o", "idle_timeout=1000,track_sizes"];
    let memcached = Server::memcached(&options).expect("memcached; scripts/test installs it");
    for engine in ENGINES {
        let server = larderd(engine, &options);
        for page in ["", " settings", " items", " slabs", " sizes", " conns", " extstore"] {
            let asks = format!("set a 0 0 1\r\n1\r\nget a\r\nstats{page}\r\n");
            let [theirs, ours] = [&memcached, &server].map(|server| names(&ask(server, &asks)));
            assert_eq!(theirs.is_empty(), page == " extstore", "{page}");
            let mut ours_left = ours.iter();
            let unnumbered = |name: &str| {
                let (number, rest) = name.split_once(':').unwrap_or(("", name));
                if page == " conns" { rest.to_owned() } else { format!("{number}:{rest}") }
            };
            for name in theirs.iter().filter(|name| !is_documented(name)) {
                // memcached lists connections by file descriptor.
                if page == " conns" {
                    ours_left = ours.iter();
                }
                let found = ours_left.any(|ours| unnumbered(ours) == unnumbered(name));
                assert!(found, "{name} of stats{page}, {engine:?}, in {ours:?}");
            }
        }
    }
}

/// Pages with few or no `STAT` lines must have the same text as memcached's.
#[test]
fn short_pages_equal_those_of_memcached() {
    let asks = "set a:b 0 0 1\r\n1\r\nget a:b a:c\r\ndelete a:b\r\nset x 0 0 500\r\n";
    let asks = format!("stats detail on\r\n{asks}{}\r\nget x\r\n", "v".repeat(500));
    let pages = "stats detail dump\r\nstats detail off\r\nstats detail dump\r\nstats detail\r\n\
                 stats detail x\r\nstats sizes\r\nstats sizes_disable\r\nstats sizes\r\n\
                 stats sizes_enable\r\nstats reset\r\nstats nonsense\r\nstats noreply\r\n\
                 stats cachedump\r\nstats cachedump 1 x\r\nstats cachedump 64 0\r\n\
                 stats extstore\r\n";
    let asks = format!("{asks}{pages}");
    let options = ["-t", "1", "-o", "track_sizes"];
    let memcached = ask(&Server::memcached(&options).unwrap(), &asks);
    assert!(memcached.contains("PREFIX a get 2 hit 1 set 1 del 1\r\n"), "{memcached}");
    for engine in ENGINES {
        assert_eq!(ask(&larderd(engine, &options), &asks), memcached, "{engine:?}");
    }
}

/// Sends incomplete requests. Returns their connections.
fn start_requests(server: &Server) -> Vec<TcpStream> {
    let half_packet = [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 19][..], &[0; 30]].concat();
    let halves = [&b"set a 0 0 10\r\nabc"[..], b"set b 0 0 10\r\n", b"set c 0", b"", &half_packet];
    let begin = |half: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(half).unwrap();
        stream
    };
    halves.map(begin).into()
}

/// Returns the states of all connections, in alphabetical order.
fn states(asking: &mut TcpStream) -> Vec<String> {
    let page = exchange(asking, "stats conns\r\n", "END\r\n");
    let lines = page.lines().filter(|line| line.contains(":state "));
    let mut states: Vec<String> =
        lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    states.sort();
    states
}

/// Every connection has sent an incomplete request, except the connection that requests the page.
#[test]
fn connections_have_the_states_of_memcached() {
    let options = ["-t", "1"];
    let servers = [Server::memcached(&options).unwrap(), larderd(ENGINES[0], &options)];
    let _begun = servers.each_ref().map(start_requests);
    let mut asking = servers.each_ref().map(Server::connect);
    // The states can agree only after the requests have arrived.
    let (mut seen, mut times) = ([vec![], vec![]], 0);
    let begun = Instant::now();
    while times < 5 {
        assert!(begun.elapsed() < TIMEOUT, "{seen:?}");
        // The states must agree five times in a row.
        std::thread::sleep(Duration::from_millis(50));
        seen = asking.each_mut().map(states);
        let same = seen[0] == seen[1] && seen[0].iter().any(|state| state == "conn_nread");
        times = if same { times + 1 } else { 0 };
    }
}

/// memcached lists all statistics of one class before the next class.
#[test]
fn a_page_of_classes_lists_one_class_after_another() {
    for server in [Server::memcached(&[]).unwrap(), larderd(&["segment"], &[])] {
        let large = "x".repeat(5000);
        ask(&server, &format!("set a 0 0 1\r\n1\r\nset b 0 0 5000\r\n{large}\r\n"));
        for page in ["items", "slabs"] {
            let shown = ask(&server, &format!("stats {page}\r\n"));
            let classes = shown.lines().filter_map(|line| {
                line.trim_start_matches("STAT ").trim_start_matches("items:").split_once(':')
            });
            let mut classes: Vec<&str> = classes.map(|(class, _)| class).collect();
            classes.dedup();
            let distinct: BTreeSet<&str> = classes.iter().copied().collect();
            assert_eq!((classes.len(), distinct.len()), (2, 2), "{shown}");
        }
    }
}

/// Monitoring agents read these counts. If the counts did not fall, the agents would report a full
/// cache after a flush.
#[test]
fn the_count_of_items_falls_to_0_after_a_flush() {
    const ITEMS: usize = 60_000;
    let enabled = ENGINES.map(|engine| (engine, [].as_slice()));
    let disabled = (ENGINES[0], ["-o", "no_lru_crawler"].as_slice());
    for (engine, options) in enabled.into_iter().chain([disabled]) {
        let server = larderd(engine, &[&["-t", "3"], options].concat());
        let mut stored = 0;
        while stored < ITEMS {
            let set = |n| format!("set key{n} 0 0 10 noreply\r\n0123456789\r\n");
            let sets: String = (stored..stored + 1000).map(set).collect();
            assert_eq!(ask(&server, &format!("{sets}mn\r\n")), "MN\r\n");
            stored += 1000;
        }
        assert_eq!(value(&ask(&server, "stats\r\n"), "curr_items"), ITEMS.to_string());
        assert_eq!(ask(&server, "flush_all\r\nset kept 0 0 1\r\n1\r\n"), "OK\r\nSTORED\r\n");
        wait_for("the removal of the items", || {
            value(&ask(&server, "stats\r\n"), "curr_items") == "1"
        });
        assert_eq!(ask(&server, "get kept\r\n"), "VALUE kept 0 1\r\n1\r\nEND\r\n");
    }
}
