//! The flash tier: `-o ext_path`, the `extstore` command, and statistics.

use crate::common::{Scratch, Server, larderd, stat, stderr, wait_for};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Starts a server with little memory and a flash file of `mib` MiB in the returned scratch
/// directory. `more` is appended to the list of `-o`.
fn server(mib: usize, more: &str) -> (Scratch, Server) {
    let scratch = Scratch::new("flash");
    let list = format!("ext_path={}:{mib}m{more}", scratch.path("items").display());
    let server = Server::larderd(&["-t", "2", "-m", "16", "-v", "-o", &list]);
    (scratch, server)
}

fn page(server: &Server, name: &str) -> String {
    server.ask_text(&format!("stats{name}\r\n")).replace('\r', "")
}

fn number(server: &Server, name: &str) -> u64 {
    stat(&page(server, ""), name).parse().unwrap()
}

fn value(key: usize) -> String {
    format!("{key:08} ").repeat(200)
}

const ITEMS: usize = 20_000;

/// Stores twice as much as fits in memory, 500 items at a time.
fn fill(server: &Server) {
    for keys in (0..ITEMS).collect::<Vec<_>>().chunks(500) {
        let set = |key: &usize| format!("set key{key} 7 0 1800 noreply\r\n{}\r\n", value(*key));
        let sets: String = keys.iter().map(set).collect();
        assert_eq!(server.ask_text(&format!("{sets}mn\r\n")), "MN\r\n");
    }
}

#[test]
fn items_evicted_from_memory_are_found_on_flash() {
    let (_scratch, server) = server(256, "");
    // The server drops items if the disk is too slow to write them, so the number of written items
    // depends on the speed of the disk.
    wait_for("writes", || {
        fill(&server);
        number(&server, "extstore_objects_written") > 200
    });
    let mut found = 0;
    for key in (0..ITEMS).step_by(7) {
        let answer = server.ask_text(&format!("get key{key}\r\n"));
        let hit = format!("VALUE key{key} 7 1800\r\n{}\r\nEND\r\n", value(key));
        assert!(answer == hit || answer == "END\r\n", "{key}: {answer}");
        found += usize::from(answer == hit);
    }
    assert!(found > 0 && number(&server, "get_extstore") > 0, "{found}: {}", page(&server, ""));
    assert_eq!(number(&server, "badcrc_from_extstore"), 0);
    let used: u64 = number(&server, "extstore_pages_used");
    let free: u64 = number(&server, "extstore_pages_free");
    assert_eq!((used + free, used > 0), (128, true));
    assert_eq!(number(&server, "extstore_limit_maxbytes"), 256 << 20);
    let pages = page(&server, " extstore");
    let versions = (0..128).filter(|n| stat(&pages, &format!("{n}:version")) != "0").count();
    assert!(versions > 0, "{pages}");
    assert_eq!(page(&server, " e"), pages);
}

/// Returns a value that occupies many segments of memory.
fn large_value(key: usize) -> String {
    format!("{key:08} ").repeat(5_000 + 197 * (key % 60))
}

#[test]
fn large_values_are_found_on_flash() {
    const LARGE: usize = 400;
    let (_scratch, server) = server(256, ",ext_recache_rate=0");
    // The server drops items if the disk is too slow to write them, so the number of written items
    // depends on the speed of the disk.
    wait_for("writes", || {
        for key in 0..LARGE {
            let value = large_value(key);
            let set = format!("set key{key} 7 0 {} noreply\r\n{value}\r\nmn\r\n", value.len());
            assert_eq!(server.ask_text(&set), "MN\r\n");
        }
        number(&server, "extstore_objects_used") > 200
    });
    let (mut found, mut changed) = (0, 0);
    for key in 0..LARGE {
        let value = large_value(key);
        let hit = |value: &str| format!("VALUE key{key} 7 {}\r\n{value}\r\nEND\r\n", value.len());
        let answer = server.ask_text(&format!("get key{key}\r\n"));
        assert!(answer == hit(&value) || answer == "END\r\n", "{key}: {} bytes", answer.len());
        found += usize::from(answer == hit(&value));
        if key % 5 == 0
            && server.ask_text(&format!("append key{key} 0 0 2\r\n!!\r\n")) == "STORED\r\n"
        {
            let answer = server.ask_text(&format!("gat 1000 key{key}\r\n"));
            assert!(answer == hit(&format!("{value}!!")) || answer == "END\r\n", "{key}");
            changed += usize::from(answer != "END\r\n");
        }
    }
    assert!(found > 200 && changed > 20, "{found} {changed}: {}", page(&server, ""));
    assert!(number(&server, "get_extstore") > 100, "{}", page(&server, ""));
    assert_eq!(number(&server, "badcrc_from_extstore"), 0);
    assert_eq!(number(&server, "miss_from_extstore"), 0);
}

