//! The documentation: it must contain every option of memcached, and its examples must work.

use crate::common::pages::root;
use crate::common::{self, Server, larderd, stderr};
use larder_server::stats::{PAGES, Row};
use std::path::{Path, PathBuf};
use std::process::Command;

/// memcached 1.6.45's options, short and long.
const OPTIONS: &str = "
    -p --port -U --udp-port -s --unix-socket -a --unix-mask -A --enable-shutdown -l --listen
    -d --daemon -r --enable-coredumps -u --user -m --memory-limit -M --disable-evictions
    -c --conn-limit -k --lock-memory -v --verbose -h --help -i --license -V --version -P --pidfile
    -f --slab-growth-factor -n --slab-min-size -L --enable-largepages -D -t --threads
    -R --max-reqs-per-event -C --disable-cas -b --listen-backlog -B --protocol -I --max-item-size
    -S --enable-sasl -F --disable-flush-all -X --disable-dumping -W --disable-watch -Y --auth-file
    -e --memory-file -Z --enable-ssl -o --extended -N --napi_ids";

/// memcached 1.6.45's extended options.
const EXTENDED: &str = "
    maxconns_fast no_maxconns_fast hashpower no_hashexpand tail_repair_time hash_algorithm
    lru_crawler no_lru_crawler lru_crawler_sleep lru_crawler_tocrawl lru_maintainer
    no_lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl
    idle_timeout slab_reassign no_slab_reassign slab_automove no_slab_automove slab_automove_ratio
    slab_automove_window slab_automove_freeratio slab_sizes slab_chunk_max no_chunked_items
    watcher_logbuf_size worker_logbuf_size track_sizes inline_ascii_resp no_inline_ascii_resp
    modern no_modern drop_privileges no_drop_privileges read_buf_mem_limit resp_obj_mem_limit
    sock_cookie_id ext_path ext_page_size ext_wbuf_size ext_threads ext_io_depth ext_item_size
    ext_item_age ext_low_ttl ext_recache_rate ext_compact_under ext_drop_under ext_max_sleep
    ext_max_frag ext_drop_unread ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat ssl_ciphers
    ssl_ca_cert ssl_wbuf_size ssl_session_cache ssl_kernel_tls ssl_min_version proxy_config
    proxy_arg proxy_uring relaxed_privileges";

/// memcached 1.6.45's commands, each with a valid request. The table of differences must list
/// exactly the commands that larderd answers with `ERROR`.
const COMMANDS: &[(&str, &str)] = &[
    ("set", "set k 0 0 1\r\n1"),
    ("add", "add k 0 0 1\r\n1"),
    ("replace", "replace k 0 0 1\r\n1"),
    ("append", "append k 0 0 1\r\n1"),
    ("prepend", "prepend k 0 0 1\r\n1"),
    ("cas", "cas k 0 0 1 1\r\n1"),
    ("get", "get k"),
    ("gets", "gets k"),
    ("gat", "gat 0 k"),
    ("gats", "gats 0 k"),
    ("delete", "delete k"),
    ("incr", "incr k 1"),
    ("decr", "decr k 1"),
    ("touch", "touch k 0"),
    ("flush_all", "flush_all"),
    ("version", "version"),
    ("verbosity", "verbosity 0"),
    ("mg", "mg k"),
    ("ms", "ms k 1\r\n1"),
    ("md", "md k"),
    ("ma", "ma k"),
    ("me", "me k"),
    ("mn", "mn"),
    ("cache_memlimit", "cache_memlimit 64"),
    ("shutdown", "shutdown"),
    ("shutdown graceful", "shutdown graceful"),
    ("slabs reassign", "slabs reassign 1 2"),
    ("slabs automove", "slabs automove 1"),
    ("slabs automove ratio", "slabs automove ratio 0.5"),
    ("slabs automove freeratio", "slabs automove freeratio 0.01"),
    ("slabs automove window", "slabs automove window 10"),
    ("lru tune", "lru tune 10 20 0.1 2"),
    ("lru mode", "lru mode flat"),
    ("lru temp_ttl", "lru temp_ttl 60"),
    ("lru_crawler enable", "lru_crawler disable\r\nlru_crawler enable"),
    ("lru_crawler disable", "lru_crawler enable\r\nlru_crawler disable"),
    ("lru_crawler crawl", "lru_crawler crawl all"),
    ("lru_crawler metadump", "lru_crawler metadump all"),
    ("lru_crawler mgdump", "lru_crawler mgdump all"),
    ("lru_crawler sleep", "lru_crawler sleep 100"),
    ("lru_crawler tocrawl", "lru_crawler tocrawl 0"),
    ("extstore", "extstore item_size 512"),
    ("refresh_certs", "refresh_certs"),
    ("debugtime", "debugtime p"),
    ("debugitem", "debugitem lock k"),
    ("misbehave", "misbehave"),
    ("stats", "stats"),
    ("stats settings", "stats settings"),
    ("stats items", "stats items"),
    ("stats slabs", "stats slabs"),
    ("stats sizes", "stats sizes"),
    ("stats sizes_enable", "stats sizes_enable"),
    ("stats sizes_disable", "stats sizes_disable"),
    ("stats conns", "stats conns"),
    ("stats extstore", "stats extstore"),
    ("stats reset", "stats reset"),
    ("stats detail on", "stats detail on"),
    ("stats detail off", "stats detail off"),
    ("stats detail dump", "stats detail dump"),
    ("stats cachedump", "stats cachedump 1 0"),
    ("watch", "watch"),
    ("watch fetchers", "watch fetchers"),
    ("watch mutations", "watch mutations"),
    ("watch evictions", "watch evictions"),
    ("watch connevents", "watch connevents"),
    ("watch deletions", "watch deletions"),
    ("watch sysevents", "watch sysevents"),
    ("watch rawcmds", "watch rawcmds"),
    ("watch proxyreqs", "watch proxyreqs"),
    ("proxyevents", "watch proxyevents"),
    ("proxyuser", "watch proxyuser"),
];

