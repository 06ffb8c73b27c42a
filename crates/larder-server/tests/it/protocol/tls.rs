//! TLS between clients and the server.

use crate::common::tls::{Authority, Client, Secure, client_config, connect, write_identity};
use crate::common::{Scratch, Server, TIMEOUT, larderd, stat, stderr, wait_for};
use nix::sys::signal::Signal;
use rustls::client::ClientSessionMemoryCache;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Reads as many bytes as `expected` has, and compares them.
fn read(stream: &mut impl Read, expected: &str) {
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), expected);
}

/// Sends one request, and returns its reply.
fn ask_once(client: &mut Client) -> io::Result<String> {
    client.write_all(b"mn\r\n")?;
    let mut answer = [0; 4];
    client.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn is_served(port: u16, config: &ClientConfig) -> bool {
    ask_once(&mut connect(port, &Arc::new(config.clone()))).is_ok_and(|answer| answer == "MN\r\n")
}

fn count(secure: &Secure, name: &str) -> u64 {
    stat(&secure.ask("stats\r\n"), name).parse().unwrap()
}

#[test]
fn replies_equal_those_of_a_plaintext_connection_in_both_versions() {
    let secure = Secure::start("versions", &[], "");
    for version in rustls::ALL_VERSIONS {
        let config = client_config(&secure.authority, &[version], None);
        let mut client = connect(secure.server.port(), &Arc::new(config));
        for len in [0, 100, 16 << 10, 300_000] {
            let value = "v".repeat(len);
            client
                .write_all(format!("set a 0 0 {len}\r\n{value}\r\nget a\r\n").as_bytes())
                .unwrap();
            read(&mut client, &format!("STORED\r\nVALUE a 0 {len}\r\n{value}\r\nEND\r\n"));
        }
        client.write_all(&b"mn\r\n".repeat(20_000)).unwrap();
        read(&mut client, &"MN\r\n".repeat(20_000));
        client.write_all(b"quit\r\n").unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0, "the end is announced");
    }
}

#[test]
fn a_late_reader_gets_every_reply() {
    let secure = Secure::start("late", &["-m", "64"], "");
    let (mut client, value) = (secure.connect(), "v".repeat(1_000_000));
    client.write_all(format!("set a 0 0 1000000\r\n{value}\r\n").as_bytes()).unwrap();
    read(&mut client, "STORED\r\n");
    client.write_all(&b"get a\r\n".repeat(40)).unwrap();
    // Wait until the server has unsent replies.
    wait_for("full buffer", || secure.ask("stats conns\r\n").contains("conn_mwrite"));
    let one = format!("VALUE a 0 1000000\r\n{value}\r\nEND\r\n");
    (0..40).for_each(|_| read(&mut client, &one));
}

/// All records, including those of the handshake, arrive in pieces.
#[test]
fn records_can_arrive_byte_by_byte() {
    let secure = Secure::start("pieces", &[], "");
    let config = Arc::new(secure.client_config());
    let Client { mut conn, mut sock } = connect(secure.server.port(), &config);
    let send = |conn: &mut ClientConnection, sock: &mut TcpStream| {
        let mut records = Vec::new();
        while conn.wants_write() {
            conn.write_tls(&mut records).unwrap();
        }
        records.iter().for_each(|byte| sock.write_all(&[*byte]).unwrap());
    };
    conn.writer().write_all(b"set a 0 0 2\r\nhi\r\nget a\r\n").unwrap();
    let (expected, mut answer) = (b"STORED\r\nVALUE a 0 2\r\nhi\r\nEND\r\n", Vec::new());
    while answer.len() < expected.len() {
        send(&mut conn, &mut sock);
        assert!(conn.read_tls(&mut sock).unwrap() > 0, "closed");
        conn.process_new_packets().unwrap();
        let _ = conn.reader().read_to_end(&mut answer);
    }
    assert_eq!(answer, expected);
}

#[test]
fn a_half_closed_connection_gets_every_reply() {
    let secure = Secure::start("half-closed", &[], "");
    let mut client = secure.connect();
    client.write_all(&b"mn\r\n".repeat(1000)).unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).unwrap();
    assert_eq!(answers, b"MN\r\n".repeat(1000));
}