#[test]
fn removals_succeed_without_memory_to_read_a_large_item() {
    let scratch = Scratch::new("removals");
    let list = format!("ext_path={}:256m", scratch.path("items").display());
    let region = scratch.path("region").display().to_string();
    let start = |more: &[&str]| {
        let options = ["-t", "1", "-m", "16", "-e", &region, "-o", &list];
        Server::larderd(&[&options, more].concat())
    };
    let mut server = start(&[]);
    wait_for("writes", || {
        for key in 0..400 {
            let value = large_value(key);
            let set = format!("set key{key} 7 0 {} noreply\r\n{value}\r\nmn\r\n", value.len());
            assert_eq!(server.ask_text(&set), "MN\r\n");
        }
        number(&server, "extstore_objects_used") > 200
    });
    server.signal(Signal::SIGTERM);
    assert!(server.ends().success());

    // With `-M`, restored items stay in memory, and sets can use only the remaining memory.
    let server = start(&["-M"]);
    let set = |key| format!("set small{key} 0 0 1800\r\n{}\r\n", value(key));
    let stored = (0..).take_while(|key| server.ask_text(&set(*key)) == "STORED\r\n").count();
    assert!(stored > 0);
    let no_memory = "SERVER_ERROR out of memory\r\n";
    let unread: Vec<_> = (0..400)
        .filter(|key| server.ask_text(&format!("md key{key} C1\r\n")) == no_memory)
        .take(3)
        .collect();
    let [deleted, stale, kept] = unread[..] else { panic!("all could be read") };
    assert_eq!(server.ask_text(&format!("delete key{deleted}\r\n")), "DELETED\r\n");
    assert_eq!(server.ask_text(&format!("md key{stale} I\r\n")), "HD\r\n");
    for key in [deleted, stale] {
        assert_eq!(server.ask_text(&format!("mg key{key} s\r\n")), "EN\r\n");
        assert_eq!(server.ask_text(&format!("delete key{key}\r\n")), "NOT_FOUND\r\n");
    }
    assert_eq!(server.ask_text(&format!("md key{kept} C1\r\n")), no_memory, "it is there still");
}

/// Returns the names on a page of statistics that contain `ext`.
fn names(server: &Server, name: &str) -> Vec<String> {
    let page = page(server, name);
    let names = page.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next());
    names.filter(|name| name.contains("ext")).map(str::to_owned).collect()
}

/// The statistics of memcached 1.6.45 that Debian's 1.6.18 lacks.
const NEWER: [&str; 3] =
    ["extstore_memory_pressure", "extstore_compact_resc_cold", "extstore_compact_resc_old"];

#[test]
fn names_equal_those_of_memcached() {
    let scratch = Scratch::new("flash-memcached");
    // Debian's 1.6.18 requires the page size first.
    let list = format!("ext_page_size=4,ext_path={}:512m", scratch.path("items").display());
    let theirs = Server::memcached(&["-o", &list]).expect("memcached; scripts/test installs it");
    let (_scratch, ours) = server(512, ",ext_page_size=4");
    for name in ["", " settings"] {
        let theirs = names(&theirs, name);
        let is_there = |name: &String| !NEWER.contains(&name.as_str()) || theirs.contains(name);
        let ours: Vec<_> = names(&ours, name).into_iter().filter(is_there).collect();
        assert_eq!(ours, theirs, "stats{name}");
    }
    let sorted = |server: &Server| -> Vec<String> {
        page(server, " extstore")
            .lines()
            .map(|l| l.split(' ').nth(1).unwrap_or(l).to_owned())
            .collect()
    };
    let pages = sorted(&ours);
    assert_eq!(pages, sorted(&theirs));
    assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), 4 * 128 + 1);
    assert!(names(&Server::larderd(&[]), "").is_empty());
}