/// memcached 1.6.45's binary requests: opcode, name, and the lengths of extras, key and value in
/// bytes.
const BINARY: &[(u8, &str, [usize; 3])] = &[
    (0x00, "get", [0, 1, 0]),
    (0x01, "set", [8, 1, 1]),
    (0x02, "add", [8, 1, 1]),
    (0x03, "replace", [8, 1, 1]),
    (0x04, "delete", [0, 1, 0]),
    (0x05, "incr", [20, 1, 0]),
    (0x06, "decr", [20, 1, 0]),
    (0x07, "quit", [0, 0, 0]),
    (0x08, "flush", [0, 0, 0]),
    (0x09, "getq", [0, 1, 0]),
    (0x0a, "noop", [0, 0, 0]),
    (0x0b, "version", [0, 0, 0]),
    (0x0c, "getk", [0, 1, 0]),
    (0x0d, "getkq", [0, 1, 0]),
    (0x0e, "append", [0, 1, 1]),
    (0x0f, "prepend", [0, 1, 1]),
    (0x10, "stat", [0, 0, 0]),
    (0x11, "setq", [8, 1, 1]),
    (0x12, "addq", [8, 1, 1]),
    (0x13, "replaceq", [8, 1, 1]),
    (0x14, "deleteq", [0, 1, 0]),
    (0x15, "incrq", [20, 1, 0]),
    (0x16, "decrq", [20, 1, 0]),
    (0x17, "quitq", [0, 0, 0]),
    (0x18, "flushq", [0, 0, 0]),
    (0x19, "appendq", [0, 1, 1]),
    (0x1a, "prependq", [0, 1, 1]),
    (0x1c, "touch", [4, 1, 0]),
    (0x1d, "gat", [4, 1, 0]),
    (0x1e, "gatq", [4, 1, 0]),
    (0x23, "gatk", [4, 1, 0]),
    (0x24, "gatkq", [4, 1, 0]),
];

fn compatibility() -> String {
    let text = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let (_, options) = text.split_once("## Options\n").unwrap();
    options.split("\n## ").next().unwrap().to_owned()
}

fn help() -> String {
    String::from_utf8(larderd(&["-h"]).stdout).unwrap()
}

#[test]
fn every_option_of_memcached_is_in_the_table() {
    let table = compatibility();
    for option in OPTIONS.split_whitespace().chain(EXTENDED.split_whitespace()) {
        let named = [format!("`{option}`"), format!("`-o {option}`")];
        assert!(named.iter().any(|name| table.contains(name)), "{option}");
    }
}

/// Returns the commands that larderd answers with `ERROR` according to the table of differences.
fn refused() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let (differences, _) = text.split_once("## Options\n").unwrap();
    let rows = differences.lines().map(|row| row.split('|').collect::<Vec<_>>());
    let refused = rows.filter(|cells| cells.get(3).is_some_and(|cell| cell.trim() == "`ERROR`"));
    refused.flat_map(|cells| quoted(cells[1])).collect()
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns whether the last reply is the error for an unknown command.
fn is_unknown(server: &Server, request: &str) -> bool {
    let answer = String::from_utf8(server.ask(format!("{request}\r\n").as_bytes())).unwrap();
    // `ERROR failed to ...` is a reply to a known command.
    answer.lines().next_back() == Some("ERROR")
}

