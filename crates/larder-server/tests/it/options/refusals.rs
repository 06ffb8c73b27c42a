//! Refusals at startup and their reasons, files that block reads, and messages of a running server.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::tls::{Authority, Secure, client_config, connect, write_identity};
use crate::common::{self, Scratch, Server, TIMEOUT, stat, stderr, wait_for};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Starts larderd with one thread and these options, with `scratch` as its directory.
fn start(scratch: Scratch, options: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.current_dir(scratch.path("")).args(["-t", "1"]).args(options).stdin(Stdio::null());
    Server::spawn(scratch, &mut command)
}

/// Starts a server that must refuse to start. Returns its exit status and message.
fn refused(scratch: Scratch, options: &[&str]) -> (Option<i32>, String) {
    let mut server = start(scratch, &[&["-l", "127.0.0.1", "-p", "-1"], options].concat());
    (server.ends().code(), server.said())
}

#[test]
fn impossible_options_are_refused_with_a_reason() {
    let threads = "Number of threads must be at most 1024\n";
    let memory = "The memory limit must be 1 to 16777216 MiB (-m)\n";
    let udp = "Cannot use UDP with extstore enabled (-U 0 to disable)\n";
    let little = "-o ext_path needs at least 16 MiB of memory (-m), for buffers and the index\n";
    let nowhere = "-o ext_path: /nowhere/file: No such file or directory (os error 2)\n";
    let every_site =
        "--http-cors: * is not an origin; list each site as https://HOST or https://HOST:PORT\n";
    let no_scheme = every_site.replace('*', "app.example");
    let with_path = every_site.replace('*', "https://app.example/");
    let engine = "-o ext_path: only --engine segment writes items to files\n";
    for (options, status, reason) in [
        (&["-t", "1025"][..], 1, threads),
        (&["-t", "10000"], 1, threads),
        (&["-m", "16777217"], 64, memory),
        (&["-m", "9999999999"], 64, memory),
        (&["-o", "ext_path=/nowhere/file:1g", "-U", "-1"], 64, udp),
        (&["-o", "ext_item_size=512,ext_path=/nowhere/file:1g", "-m", "15"], 64, little),
        (&["-o", "ext_path=/nowhere/file:1g", "--engine", "moka"], 64, engine),
        (&["-o", "ext_path=/nowhere/file:1g"], 71, nowhere),
        (&["--http-listen", "127.0.0.1:0", "--http-cors", "*"], 64, every_site),
        (&["--http-listen", "127.0.0.1:0", "--http-cors", "http://a,app.example"], 64, &no_scheme),
        (&["--http-listen", "127.0.0.1:0", "--http-cors", "https://app.example/"], 64, &with_path),
    ] {
        let refused = refused(Scratch::new("refused"), options);
        assert_eq!(refused, (Some(status), reason.to_owned()), "{options:?}");
    }
}

#[test]
fn a_replication_port_is_not_a_way_around_logins() {
    let on = &["--replicate-on", "127.0.0.1:0"][..];
    for (guard, name) in [
        (&["-Y", "logins"][..], "-Y"),
        (&["-S", "--sasl-pwdb", "logins"], "-S"),
        (&["--token-file", "logins", "--http-listen", "127.0.0.1:0"], "--token-file"),
        (&["-Z", "-o", "ssl_chain_cert=a,ssl_key=b,ssl_ca_cert=c,ssl_verify_mode=2"], "-o ssl_"),
        (&["-Z", "-o", "ssl_chain_cert=a,ssl_key=b", "-l", "mtls:127.0.0.1"], "mtls:"),
        (&["-s", "socket"], "-s"),
    ] {
        let (status, said) = refused(Scratch::new("port"), &[guard, on].concat());
        let reason = format!("--replicate-on 127.0.0.1:0: with {name}");
        assert_eq!(status, Some(64), "{said}");
        assert!(said.starts_with(&reason) && said.contains("--cluster-secret"), "{said}");
    }
    let scratch = Scratch::new("secret");
    scratch.file("logins", "user:password\n");
    scratch.file("secret", "a secret of two servers\n");
    let options = ["-l", "127.0.0.1", "-p", "-1", "-Y", "logins", "--cluster-secret", "secret"];
    let mut server = start(scratch, &[&options, on].concat());
    assert_eq!(server.ask_text("version\r\n"), "CLIENT_ERROR unauthenticated\r\n");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
}

