//! What is refused at the start, at once and with a reason; and files that would never end.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Scratch, Server, larderd, stderr};
use std::process::Command;

#[test]
fn what_can_not_be_had_is_refused_with_a_reason() {
    for (options, status, reason) in [
        (&["-t", "10000"][..], 1, "Number of threads must be at most 1024"),
        (&["-m", "9999999999"], 64, "The memory limit must be 1 to 16777216 MiB (-m)"),
        (&["-o", "ext_path=/nowhere:1g"], 64, "-o ext_path is not supported yet"),
    ] {
        let output = larderd(&[&["-l", "127.0.0.1", "-p", "-1"], options].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}");
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

#[test]
fn what_memcached_takes_is_taken_and_shown() {
    let scratch = Scratch::new("taken");
    let (key, chain) = certificate(&scratch, &["-addext", "basicConstraints=CA:FALSE"]);
    let list = format!("ext_max_frag=0,ssl_wbuf_size=32,ssl_chain_cert={chain},ssl_key={key}");
    let server = Server::larderd(&["-l", "notls:127.0.0.1", "-Z", "-o", &list]);
    // The first listener may be either: a plain one answers.
    let settings = server.ask(b"stats settings\r\n");
    let settings = String::from_utf8_lossy(&settings);
    assert!(settings.is_empty() || settings.contains("STAT ssl_wbuf_size 32768\r\n"), "{settings}");
}

fn fifo(scratch: &Scratch) -> String {
    let path = scratch.path("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_pid_file_that_is_a_pipe_is_left_alone() {
    let scratch = Scratch::new("pid-pipe");
    let path = fifo(&scratch);
    let server = Server::larderd(&["-P", &path]);
    assert_eq!(server.ask(b"mn\r\n"), b"MN\r\n");
    drop(server);
    let kind = std::fs::metadata(&path).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
}

/// A key and a certificate that it has signed itself.
fn certificate(scratch: &Scratch, how: &[&str]) -> (String, String) {
    let (key, chain) = (scratch.path("key.pem"), scratch.path("chain.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=cache.test"])
        .args(how)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&chain)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    (key.to_str().unwrap().to_owned(), chain.to_str().unwrap().to_owned())
}

#[test]
fn a_certificate_that_is_a_pipe_is_refused() {
    let scratch = Scratch::new("certificate-pipe");
    let list = format!("ssl_chain_cert={}", fifo(&scratch));
    let output = larderd(&["-l", "127.0.0.1", "-p", "-1", "-Z", "-o", &list]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("it is no regular file"), "{}", stderr(&output));
}

#[test]
fn a_certificate_of_version_1_is_refused_with_the_remedy() {
    let scratch = Scratch::new("version-1");
    let (key, _) = certificate(&scratch, &[]);
    let (csr, chain) = (scratch.path("csr.pem"), scratch.path("v1.pem"));
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(Command::new("openssl")
        .args(["req", "-new", "-subj", "/CN=cache.test", "-key", &key, "-out"])
        .arg(&csr));
    run(Command::new("openssl")
        .args(["x509", "-req", "-signkey", &key, "-days", "2", "-in"])
        .arg(&csr)
        .arg("-out")
        .arg(&chain));
    let list = format!("ssl_chain_cert={},ssl_key={key}", chain.display());
    let output = larderd(&["-l", "127.0.0.1", "-p", "-1", "-Z", "-o", &list]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    assert!(stderr(&output).contains("X.509 version 1"), "{}", stderr(&output));
}
