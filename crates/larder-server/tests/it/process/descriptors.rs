//! The limit of file descriptors: a limit that is too low for the options, and a limit that is
//! reached.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{self, Scratch, Server, wait_for};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// The ID of an unprivileged user, which cannot raise the hard limit.
const NOBODY: u32 = 65_534;

/// Returns a command that starts larderd as an unprivileged user with a limit of `files` open
/// files.
fn limited(files: u32, options: &str) -> Command {
    let mut command = Command::new("sh");
    let larderd = env!("CARGO_BIN_EXE_larderd");
    command.args(["-c", &format!("ulimit -n {files}; exec {larderd} -l 127.0.0.1 {options}")]);
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[test]
fn more_connections_than_files_are_refused_at_the_start() {
    let output = limited(100, "-p -1 -c 101").output().unwrap();
    let said = common::stderr(&output);
    assert_eq!(output.status.code(), Some(71), "{said}");
    assert!(said.starts_with("failed to set rlimit for open files."), "{said}");
    assert!(said.contains("-c 101") && said.contains("100 open files"), "{said}");
}

fn ask(stream: &mut TcpStream, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.ends_with(end) {
        let read = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(read > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    answer
}

#[test]
fn a_server_without_free_descriptors_warns_and_recovers() {
    let scratch = Scratch::new("descriptors");
    // The unprivileged user must be able to write the log and the port file.
    let folder = scratch.path("");
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let server = Server::spawn(scratch, &mut limited(40, "-p -1 -t 1 -c 40"));
    let connect = || server.connect();
    let mut first = connect();
    ask(&mut first, "version\r\n", "\r\n");
    let others: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    let mut stats = || ask(&mut first, "stats\r\n", "END\r\n");
    wait_for("word of it", || stats().contains("STAT accepting_conns 0\r\n"));
    assert!(stats().contains("STAT listen_disabled_num 1\r\n"), "{}", stats());
    // The server retries every 10 ms, but logs only one line and counts only one event.
    std::thread::sleep(Duration::from_millis(500));
    assert!(stats().contains("STAT listen_disabled_num 1\r\n"), "{}", stats());
    let mut waits = connect();
    drop(others);
    ask(&mut waits, "version\r\n", "\r\n");
    wait_for("an end of it", || stats().contains("STAT accepting_conns 1\r\n"));
    let said = server.said();
    let lines = said.lines().filter(|line| line.contains("accepting connections: "));
    assert_eq!(lines.count(), 1, "{said}");
}