fn make_fifo(path: &Path) {
    // Replaces an existing file.
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pid_file_that_is_a_pipe_is_left_alone() {
    let scratch = Scratch::new("pid-pipe");
    let path = scratch.path("pid");
    make_fifo(&path);
    let mut server = Server::larderd(&["-P", path.to_str().unwrap()]);
    let said = "for writing: it is not a regular file";
    wait_for("complaint", || server.said().contains(said));
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
}

const FILES: [&str; 3] = ["chain.pem", "key.pem", "ca.pem"];
const ALL_FILES: &str = "ssl_chain_cert=chain.pem,ssl_key=key.pem,ssl_ca_cert=ca.pem,\
                         ssl_verify_mode=1";

fn with_identity(name: &str) -> (Scratch, Authority) {
    let (scratch, authority) = (Scratch::new(name), Authority::new());
    write_identity(&scratch, &authority.issue());
    scratch.file("ca.pem", &authority.pem());
    (scratch, authority)
}

#[test]
fn a_certificate_or_a_key_that_is_a_pipe_is_refused() {
    for name in FILES {
        let (scratch, _) = with_identity("certificate-pipe");
        make_fifo(&scratch.path(name));
        let (status, said) = refused(scratch, &["-Z", "-o", ALL_FILES]);
        assert_eq!(status, Some(64), "{name}: {said}");
        assert!(said.contains(&format!("{name} : not a regular file")), "{said}");
    }
}

/// With one worker thread, `refresh_certs` reads the files on the thread that serves all clients.
#[test]
fn a_pipe_in_place_of_a_certificate_blocks_no_client() {
    for name in FILES {
        let (scratch, authority) = with_identity("later-pipe");
        let server = start(scratch, &["-l", "127.0.0.1", "-p", "-1", "-Z", "-o", ALL_FILES]);
        let mut secure = Secure { server, authority };
        assert_eq!(secure.ask("mn\r\n"), "MN\r\n");
        make_fifo(&secure.server.scratch.path(name));
        let complaint = format!("{name} : not a regular file");
        let answer = secure.ask("refresh_certs\r\n");
        assert!(answer.trim_end().ends_with(&complaint), "{answer}");
        secure.server.signal(Signal::SIGHUP);
        wait_for("complaint", || secure.server.said().contains(&complaint));
        assert_eq!(secure.ask("mn\r\n"), "MN\r\n");
        secure.server.signal(Signal::SIGTERM);
        assert_eq!(secure.server.ends().code(), Some(0));
    }
}

/// Issues a certificate without extensions, which makes it a version 1 certificate, in `v1.pem`.
fn issue_version_1(scratch: &Scratch, authority: &Authority) {
    scratch.file("authority.key", &authority.key_pem());
    scratch.file("authority.pem", &authority.pem());
    let (key, request) = ("-newkey rsa:2048 -nodes -keyout v1.key", "-subj /CN=cache.test");
    let sign = "-CA authority.pem -CAkey authority.key -CAcreateserial -days 2";
    for words in [
        format!("req -new {key} {request} -out v1.csr"),
        format!("x509 -req -in v1.csr {sign} -out v1.pem"),
    ] {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(words.split(' ')).current_dir(scratch.path("")).output();
        let output = output.expect("openssl; scripts/test installs it");
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

const VERSION_1: &str = "the certificate is of X.509 version 1, and only version 3 is accepted: issue \
                         it again with an extension, as in openssl x509 -req -extfile <(echo \
                         basicConstraints=CA:FALSE)";

#[test]
fn a_certificate_of_version_1_is_refused_with_the_remedy() {
    let (scratch, authority) = with_identity("version-1");
    issue_version_1(&scratch, &authority);
    let (status, said) = refused(scratch, &["-Z", "-o", "ssl_chain_cert=v1.pem,ssl_key=v1.key"]);
    assert_eq!(status, Some(64));
    assert!(said.contains(&format!("v1.pem : {VERSION_1}\n")), "{said}");
}

#[test]
fn a_clients_certificate_of_version_1_is_refused_and_the_log_has_the_remedy() {
    let options = ["-vv", "-l", "notls:127.0.0.1"];
    let secure = Secure::start("client-v1", &options, "ssl_ca_cert=ca.pem,ssl_verify_mode=2");
    let scratch = &secure.server.scratch;
    let mut watcher = std::net::TcpStream::connect(("127.0.0.1", secure.ports()[1])).unwrap();
    watcher.set_read_timeout(Some(TIMEOUT)).unwrap();
    watcher.write_all(b"watch connevents\r\n").unwrap();
    watcher.read_exact(&mut [0; 4]).unwrap();
    issue_version_1(scratch, &secure.authority);
    let address = format!("127.0.0.1:{}", secure.server.port());
    // Send a client certificate of version 1.
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &address, "-cert", "v1.pem", "-key", "v1.key", "-ign_eof"])
        .current_dir(scratch.path(""))
        .stdin(Stdio::piped())
        .output()
        .unwrap();
    assert!(stderr(&output).contains("alert"), "{}", stderr(&output));
    wait_for("the remedy", || secure.server.said().contains(VERSION_1));
    let mut seen = String::new();
    while !seen.contains("X.509 version 1") {
        let mut bytes = [0; 4096];
        let len = common::read_some(&mut watcher, &mut bytes).unwrap();
        assert!(len > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..len]));
    }
    let good =
        client_config(&secure.authority, rustls::ALL_VERSIONS, Some(&secure.authority.issue()));
    let mut good = connect(secure.server.port(), &Arc::new(good));
    good.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut page = String::new();
    good.read_to_string(&mut page).unwrap();
    assert_eq!(stat(&page, "ssl_handshake_errors"), "1");
}