/// Runs `openssl s_client`. Returns whether it succeeded, and its output, which contains the
/// replies.
fn s_client(secure: &Secure, options: &[&str], requests: &str) -> (bool, String) {
    let address = format!("127.0.0.1:{}", secure.server.port());
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &address, "-CAfile", "ca.pem", "-verify_return_error"])
        .args(["-servername", "cache.test", "-ign_eof"])
        .args(options)
        .current_dir(secure.server.scratch.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl; scripts/test installs it");
    let _ = child.stdin.take().unwrap().write_all(requests.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn openssl_connects_and_resumes_sessions() {
    let secure = Secure::start("openssl", &[], "");
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        for (session, kind) in [("-sess_out", "New"), ("-sess_in", "Reused")] {
            let (good, said) = s_client(&secure, &[version, session, "session"], "mn\r\nquit\r\n");
            assert!(good && said.contains(&format!("{kind}, {name}")), "{said}");
            assert!(said.contains("MN\r\n"), "{said}");
        }
    }
    let (good, said) = s_client(&secure, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "mn\r\n");
    assert!(!good && !said.contains("MN"), "{said}");
}

#[test]
fn a_client_that_is_too_old_is_refused() {
    let secure = Secure::start("min-version", &[], "ssl_min_version=3");
    let config = |version| client_config(&secure.authority, &[version], None);
    let before = count(&secure, "ssl_handshake_errors");
    assert!(!is_served(secure.server.port(), &config(&rustls::version::TLS12)));
    assert!(is_served(secure.server.port(), &config(&rustls::version::TLS13)));
    assert_eq!(count(&secure, "ssl_handshake_errors"), before + 1);
    assert_eq!(stat(&secure.ask("stats settings\r\n"), "ssl_min_version"), "tlsv1.3");
}

#[test]
fn client_certificates_are_required_by_the_options() {
    let stranger = Authority::new();
    for (mode, without, with_good, with_bad) in [
        (0, true, true, true),
        (1, true, true, false),
        (2, false, true, false),
        (3, false, true, false),
    ] {
        let list = format!("ssl_ca_cert=ca.pem,ssl_verify_mode={mode}");
        let options = ["-l", "btls:127.0.0.1", "-l", "mtls:127.0.0.1", "-l", "notls:127.0.0.1"];
        let secure = Secure::start(&format!("verify-{mode}"), &options, &list);
        let ports = secure.ports();
        for (identity, usual, certified) in [
            (None, without, false),
            (Some(secure.authority.issue()), with_good, true),
            (Some(stranger.issue()), with_bad, false),
        ] {
            for version in rustls::ALL_VERSIONS {
                let identity = identity.as_ref();
                let config = client_config(&secure.authority, &[version], identity);
                let served = [0, 1, 2].map(|at| is_served(ports[at], &config));
                assert_eq!(served, [usual, true, certified], "mode {mode}, {version:?}");
            }
        }
        let plain = TcpStream::connect(("127.0.0.1", ports[3])).unwrap();
        assert_eq!(talk(plain, b"mn\r\n"), "MN\r\n");
    }
}

/// Sends `bytes` without TLS. Returns the reply.
fn talk(mut stream: TcpStream, bytes: &[u8]) -> String {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The server may close the connection before everything is written.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it closes");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn watchers_receive_tls_errors() {
    let options = ["-l", "notls:127.0.0.1"];
    let secure = Secure::start("watched", &options, "ssl_handshake_timeout=4");
    let ports = secure.ports();
    let mut watcher = TcpStream::connect(("127.0.0.1", ports[1])).unwrap();
    watcher.set_read_timeout(Some(TIMEOUT)).unwrap();
    watcher.write_all(b"watch connevents\r\n").unwrap();
    read(&mut watcher, "OK\r\n");
    let mut lines = BufReader::new(watcher).lines().map(Result::unwrap);
    let mut said = || {
        let line = lines.find(|line| line.contains("type=conntlserr ")).unwrap();
        let (_, rest) = line.split_once(" type=").unwrap();
        let (fd, msg) = rest.strip_prefix("conntlserr fd=").unwrap().split_once(" msg=").unwrap();
        assert!(fd.parse::<u64>().unwrap() > 0, "{line}");
        msg.to_owned()
    };
    let stranger = || TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    talk(stranger(), b"get a\r\n");
    assert_eq!(said(), "received corrupt message of type InvalidContentType");
    let patient = stranger();
    assert_eq!(said(), "handshake timed out");
    drop((patient, stranger()));
    assert_eq!(said(), "connection closed during the handshake");
    ask_once(&mut secure.connect()).unwrap();
    drop(stranger());
    assert_eq!(
        said(),
        "connection closed during the handshake",
        "no line for a complete handshake"
    );
}

#[test]
fn statistics_of_tls_have_memcacheds_names() {
    let list = "ssl_session_cache,ssl_ca_cert=ca.pem,ssl_verify_mode=1,ssl_wbuf_size=32";
    let ours = Secure::start("names", &[], list);
    let theirs = Secure::memcached("names", list);
    assert_eq!(ours.ask("refresh_certs\r\n"), theirs.ask("refresh_certs\r\n"));
    let of_tls = |secure: &Secure, page: &str| -> Vec<String> {
        let page = secure.ask(&format!("stats{page}\r\n")).replace('\r', "");
        let lines = page.lines().filter_map(|line| line.strip_prefix("STAT "));
        lines
            .filter(|line| line.contains("ssl_") || line.contains("cert"))
            // Compare the values of settings, but only the names of other statistics.
            .map(|line| if page.contains("STAT pid") { first(line) } else { line.to_owned() })
            .collect()
    };
    for page in ["", " settings"] {
        let (ours, theirs) = (of_tls(&ours, page), of_tls(&theirs, page));
        assert!(theirs.len() >= 3, "{theirs:?}");
        let missing: Vec<&String> = theirs.iter().filter(|line| !ours.contains(line)).collect();
        assert!(missing.is_empty(), "{missing:?} of stats{page}, in {ours:?}");
    }
}

fn first(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn the_memory_of_tls_is_counted() {
    let secure = Secure::start("counted", &["-l", "notls:127.0.0.1"], "");
    let held = || {
        let plain = TcpStream::connect(("127.0.0.1", secure.ports()[1])).unwrap();
        let page = talk(plain, b"stats\r\n").replace('\r', "");
        stat(&page, "read_buf_bytes").parse::<usize>().unwrap()
    };
    wait_for("rest", || held() == 0);
    let mut clients: Vec<Client> = (0..20).map(|_| secure.connect()).collect();
    clients.iter_mut().for_each(|client| drop(ask_once(client).unwrap()));
    wait_for("the memory of connections", || (20 * 3000..20 * 5000).contains(&held()));
    drop(clients);
    wait_for("rest", || held() == 0);
}

/// A session ticket from a listener without client certificates must be invalid at a listener that
/// requires them.
#[test]
fn a_session_is_not_resumed_at_a_stricter_listener() {
    let options = ["-l", "mtls:127.0.0.1"];
    let secure = Secure::start("crossing", &options, "ssl_ca_cert=ca.pem");
    let (ports, config) = (secure.ports(), secure.client_config());
    assert!(is_served(ports[0], &config) && is_served(ports[0], &config));
    assert!(!is_served(ports[1], &config));
}

fn certificate(client: &Client) -> Vec<u8> {
    client.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Returns the server certificate of a new connection.
fn shown(secure: &Secure) -> Vec<u8> {
    let mut client = secure.connect();
    ask_once(&mut client).unwrap();
    certificate(&client)
}

#[test]
fn reloading_certificates_keeps_connections() {
    let secure = Secure::start("refresh", &[], "");
    let scratch = &secure.server.scratch;
    let mut old = secure.connect();
    ask_once(&mut old).unwrap();
    let first = certificate(&old);
    assert_eq!(secure.ask("refresh_certs\r\n"), "OK\r\n");
    assert_eq!(shown(&secure), first);

    write_identity(scratch, &secure.authority.issue());
    assert_eq!(shown(&secure), first, "not before the request");
    old.write_all(b"refresh_certs\r\n").unwrap();
    read(&mut old, "OK\r\n");
    let second = shown(&secure);
    assert_ne!(second, first);

    write_identity(scratch, &secure.authority.issue());
    secure.server.signal(Signal::SIGHUP);
    wait_for("new certificate", || shown(&secure) != second);
    assert_eq!(ask_once(&mut old).unwrap(), "MN\r\n");
}

#[test]
fn invalid_files_leave_the_certificates_unchanged() {
    let secure = Secure::start("broken", &[], "ssl_ca_cert=ca.pem,ssl_verify_mode=1");
    let scratch = &secure.server.scratch;
    let (before, good) = (shown(&secure), secure.authority.issue());
    let other = secure.authority.issue();
    for (chain, key, ca, said) in [
        ("junk", &good.key, &secure.authority.pem(), "certificate chain: chain.pem"),
        (&good.chain, &"junk".to_owned(), &secure.authority.pem(), "key: key.pem"),
        (&good.chain, &other.key, &secure.authority.pem(), "key: key.pem"),
        (&good.chain, &good.key, &"junk".to_owned(), "CA certificate: ca.pem"),
    ] {
        for (name, text) in [("chain.pem", chain), ("key.pem", key), ("ca.pem", ca)] {
            scratch.file(name, text);
        }
        let answer = secure.ask("refresh_certs\r\n");
        assert!(answer.starts_with(&format!("Error loading the {said} : ")), "{answer}");
        assert!(answer.ends_with("\r\n") && answer.lines().count() == 1, "{answer}");
        assert_eq!(shown(&secure), before);
    }
    std::fs::remove_file(scratch.path("ca.pem")).unwrap();
    secure.server.signal(Signal::SIGHUP);
    wait_for("complaint", || secure.server.said().contains("No such file"));
    assert_eq!(shown(&secure), before);
}

#[test]
fn sessions_are_resumed_until_certificates_are_reloaded() {
    for (name, list, kept) in [("tickets", "", false), ("cache", "ssl_session_cache", true)] {
        let secure = Secure::start(name, &[], list);
        for version in rustls::ALL_VERSIONS {
            let mut config = client_config(&secure.authority, &[version], None);
            let store = Arc::new(ClientSessionMemoryCache::new(16));
            config.resumption = rustls::client::Resumption::store(store);
            let config = Arc::new(config);
            let kind = || {
                let mut client = connect(secure.server.port(), &config);
                ask_once(&mut client).unwrap();
                client.conn.handshake_kind().unwrap()
            };
            assert_eq!([kind(), kind()], [HandshakeKind::Full, HandshakeKind::Resumed]);
            assert_eq!(secure.ask("refresh_certs\r\n"), "OK\r\n");
            assert_eq!([kind(), kind()], [HandshakeKind::Full, HandshakeKind::Resumed]);
        }
        assert_eq!(secure.ask("stats\r\n").contains("ssl_new_sessions"), kept);
    }
}

/// The statistic counts new sessions, but not resumed sessions, as memcached's documentation
/// states. (With OpenSSL, memcached counts tickets instead in TLS 1.3, and in TLS 1.2 with
/// tickets.)
#[test]
fn new_sessions_are_counted_once_and_resumed_ones_are_not() {
    let ours = Secure::start("new-sessions", &[], "ssl_session_cache");
    let theirs = Secure::memcached("new-sessions", "ssl_session_cache");
    let without_tickets = &["-tls1_2", "-no_ticket"][..];
    let all = [without_tickets, &["-tls1_2"], &["-tls1_3"], &["-tls1_3", "-no_ticket"]];
    for (secure, versions) in [(&theirs, &[without_tickets][..]), (&ours, &all)] {
        for version in versions {
            // The request for the statistics also starts a session.
            let sessions_now = || count(secure, "ssl_new_sessions");
            let (first, mut before) = (sessions_now(), sessions_now());
            let asked = before - first;
            for (session, kind, sessions) in
                [("-sess_out", "New", 1), ("-sess_in", "Reused", 0), ("-sess_in", "Reused", 0)]
            {
                let options = [version, &[session, "session"][..]].concat();
                let (good, said) = s_client(secure, &options, "mn\r\nquit\r\n");
                assert!(good && said.contains(&format!("{kind}, TLS")), "{said}");
                let now = sessions_now();
                assert_eq!(now - before - asked, sessions, "{version:?} {session}");
                before = now;
            }
        }
    }
}

#[test]
fn a_slow_handshake_times_out_and_blocks_no_other_client() {
    let secure = Secure::start("slow", &["-l", "notls:127.0.0.1"], "ssl_handshake_timeout=4");
    let port = secure.server.port();
    // Create the client hello without a connection, because the server would count a connection
    // that closes as an error.
    let name = ServerName::try_from("cache.test").unwrap();
    let mut conn = ClientConnection::new(Arc::new(secure.client_config()), name).unwrap();
    let mut hello = Vec::new();
    conn.write_tls(&mut hello).unwrap();
    let before = count(&secure, "ssl_handshake_errors");
    let slow: Vec<TcpStream> = [0, 1, 5, 50, hello.len()]
        .map(|len| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&hello[..len]).unwrap();
            stream
        })
        .into();
    let mut good = secure.connect();
    assert_eq!(ask_once(&mut good).unwrap(), "MN\r\n");
    for mut stream in slow {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The reply to the complete hello arrives before the end of the stream.
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    assert_eq!(ask_once(&mut good).unwrap(), "MN\r\n", "it has had its handshake");
    assert_eq!(count(&secure, "ssl_handshake_errors"), before + 5);
    let plain = TcpStream::connect(("127.0.0.1", secure.ports()[1])).unwrap();
    assert_eq!(talk(plain, b"mn\r\n"), "MN\r\n");
}

#[test]
fn invalid_input_closes_only_its_own_connection() {
    let secure = Secure::start("noise", &[], "");
    let mut good = secure.connect();
    assert_eq!(ask_once(&mut good).unwrap(), "MN\r\n");
    let before = count(&secure, "ssl_handshake_errors");
    let mut huge = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff".to_vec();
    huge.resize(1 << 20, 7);
    let noise: Vec<u8> =
        (0u32..100_000).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let noises = [&b"get a\r\n"[..], b"\x16\x03\x01", &[0; 70_000], &[0xff; 70_000], &huge, &noise];
    for noise in noises {
        let stream = TcpStream::connect(("127.0.0.1", secure.server.port())).unwrap();
        assert!(!talk(stream, noise).contains("END"));
    }
    assert_eq!(ask_once(&mut good).unwrap(), "MN\r\n");
    assert_eq!(count(&secure, "ssl_handshake_errors"), before + 6);
    // Errors after the handshake are counted separately.
    good.sock.write_all(b"\x17\x03\x03\x00\x20").unwrap();
    good.sock.write_all(&[9; 32]).unwrap();
    assert!(good.read(&mut [0; 1]).is_err(), "an alert");
    assert_eq!(count(&secure, "ssl_proto_errors"), 1);
}

#[test]
fn settings_contain_the_tls_options() {
    let secure = Secure::start("stats", &[], "ssl_verify_mode=2,ssl_ca_cert=ca.pem");
    let plain = Server::larderd(&["-t", "1"]);
    let ask = |page: &[u8]| String::from_utf8(plain.ask(page)).unwrap();
    assert!(!ask(b"stats\r\n").contains("ssl_"));
    assert_eq!(stat(&ask(b"stats settings\r\n"), "ssl_enabled"), "no");
    assert_eq!(ask(b"refresh_certs\r\n"), "Error TLS not enabled\r\n");
    let identity = secure.authority.issue();
    let config = client_config(&secure.authority, rustls::ALL_VERSIONS, Some(&identity));
    let mut client = connect(secure.server.port(), &Arc::new(config));
    client.write_all(b"stats\r\nstats settings\r\nquit\r\n").unwrap();
    let mut page = String::new();
    client.read_to_string(&mut page).unwrap();
    for (name, value) in [
        ("ssl_proto_errors", "0"),
        ("ssl_enabled", "yes"),
        ("ssl_chain_cert", "chain.pem"),
        ("ssl_key", "key.pem"),
        ("ssl_verify_mode", "3"),
        ("ssl_ca_cert", "ca.pem"),
    ] {
        assert_eq!(stat(&page, name), value, "{name}");
    }
    assert!(stat(&page, "time_since_server_cert_refresh").parse::<u64>().unwrap() < 600);
}

#[test]
fn invalid_tls_files_are_reported_at_the_start() {
    let scratch = Scratch::new("tls-refused");
    let authority = Authority::new();
    let (one, other) = (authority.issue(), authority.issue());
    let chain = scratch.file("chain.pem", &one.chain);
    let key = scratch.file("key.pem", &one.key);
    let wrong = scratch.file("wrong.pem", &other.key);
    let junk = scratch.file("junk.pem", "junk");
    let encrypted = one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let encrypted = scratch.file("encrypted.pem", &encrypted);
    let trusted = one.chain.replace("CERTIFICATE", "TRUSTED CERTIFICATE");
    let trusted = scratch.file("trusted.pem", &trusted);
    let cut = scratch.file("cut.pem", &one.chain[..one.chain.len() / 3]);
    let none = scratch.path("none.pem").display().to_string();
    let pair = format!("ssl_chain_cert={chain},ssl_key={key}");
    for (list, said) in [
        (String::new(), "ssl_chain_cert"),
        (format!("ssl_chain_cert={none},ssl_key={key}"), none.as_str()),
        (format!("ssl_chain_cert={junk},ssl_key={key}"), &junk),
        (format!("ssl_chain_cert={chain},ssl_key={none}"), &none),
        (format!("ssl_chain_cert={chain},ssl_key={junk}"), &junk),
        (format!("ssl_chain_cert={chain},ssl_key={wrong}"), &wrong),
        (format!("ssl_chain_cert={chain}"), &chain),
        (format!("{pair},ssl_ca_cert={junk}"), &junk),
        (format!("{pair},ssl_verify_mode=2"), "ssl_ca_cert"),
        (format!("ssl_chain_cert={chain},ssl_key={chain}"), "no private key in PEM form"),
        (format!("ssl_chain_cert={key},ssl_key={key}"), "no certificate in PEM form"),
        (format!("ssl_chain_cert={chain},ssl_key={encrypted}"), "decrypt it"),
        (format!("ssl_chain_cert={encrypted},ssl_key={key}"), "no certificate in PEM form"),
        (format!("ssl_chain_cert={trusted},ssl_key={key}"), "openssl x509"),
        (format!("ssl_chain_cert={cut},ssl_key={key}"), "-----END CERTIFICATE----- is missing"),
    ] {
        let output = larderd(&["-p", "-1", "-l", "127.0.0.1", "-Z", "-o", &list]);
        assert_eq!(output.status.code(), Some(64), "{list}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{list}: {}", stderr(&output));
    }
    for options in [
        &["-l", "mtls:127.0.0.1", "-Z", "-o", &pair][..],
        &["-l", "mtls:127.0.0.1"],
        &["-l", "127.0.0.1", "-Z", "-o", &pair, "-p", "0"],
    ] {
        let output = larderd(&[&["-p", "-1"], options].concat());
        assert_eq!(output.status.code(), Some(64), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn a_key_can_be_in_the_chain_file_or_in_der() {
    let authority = Authority::new();
    let identity = authority.issue();
    // Windows editors write a byte-order mark at the start of the file.
    let both = format!("\u{feff}{}{}", identity.chain, identity.key);
    let der = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    for (name, list) in [
        ("both", "ssl_chain_cert=both.pem"),
        ("der", "ssl_chain_cert=both.pem,ssl_key=key.der,ssl_keyformat=DER"),
    ] {
        let scratch = Scratch::new(&format!("tls-{name}"));
        scratch.file("both.pem", &both);
        std::fs::write(scratch.path("key.der"), der.secret_der()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
        command.current_dir(scratch.path(""));
        command.args(["-l", "127.0.0.1", "-p", "-1", "-t", "1", "-Z", "-o", list]);
        let server = Server::spawn(scratch, &mut command);
        let config = client_config(&authority, rustls::ALL_VERSIONS, None);
        assert!(is_served(server.port(), &config), "{}", server.said());
    }
}
