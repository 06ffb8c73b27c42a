//! Custom commands: `--command`.

use crate::common::{Server, parse_words};
use larder_bench::{Measured, run};

fn load(server: &Server, words: &[&str]) -> Measured {
    let port = server.port.to_string();
    let words = [&["-s", "127.0.0.1", "-p", &port], words].concat();
    run(&parse_words(&words).unwrap().settings().unwrap(), None, &mut |_| ()).unwrap()
}

/// Returns the requests, hits and misses of each command.
fn counts(measured: &Measured) -> Vec<(&str, u64, u64, u64)> {
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    let commands = measured.outcome.commands.iter().filter(|(name, _)| *name != "total");
    commands.map(|(name, c)| (name.as_str(), c.requests, c.hits, c.misses)).collect()
}

#[test]
fn each_command_of_resp_is_sent_in_its_turn() {
    let server = Server::redis();
    for depth in ["1", "9"] {
        let words = [
            "-P",
            "resp",
            "-t",
            "1",
            "-c",
            "2",
            "-n",
            "60",
            "--key-maximum",
            "9",
            "--pipeline",
            depth,
            "--key-prefix",
            "k-",
            "-d",
            "5",
            "--command",
            "SET s-__key__ __data__",
            "--command-ratio",
            "3",
            "--command-key-pattern",
            "S",
            "--command",
            "get s-__key__-none",
            "--command",
            "rpush list __data__ 'a b'",
            "--command",
            "lrange list 0 3",
        ]; // 10 cycles of 6 commands on each connection
        let measured = load(&server, &words);
        let expected =
            [("get", 20, 0, 20), ("lrange", 20, 0, 0), ("rpush", 20, 0, 0), ("set", 60, 0, 0)];
        assert_eq!(counts(&measured), expected, "{depth}");
        // The SETs above use all ten keys in order, so each of these gets is a hit.
        let words = [
            "-P",
            "resp",
            "-t",
            "1",
            "-c",
            "1",
            "-n",
            "10",
            "--key-maximum",
            "9",
            "--key-prefix",
            "k-",
            "--command",
            "get s-__key__",
            "--command-key-pattern",
            "S",
        ];
        let measured = load(&server, &words);
        assert_eq!(counts(&measured), [("get", 10, 10, 0)]);
        assert_eq!(measured.outcome.commands["get"].value_bytes, 50);
    }
}

#[test]
fn commands_of_the_text_protocol_have_their_values_behind_them() {
    let server = Server::memcached();
    for depth in ["1", "9"] {
        let fill = [
            "-t",
            "1",
            "-c",
            "1",
            "-n",
            "20",
            "--key-maximum",
            "9",
            "-d",
            "7",
            "--pipeline",
            depth,
            "--command",
            "set __key__ 0 0 __data__",
            "--command-key-pattern",
            "S",
            "--command",
            "gat 100 __key__",
            "--command-key-pattern",
            "S",
        ];
        let measured = load(&server, &fill);
        assert_eq!(counts(&measured), [("gat", 10, 10, 0), ("set", 10, 0, 0)], "{depth}");
        assert_eq!(measured.outcome.commands["gat"].value_bytes, 70);
        let others = [
            "-P",
            "meta",
            "-t",
            "1",
            "-c",
            "1",
            "-n",
            "60",
            "--key-maximum",
            "9",
            "-d",
            "7",
            "--pipeline",
            depth,
            "--command",
            "ms m-__key__ __data__ T60",
            "--command-key-pattern",
            "S",
            "--command",
            "mg m-__key__ v",
            "--command-key-pattern",
            "S",
            "--command",
            "mg none v",
            "--command",
            "touch none 5",
            "--command",
            "stats",
            "--command",
            "gets none-__key__",
        ];
        let measured = load(&server, &others);
        let expected = [
            ("gets", 10, 0, 10),
            ("mg", 20, 10, 10),
            ("ms", 10, 0, 0),
            ("stats", 10, 0, 0),
            ("touch", 10, 0, 10),
        ];
        assert_eq!(counts(&measured), expected, "{depth}");
    }
}

#[test]
fn an_error_is_counted_for_its_command() {
    let server = Server::redis();
    let words = [
        "-P",
        "resp",
        "-t",
        "1",
        "-c",
        "1",
        "-n",
        "4",
        "--command",
        "set k v",
        "--command",
        "lpop k",
    ];
    let commands = load(&server, &words).outcome.commands;
    assert_eq!((commands["set"].requests, commands["set"].errors), (2, 0));
    assert_eq!((commands["lpop"].requests, commands["lpop"].errors), (0, 2));
}

#[test]
fn keys_are_filled_before() {
    let server = Server::memcached();
    let words = [
        "-t",
        "1",
        "-c",
        "2",
        "-n",
        "50",
        "--key-maximum",
        "99",
        "--fill",
        "--command",
        "get __key__",
        "--command-key-pattern",
        "P",
    ];
    assert_eq!(counts(&load(&server, &words)), [("get", 100, 100, 0)]);
}

#[test]
fn options_concern_the_command_before_them() {
    let words = ["--command", "get a", "--command-ratio", "2", "--command", "get b"];
    let commands = parse_words(&words).unwrap().settings().unwrap().commands;
    let shown: Vec<_> = commands.iter().map(|c| (c.line.as_str(), c.ratio)).collect();
    assert_eq!(shown, [("get a", 2), ("get b", 1)]);
    for wrong in [
        &["--command-ratio", "2", "--command", "get a"][..],
        &["--command-key-pattern", "S"],
        &["--command", "get a", "--command-key-pattern", "R:R"],
        &["--command", "get a", "--ratio", "1:1"],
        &["--command", "get a", "--key-pattern", "R:R"],
        &["--command", "get a", "--verify"],
    ] {
        assert!(parse_words(wrong).is_err(), "{wrong:?}");
    }
    let refused = ["-P", "binary", "--command", "get a"];
    let error = parse_words(&refused).unwrap().settings().unwrap_err().to_string();
    assert!(error.contains("--command get a"), "{error}");
}
