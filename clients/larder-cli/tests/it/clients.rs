//! Tests the output and the exit status of `larder bench clients`.

use crate::broken_server::{Action, BrokenServer};
use std::process::{Command, Output};

fn run(port: u16, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["bench", "clients", "--server", &format!("127.0.0.1:{port}")])
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

#[test]
fn each_round_is_printed_as_csv() {
    let server = BrokenServer::start(|request| Action::Send(request.right()));
    let output = run(server.port, "--csv --measure times,load --threads 3 --rounds 2 --secs 0.05");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("larder,shared,3,2,")).count(), 3);
    assert!(text.contains("\nlarder,shared,3,operations_per_s,"), "{text}");
}

#[test]
fn failures_are_printed_as_messages() {
    let server = BrokenServer::start(|_| Action::Close);
    let output = run(server.port, "");
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("larder: "), "{message}");
    assert_eq!(run(server.port, "--value-bytes 18").status.code(), Some(2));
}
