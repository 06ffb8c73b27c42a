//! What the documentation has to have: every option of memcached, and examples that work.

mod common;

use common::{Server, larderd, stderr};
use std::path::{Path, PathBuf};

/// memcached 1.6.45's options, short and long.
const OPTIONS: &str = "
    -p --port -U --udp-port -s --unix-socket -a --unix-mask -A --enable-shutdown -l --listen
    -d --daemon -r --enable-coredumps -u --user -m --memory-limit -M --disable-evictions
    -c --conn-limit -k --lock-memory -v --verbose -h --help -i --license -V --version -P --pidfile
    -f --slab-growth-factor -n --slab-min-size -L --enable-largepages -D -t --threads
    -R --max-reqs-per-event -C --disable-cas -b --listen-backlog -B --protocol -I --max-item-size
    -S --enable-sasl -F --disable-flush-all -X --disable-dumping -W --disable-watch -Y --auth-file
    -e --memory-file -Z --enable-ssl -o --extended -N --napi_ids";

/// Its extended options.
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

/// memcached 1.6.45's commands, each as a request that it understands. Subcommands are named by
/// their last word where no other command has it.
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

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

/// The commands that the table of differences says are answered with `ERROR`.
fn refused() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let (differences, _) = text.split_once("## Options\n").unwrap();
    let rows = differences.lines().map(|row| row.split('|').collect::<Vec<_>>());
    let refused = rows.filter(|cells| cells.get(3).is_some_and(|cell| cell.trim() == "`ERROR`"));
    refused.flat_map(|cells| quoted(cells[1])).collect()
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether the last answer to this is that there is no such command.
fn is_unknown(server: &Server, request: &str) -> bool {
    let answer = String::from_utf8(server.ask(format!("{request}\r\n").as_bytes())).unwrap();
    // `ERROR failed to ...` knows the command.
    answer.lines().next_back() == Some("ERROR")
}

#[test]
fn every_command_of_memcached_is_answered_or_named() {
    let (server, refused) = (Server::larderd(&["-t", "1"]), refused());
    for (name, request) in COMMANDS {
        let named = refused.iter().any(|command| command == name);
        assert_eq!(is_unknown(&server, request), named, "{name}; the table has {refused:?}");
    }
    let known = |command: &String| COMMANDS.iter().any(|(name, _)| name == command);
    assert!(refused.iter().all(known), "no such command is tried: {refused:?}");
}

/// Words of `-h` as scripts find them: `-m,` and `--memory-limit`, `- idle_timeout:`.
fn words(help: &str) -> Vec<&str> {
    help.split(|c: char| c.is_whitespace() || ",.:<=".contains(c)).collect()
}

/// Also of those that have no effect here. Of the extended ones, `-h` has those that have one.
#[test]
fn every_option_of_memcached_is_in_the_help() {
    let help = help();
    let listed = words(&help);
    for option in OPTIONS.split_whitespace() {
        assert!(listed.contains(&option), "{option}");
    }
}

#[test]
fn what_is_not_in_the_help_is_not_said_to_work() {
    let (help, table) = (help(), compatibility());
    let listed = words(&help);
    for row in table.lines().filter(|row| row.starts_with("| `") && row.contains("| yes")) {
        let options = row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2);
        for option in options.map(|option| option.trim_start_matches("-o ")) {
            assert!(listed.contains(&option), "{option} is said to work, and -h does not have it");
        }
    }
}

/// An option that `larderd` does not know is refused with status 1; what it can't do, with another,
/// or it is told that the port is taken.
#[test]
fn extended_options_are_what_the_table_says() {
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

#[test]
fn the_example_of_a_configuration_is_good() {
    let file = root().join("contrib/larder.toml");
    let output = larderd(&["--check-config", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn the_configuration_in_the_documentation_is_good() {
    let text = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let scratch = common::Scratch::new("documented");
    let file = scratch.file("larder.toml", example);
    let output = larderd(&["--check-config", "--config", &file]);
    assert!(output.status.success(), "{}", stderr(&output));
}
