//! The configuration file, environment variables, and `--check-config`.

use crate::common::{Scratch, Server, larderd, stat, stderr};
use std::process::{Command, Output};

fn check(options: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.arg("--check-config").args(options).envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_file_is_equivalent_to_flags() {
    let scratch = Scratch::new("config-file");
    let text = "# A cache for sessions.\n\
                memory-limit = 32\n\
                conn_limit = 77\n\
                disable-cas = true\n\
                disable_flush_all = false\n\
                max-item-size = \"2m\"\n\
                listen-backlog = 99\n\
                [extended]\n\
                idle_timeout = 60\n\
                lru_crawler = false\n";
    let file = scratch.file("larder.toml", text);
    let variables = [("LARDER_CONN_LIMIT", "88"), ("LARDER_LISTEN_BACKLOG", "98")];
    let server = Server::larderd_with(&["--config", &file, "-b", "97"], &variables);
    let settings = server.ask_text("stats settings\r\n").replace('\r', "");
    for (name, value) in [
        ("maxbytes", "33554432"),
        ("maxconns", "88"),
        ("tcp_backlog", "97"),
        ("cas_enabled", "no"),
        ("flush_enabled", "yes"),
        ("item_size_max", "2097152"),
        ("idle_timeout", "60"),
        ("lru_crawler", "no"),
    ] {
        assert_eq!(stat(&settings, name), value, "{name}");
    }
}

#[test]
fn a_variable_can_name_the_file() {
    let scratch = Scratch::new("config-variable");
    let file = scratch.file("larder.toml", "conn-limit = 33\n");
    let server = Server::larderd_with(&[], &[("LARDER_CONFIG", &file)]);
    assert_eq!(stat(&server.ask_text("stats settings\r\n").replace('\r', ""), "maxconns"), "33");
}

#[test]
fn check_config_accepts_valid_options_without_serving() {
    let scratch = Scratch::new("config-good");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = scratch.file("larder.toml", &format!("port = {port}\nlisten = [\"127.0.0.1\"]\n"));
    let output = check(&["--config", &file], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!output.stdout.is_empty());
}

#[test]
fn errors_in_the_file_are_reported_with_their_line() {
    let scratch = Scratch::new("config-wrong");
    let file = |text: &str| scratch.file("larder.toml", text);
    for (text, line, said) in [
        ("threads = 2\nmemory-limt = 64\n", 2, "memory-limt"),
        ("threads = 2\n\nmemory-limit = \"lots\"\n", 3, "lots"),
        ("threads = 0\n", 1, "Number of threads must be greater than 0"),
        ("threads = 2\nthreads = 3\n", 2, "duplicate"),
        ("threads = \n", 1, ""),
        ("[extended]\nmaxconns_fast = true\nfrob = 1\n", 3, "Illegal suboption \"frob=1\""),
        ("memory-limit = 64\nmax-item-size = \"40m\"\n", 2, "1/2 of memory"),
    ] {
        let path = file(text);
        for output in [check(&["--config", &path], &[]), larderd(&["--config", &path])] {
            assert!(matches!(output.status.code(), Some(1 | 64)), "{text:?}: {:?}", output.status);
            let reported = stderr(&output);
            assert!(reported.starts_with(&format!("{path}:{line}: ")), "{text:?}: {reported}");
            assert!(reported.contains(said), "{text:?}: {reported}");
        }
    }
    let missing = check(&["--config", "/nowhere/larder.toml"], &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("/nowhere/larder.toml"), "{}", stderr(&missing));
}

#[test]
fn an_invalid_variable_is_reported_by_name() {
    let output = check(&[], &[("LARDER_MEMORY_LIMIT", "lots")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("LARDER_MEMORY_LIMIT: "), "{}", stderr(&output));
    assert!(check(&["-m", "64"], &[("LARDER_MEMORY_LIMIT", "lots")]).status.success());
}