#[test]
fn every_command_of_memcached_is_answered_or_documented() {
    let (server, refused) = (Server::larderd(&["-t", "1"]), refused());
    for (name, request) in COMMANDS {
        let named = refused.iter().any(|command| command == name);
        assert_eq!(is_unknown(&server, request), named, "{name}; the table has {refused:?}");
    }
    let known = |command: &String| COMMANDS.iter().any(|(name, _)| name == command);
    assert!(refused.iter().all(known), "no such command is tried: {refused:?}");
}

/// Returns a binary request followed by a noop. The arguments are the lengths of extras, key and
/// value, whose content is arbitrary.
fn binary(opcode: u8, [extras, key, value]: [usize; 3]) -> Vec<u8> {
    let len = |len: usize| u8::try_from(len).unwrap();
    let mut bytes = vec![0x80, opcode, 0, len(key), len(extras), 0, 0, 0];
    bytes.extend([0, 0, 0, len(extras + key + value)]);
    bytes.resize(24 + extras, 0);
    bytes.resize(24 + extras + key + value, b'1');
    let mut noop = [0; 24];
    (noop[0], noop[1]) = (0x80, 0x0a);
    bytes.extend(noop);
    bytes
}

/// Returns the status of the first reply, or `None` without a reply.
fn status(server: &Server, request: &[u8]) -> Option<u16> {
    let answer = server.ask(request);
    Some(u16::from_be_bytes([*answer.get(6)?, *answer.get(7)?]))
}

#[test]
fn every_binary_request_of_memcached_is_known() {
    const UNKNOWN: Option<u16> = Some(0x81);
    let server = Server::larderd(&["-t", "1"]);
    for (opcode, name, lens) in BINARY {
        assert_ne!(status(&server, &binary(*opcode, *lens)), UNKNOWN, "{name}");
    }
    for (opcode, key) in [(0x1b, 0), (0x20, 0), (0x21, 1), (0x22, 1), (0x25, 0), (0x7f, 0)] {
        assert_eq!(status(&server, &binary(opcode, [0, key, 0])), UNKNOWN, "{opcode:#x}");
    }
}

/// Returns the source code of the tests in four folders, without this file.
fn tests() -> String {
    let folders =
        ["crates/larder-server/tests/it", "tests/clients", "tests/operations", "tests/hostile"];
    let mut files = Vec::new();
    folders.iter().for_each(|folder| files_below(&root().join(folder), &mut files));
    let sources = files.iter().filter(|path| !path.ends_with("documented.rs"));
    sources.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect()
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files_below(&path, files) } else { files.push(path) }
    }
}

/// For each option with "yes" in the table, at least one test must use one of the option's names.
#[test]
fn every_working_option_is_used_by_a_test() {
    let (table, tests) = (compatibility(), tests());
    // The option may be a separate word or part of a `-o` list.
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let words: Vec<&str> = tests.split(ends).collect();
    let given = |option: &str| words.contains(&option);
    let mut not_given = Vec::new();
    for row in table.lines().filter(|row| row.starts_with("| `") && row.contains("| yes")) {
        let mut names = quoted(row.split('|').nth(1).unwrap());
        names.iter_mut().for_each(|name| *name = name.trim_start_matches("-o ").to_owned());
        // The names of an option are adjacent: its long names follow its short name.
        while !names.is_empty() {
            let more = names[1..].iter().take_while(|name| name.starts_with("--")).count();
            let option: Vec<String> = names.drain(..=more).collect();
            if !option.iter().any(|name| given(name)) {
                not_given.push(option);
            }
        }
    }
    assert!(not_given.is_empty(), "no test gives {not_given:?}");
}

/// Returns the names of options in a help text: `-p`, `--port`, `maxconns_fast`.
fn listed(help: &str) -> Vec<&str> {
    let extended = help.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    let extended = extended.filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    let heads = help.lines().filter(|line| line.starts_with('-'));
    let words = heads.flat_map(|line| line.split([' ', ',', '=', '<', '[']).take(4));
    let short = words.filter(|word| word.len() > 1 && word.starts_with('-'));
    extended.filter(|name| !name.contains(' ')).chain(short).collect()
}

/// Scripts search the help to find out which options are supported.
#[test]
fn every_name_in_the_help_of_memcached_is_in_ours() {
    let memcached = Command::new("memcached").arg("-h").output();
    let memcached = memcached.expect("memcached; scripts/test installs it").stdout;
    let memcached = String::from_utf8(memcached).unwrap();
    let names = listed(&memcached);
    assert!(names.len() > 110 && names.contains(&"ext_path"), "{names:?}");
    let help = help();
    let ours = words(&help);
    for name in names {
        assert!(ours.contains(&name), "{name}");
    }
}