/// Runs a server with a terminal as its standard error. Returns the server and all of its output.
fn printed(options: &[&str]) -> (Server, String) {
    let terminal = openpty(None, None).unwrap();
    let scratch = Scratch::new("terminal");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-l", "127.0.0.1", "-p", "-1"]).args(options);
    let mut server = Server::spawn_saying(scratch, &mut command, terminal.slave.into());
    // The command keeps the other end of the terminal open.
    drop(command);
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
    // Ignore the error: reading fails when no other end of the terminal is open.
    let (mut master, mut text) = (File::from(terminal.master), Vec::new());
    let _ = master.read_to_end(&mut text);
    (server, String::from_utf8(text).unwrap().replace("\r\n", "\n"))
}

#[test]
fn a_terminal_shows_one_line_at_the_start() {
    let (server, said) = printed(&["-u", "root", "-m", "100", "-t", "3"]);
    let (version, port) = (env!("CARGO_PKG_VERSION"), server.port());
    let line = format!(
        "larderd {version} listens on tcp:127.0.0.1:{port}: 100 MiB of memory, 3 threads\n"
    );
    assert_eq!(said, line);
    let mut elsewhere = Server::larderd(&["-u", "root"]);
    assert_eq!(elsewhere.ask_text("mn\r\n"), "MN\r\n");
    elsewhere.signal(Signal::SIGTERM);
    assert_eq!(elsewhere.ends().code(), Some(0));
    assert_eq!(elsewhere.said(), "", "a file or a pipe gets the lines of the log");
}

/// Returns whether the server warns about open access. It logs the warning before it serves the
/// first connection.
fn is_warned(options: &[&str]) -> bool {
    let (scratch, _) = with_identity("warned");
    scratch.file("logins", "user:password\n");
    let mut server = start(scratch, &[options, &["-v", "-u", "root"]].concat());
    wait_for("start", || server.said().contains("listening"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.said());
    let said = server.said();
    assert!(said.contains("stopped"), "it had started: {said}");
    said.contains(
        "access: every client that reaches this machine can read and change all items, because no login \
         is required; give -l 127.0.0.1 to serve only this machine, or -Y or -S to require logins",
    )
}

#[test]
fn open_access_without_a_login_causes_a_warning() {
    let begun = Instant::now();
    let tls = |mode: u8| {
        format!(
            "ssl_chain_cert=chain.pem,ssl_key=key.pem,ssl_ca_cert=ca.pem,ssl_verify_mode={mode}"
        )
    };
    let (none, asked, needed) = (tls(0), tls(1), tls(2));
    for (options, warned) in [
        (&["-p", "-1"][..], true),
        (&["-p", "-1", "-l", "0.0.0.0"], true),
        (&["-p", "-1", "-l", "127.0.0.1,0.0.0.0"], true),
        (&["-p", "-1", "-l", "127.0.0.1"], false),
        (&["-p", "-1", "-l", "127.0.0.2"], false),
        (&["-p", "-1", "-Y", "logins"], false),
        (&["-p", "-1", "-S", "--sasl-pwdb", "logins"], false),
        (&["-s", "socket"], false),
        // TLS without client certificates does not restrict access.
        (&["-p", "-1", "-Z", "-o", &none], true),
        (&["-p", "-1", "-Z", "-o", &asked], true),
        (&["-p", "-1", "-Z", "-o", &needed], false),
        (&["-p", "-1", "-Z", "-o", &none, "-l", "mtls:0.0.0.0"], false),
        (&["-p", "-1", "-Z", "-o", &needed, "-l", "0.0.0.0,notls:127.0.0.1"], false),
        (&["-p", "-1", "-Z", "-o", &needed, "-l", "0.0.0.0,notls:0.0.0.0"], true),
        (&["-p", "-1", "-Z", "-o", &needed, "-l", "btls:0.0.0.0"], true),
        (&["-p", "0", "-U", "-1"], false),
        (&["-p", "0", "-U", "-1", "-l", "0.0.0.0"], true),
    ] {
        assert_eq!(is_warned(options), warned, "{options:?}");
    }
    assert!(begun.elapsed() < TIMEOUT);
}

/// The file mode of a unix socket already restricts access.
#[test]
fn a_unix_socket_causes_no_warning() {
    let server = start(Scratch::new("unix"), &["-u", "root", "-s", "socket"]);
    let path = server.scratch.path("socket");
    wait_for("socket", || UnixStream::connect(&path).is_ok());
    assert_eq!(server.said(), "");
}
