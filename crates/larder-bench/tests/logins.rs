//! Connections that log in: `--authenticate`.

mod common;

use common::{Server, arguments};
use larder_bench::{RunError, run};
use std::io::Write;

fn password_file(line: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{line}").unwrap();
    file
}

fn check(server: &Server, protocol: &str, credentials: &str) {
    let line = "-t 1 -c 3 -n 10 --fill --key-maximum 9 --ratio 0:1";
    let measured = server.load(&format!("-P {protocol} -a {credentials} {line}"));
    let get = &measured.outcome.commands["get"];
    assert_eq!((get.requests, get.hits), (30, 30), "{protocol}");
    let wrong = format!("-s 127.0.0.1 -p {} -P {protocol} -a {credentials}x {line}", server.port);
    let error = run(&arguments(&wrong).settings().unwrap(), None, &mut |_| ()).unwrap_err();
    assert!(matches!(&error, RunError::Login(_)), "{protocol}: {error}");
    assert!(error.to_string().contains("--authenticate"), "{error}");
}

#[test]
fn text_and_meta() {
    let file = password_file("ann:pass:word");
    let server = Server::memcached_with(&["-Y", file.path().to_str().unwrap()]);
    for protocol in ["text", "meta"] {
        check(&server, protocol, "ann:pass:word");
    }
}

#[test]
fn resp() {
    let server = Server::redis_with(&["--requirepass", "pass:word"]);
    check(&server, "resp", ":pass:word");
    check(&server, "resp", "default:pass:word");
}

#[test]
fn a_password_alone_is_no_login_for_memcached() {
    for protocol in ["text", "meta", "binary"] {
        let error = arguments(&format!("-P {protocol} -a secret")).settings().unwrap_err();
        assert!(error.to_string().contains("USER:PASSWORD"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