/// Returns the words of `-h` that scripts search for: `-m,` and `--memory-limit`, `-
/// idle_timeout:`.
fn words(help: &str) -> Vec<&str> {
    help.split(|c: char| c.is_whitespace() || ",.:<=".contains(c)).collect()
}

/// The help also contains options without effect, but not options that larderd refuses.
#[test]
fn every_option_of_memcached_is_in_the_help() {
    let help = help();
    let listed = words(&help);
    for option in OPTIONS.split_whitespace() {
        assert!(listed.contains(&option), "{option}");
    }
    let table = compatibility();
    for row in table.lines().filter(|row| row.starts_with("| `-o ")) {
        let cells: Vec<&str> = row.split('|').collect();
        for option in quoted(cells[1]) {
            let option = option.trim_start_matches("-o ").to_owned();
            assert_eq!(listed.contains(&option.as_str()), !cells[2].contains("error"), "{option}");
        }
    }
}

#[test]
fn every_documented_option_is_in_the_help() {
    let (help, table) = (help(), compatibility());
    let listed = words(&help);
    for row in table.lines().filter(|row| row.starts_with("| `") && row.contains("| yes")) {
        let options = row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2);
        for option in options.map(|option| option.trim_start_matches("-o ")) {
            assert!(
                listed.contains(&option),
                "{option} is documented as working, and -h does not contain it"
            );
        }
    }
}

/// If the row of a suboption contains "error", larderd must refuse the suboption as unknown.
/// Otherwise, larderd must accept the name. It then exits for another reason, at the latest because
/// the port is in use.
#[test]
fn extended_options_behave_as_the_table_says() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for row in compatibility().lines().filter(|row| row.starts_with("| `-o ")) {
        let cells: Vec<&str> = row.split('|').collect();
        let options = cells[1].split('`').skip(1).step_by(2);
        for option in options.map(|option| option.trim_start_matches("-o ")) {
            let output = larderd(&["-l", "127.0.0.1", "-p", &port, "-o", option]);
            let unknown = stderr(&output).contains("Illegal suboption");
            assert_eq!(unknown, cells[2].contains("error"), "{option}: {}", stderr(&output));
        }
    }
}

/// The statistics that memcached 1.6.45 shows (some only with `-Z`) but Debian's 1.6.18 lacks.
const NEW_STATISTICS: &str = "
    slab_reassign_busy_nomem slab_reassign_last_busy_status client_flags_size drop_privileges
    ssl_new_sessions ssl_handshake_errors ssl_proto_errors time_since_server_cert_refresh";

/// Returns the names on a page of statistics.
fn names(server: &Server, page: &str) -> Vec<String> {
    let answer = String::from_utf8(server.ask(format!("{page}\r\n").as_bytes())).unwrap();
    let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT "));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Returns the row of the statistic `name` on a page.
fn row(page: &str, name: &str) -> &'static Row {
    let page = PAGES.into_iter().find(|known| known.name == page).unwrap();
    page.rows().find(|row| row.name == name).unwrap_or_else(|| panic!("{name} has no row"))
}

/// On pages that also exist in memcached, the documentation must mark the statistics that memcached
/// lacks. The tests of `stats` check that every row is documented.
#[test]
fn statistics_that_memcached_lacks_are_documented_as_larders_own() {
    let new: Vec<&str> = NEW_STATISTICS.split_whitespace().collect();
    let options = &["-o", "idle_timeout=100"][..];
    let ours = Server::larderd(options);
    let theirs = Server::memcached(options).expect("memcached; scripts/test installs it");
    for (request, page) in [("stats", "general"), ("stats settings", "settings")] {
        let (shown, known) = (names(&ours, request), names(&theirs, request));
        assert!(shown.len() > 60, "{shown:?}");
        for name in &shown {
            let own = !known.contains(name) && !new.contains(&name.as_str());
            let called = row(page, name).help.starts_with("Larder's own: ");
            assert_eq!(own, called, "{name} of {request}");
        }
    }
}

#[test]
fn the_example_configuration_is_valid() {
    let file = root().join("contrib/larder.toml");
    let output = larderd(&["--check-config", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn the_documented_configuration_is_valid() {
    let text = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let scratch = common::Scratch::new("documented");
    let file = scratch.file("larder.toml", example);
    let output = larderd(&["--check-config", "--config", &file]);
    assert!(output.status.success(), "{}", stderr(&output));
}