#[test]
fn settings_depend_on_the_number_of_pages_and_can_be_changed() {
    let (_scratch, server) = server(512, ",ext_page_size=1,ext_drop_under=9,ext_max_sleep=5");
    let settings = page(&server, " settings");
    assert_eq!(stat(&settings, "ext_compact_under"), "5");
    assert_eq!(stat(&settings, "ext_drop_under"), "9");
    let changes = "extstore compact_under 6\r\nextstore item_size 600\r\nextstore max_frag 0.5\r\n";
    assert_eq!(server.ask_text(changes), "OK\r\nOK\r\nOK\r\n");
    let settings = page(&server, " settings");
    assert_eq!(stat(&settings, "ext_compact_under"), "6");
    assert_eq!(stat(&settings, "ext_item_size"), "600");
    assert_eq!(stat(&settings, "ext_max_frag"), "0.50");
    let said = server.said();
    assert!(said.contains("-o ext_max_sleep has no effect: "), "{said}");
    assert!(!said.contains("-o ext_drop_under has no effect"), "{said}");
}

/// Dumps must contain items in memory and on flash. The reads of a dump must not block other
/// clients.
#[test]
fn dumps_show_all_items() {
    // With these options, lookups do not move items from flash to memory, so dumps and lookups are
    // comparable.
    let (_scratch, server) = server(256, ",ext_recache_rate=0,track_sizes");
    wait_for("writes", || {
        fill(&server);
        number(&server, "extstore_objects_used") > 1_000
    });
    wait_for("the last write", || number(&server, "extstore_io_queue") == 0);
    let dump = |command: &str| -> Vec<String> {
        let text = server.ask_text(&format!("{command}\r\n"));
        text.lines().map(|line| line.trim().to_owned()).collect()
    };
    let has_ended = AtomicBool::new(false);
    let (meta, keys, cached, sizes, answers) = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut answers = 0;
            while !has_ended.load(Ordering::Relaxed) {
                let key = answers * 97 % ITEMS;
                let answer = server.ask_text(&format!("mn\r\nmg key{key} q k v\r\nmn\r\n"));
                let hit = format!("MN\r\nVA 1800 kkey{key}\r\n{}\r\nMN\r\n", value(key));
                assert!(answer == hit || answer == "MN\r\nMN\r\n", "{key}: {answer}");
                answers += 1;
            }
            answers
        });
        let meta = dump("lru_crawler metadump all");
        let class = meta[1].split(' ').find_map(|word| word.strip_prefix("cls="));
        let cached = dump(&format!("stats cachedump {} 0", class.unwrap()));
        let (keys, sizes) = (dump("lru_crawler mgdump all"), dump("stats sizes"));
        has_ended.store(true, Ordering::Relaxed);
        (meta, keys, cached, sizes, others.join().unwrap())
    });
    assert!(answers > 10, "{answers} replies during the dumps");
    let asked: String = (0..ITEMS).map(|key| format!("mg key{key} k q\r\n")).collect();
    let answers = dump(&asked);
    let listed = |lines: &[String], prefix: &str| -> BTreeSet<String> {
        let keys = lines.iter().filter_map(|line| line.strip_prefix(prefix)?.split(' ').next());
        let keys: Vec<_> = keys.map(str::to_owned).collect();
        let distinct: BTreeSet<_> = keys.iter().cloned().collect();
        assert_eq!(keys.len(), distinct.len(), "each key once");
        distinct
    };
    let found = listed(&answers, "HD k");
    let on_flash = number(&server, "extstore_objects_used");
    assert!(on_flash > 1_000 && found.len() > 2_000, "{on_flash} of {}", found.len());
    for (lines, prefix, end) in
        [(&meta, "key=", "END"), (&keys, "mg ", "EN"), (&cached, "ITEM ", "END")]
    {
        assert_eq!(lines.last().unwrap(), end);
        let shown = listed(lines, prefix);
        let differing: Vec<_> = shown.symmetric_difference(&found).take(10).collect();
        assert!(differing.is_empty(), "{prefix}: {differing:?}, {} shown", shown.len());
    }
    let (mut locations, page_len) = (BTreeSet::new(), 2 << 20);
    for line in meta.iter().filter(|line| line.starts_with("key=")) {
        let (_, rest) = line.split_once(" flags=7").unwrap();
        if let Some(location) = rest.strip_prefix(" ext_page=") {
            let (page, offset) = location.split_once(" ext_offset=").unwrap();
            let location: (u64, u64) = (page.parse().unwrap(), offset.parse().unwrap());
            assert!(location.0 < 128 && location.1 < page_len, "{line}");
            assert!(locations.insert(location), "two items in one place: {line}");
        } else {
            assert_eq!(rest, "");
        }
    }
    assert_eq!(locations.len() as u64, on_flash);
    let counts = sizes.iter().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').nth(1));
    let counted: usize = counts.map(|count| count.parse::<usize>().unwrap()).sum();
    assert_eq!(counted, found.len(), "{sizes:?}");
}

