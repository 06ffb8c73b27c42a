//! Connections that log in: `--authenticate`.

use crate::common::broken_server::{Action, BrokenServer, Request};
use crate::common::{Server, arguments, load};
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
fn each_of_several_servers() {
    let file = password_file("ann:pass:word");
    let servers = [(); 2].map(|()| Server::memcached_with(&["-Y", file.path().to_str().unwrap()]));
    let ports = format!("127.0.0.1:{},127.0.0.1:{}", servers[0].port, servers[1].port);
    let line = "-a ann:pass:word -t 1 -c 3 -n 10 --fill --key-maximum 99 --ratio 0:1";
    let measured = load(&format!("-s {ports} {line}"));
    assert_eq!(measured.outcome.commands["get"].hits, 30);
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
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

#[test]
fn a_login_that_is_not_answered_is_named() {
    let server = BrokenServer::start(|_| Action::Ignore);
    let line = format!("-s 127.0.0.1 -p {} -a u:p --timeout 0.3", server.port);
    for limit in ["", "--connection-timeout 5"] {
        let settings = arguments(&format!("{line} {limit}")).settings().unwrap();
        let error = run(&settings, None, &mut |_| ()).unwrap_err();
        assert!(matches!(&error, RunError::LoginTimeout { .. }), "{limit}: {error}");
        assert!(error.to_string().contains("the login to 127.0.0.1"), "{error}");
        assert!(error.to_string().contains("within 0.3 s (--timeout)"), "{error}");
    }
}

/// The server accepts the first two connections' logins, and never answers the first reconnect's
/// login.
#[test]
fn a_login_during_the_run_has_a_time_limit() {
    let server = BrokenServer::start(|request: &Request<'_>| match request.connection {
        2 => Action::Ignore,
        _ => Action::SendAfter(std::time::Duration::from_millis(1), request.right()),
    });
    let line = "-t 1 -c 2 -a u:p --ratio 0:1 --reconnect-interval 20 --test-time 1.5 --timeout 0.4";
    let measured = load(&format!("-s 127.0.0.1 -p {} {line}", server.port));
    let lost = "connection lost: the login was not answered within 0.4 s (--timeout)";
    assert_eq!(measured.outcome.faults.get(lost), Some(&1), "{:?}", measured.outcome.faults);
    assert_eq!((measured.outcome.lost_connections, measured.outcome.ended_early), (1, None));
}