#[test]
fn watchers_of_evictions_receive_writes_to_flash() {
    let (_scratch, server) = server(256, "");
    let mut watcher = server.connect();
    watcher.write_all(b"watch evictions\r\n").unwrap();
    let mut lines = BufReader::new(watcher).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "OK");
    fill(&server);
    let line = lines.find(|line| line.contains(" type=extwrite ")).unwrap();
    let words: Vec<_> = line.split(' ').map(|word| word.split_once('=').unwrap()).collect();
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let expected = ["ts", "gid", "type", "key", "fetch", "ttl", "la", "clsid", "bucket"];
    assert_eq!(names, expected, "{line}");
    assert!(words[3].1.starts_with("key") && words[4].1 == "no", "{line}");
    assert_eq!((words[5].1, words[8].1), ("-1", "0"), "items that never expire: {line}");
}

/// Items smaller than `ext_item_size` must be evicted from memory without a write to flash.
#[test]
fn small_items_are_not_written() {
    let (_scratch, server) = server(128, ",ext_item_size=4096");
    fill(&server);
    wait_for("evictions", || number(&server, "evictions") > 0);
    assert_eq!(number(&server, "extstore_objects_written"), 0);
    assert_eq!(server.ask_text("extstore item_size 512\r\n"), "OK\r\n");
    wait_for("writes", || {
        fill(&server);
        number(&server, "extstore_objects_written") > 0
    });
}

fn refused(list: &str) -> (Option<i32>, String) {
    let output = larderd(&["-l", "127.0.0.1", "-p", "-1", "-m", "16", "-o", list]);
    (output.status.code(), stderr(&output))
}

#[test]
fn files_with_other_content_are_refused() {
    let scratch = Scratch::new("flash-foreign");
    let text = "letters to nobody ".repeat(1000);
    let path = scratch.file("letters", &text);
    let list = format!("ext_path={path}:64m");
    let (status, said) = refused(&list);
    assert_eq!(status, Some(71), "{said}");
    assert!(said.contains(&path), "{said}");
    assert_eq!(scratch.read("letters"), text);
    let link = scratch.path("link");
    std::os::unix::fs::symlink(Path::new("/nowhere"), &link).unwrap();
    let (status, said) = refused(&format!("ext_path={}:64m", link.display()));
    assert_eq!(status, Some(71), "{said}");
    assert!(said.contains("symbolic link"), "{said}");
}

#[test]
fn the_file_has_the_configured_length_and_one_owner() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("flash-length");
    let path = scratch.path("items");
    let server = Server::larderd(&["-o", &format!("ext_path={}:64m", path.display())]);
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    let about = path.metadata().unwrap();
    assert_eq!((about.len(), about.mode() & 0o777), ((64 << 20) + 4096, 0o600));
    assert!(about.blocks() * 512 >= 64 << 20, "{} blocks", about.blocks());
}

/// The log must report the failures of a device, and the server must continue without the device.
#[test]
fn a_failing_device_is_logged() {
    let (scratch, server) = server(256, "");
    wait_for("writes", || {
        fill(&server);
        number(&server, "extstore_objects_written") > 1000
    });
    let file = std::fs::File::options().write(true).open(scratch.path("items")).unwrap();
    file.set_len(0).unwrap();
    let gets: String = (0..ITEMS).map(|key| format!("get key{key}\r\n")).collect();
    wait_for("the end of flash", || {
        server.ask(gets.as_bytes());
        number(&server, "flash_off") == 1
    });
    wait_for("the log", || server.said().contains("flash: turned off after repeated failures"));
    assert!(server.said().contains("reads or writes of -o ext_path failed"), "{}", server.said());
    assert!(number(&server, "flash_errors") > 0);
    assert_eq!(server.ask_text("set after 0 0 1\r\n1\r\nget after\r\n").lines().count(), 4);
}

#[test]
fn refused_changes_are_logged() {
    let server = Server::larderd(&["-m", "4", "-M"]);
    let value = "v".repeat(100_000);
    wait_for("a refused change", || {
        let set = format!("set {} 0 0 100000\r\n{value}\r\n", number(&server, "cmd_set"));
        server.ask_text(&set).starts_with("SERVER_ERROR out of memory")
    });
    let line =
        "changes refused: 1 since the last such line: memory is full, and -M forbids evictions";
    wait_for("the log", || server.said().contains(line));
}
