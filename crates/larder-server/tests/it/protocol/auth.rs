//! Logins. Some tests send the same bytes to larderd and to Debian's memcached.

use crate::common::{Scratch, Server, TIMEOUT, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

const PASSWORDS: &str = "ann:first\nbob:seco:nd\r\neve:pass word";
const REFUSED: &str = "CLIENT_ERROR authentication failure\r\n";
const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";

/// Returns a login request in the text protocol.
fn login(user: &str, password: &str) -> String {
    format!("set any 0 0 {}\r\n{user} {password}\r\n", user.len() + 1 + password.len())
}

/// A connection where each reply is one line.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn new(server: &Server) -> Self {
        Self(BufReader::new(server.connect()))
    }

    fn ask(&mut self, request: &[u8]) -> String {
        // The server may have closed the connection.
        let _ = self.0.get_mut().write_all(request);
        let mut line = String::new();
        let _ = self.0.read_line(&mut line);
        line
    }

    fn log_in(&mut self, user: &str, password: &str) -> String {
        self.ask(login(user, password).as_bytes())
    }
}

/// Returns a binary request.
fn packet(op: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = [extras, key, value].concat();
    let mut packet = vec![0x80, op];
    packet.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
    packet.extend([u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    packet.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    [packet, body].concat()
}

const NOOP: u8 = 0x0a;
const LIST: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;

fn plain(op: u8, message: &[u8]) -> Vec<u8> {
    packet(op, &[], b"PLAIN", message)
}

/// Returns the statuses of the replies to binary requests, and whether the server closed the
/// connection.
fn statuses(server: &Server, requests: &[Vec<u8>]) -> (Vec<u16>, bool) {
    let mut stream = server.connect();
    let (mut statuses, mut closed) = (Vec::new(), false);
    for request in requests {
        // The server may have closed the connection after the previous request.
        let _ = stream.write_all(request);
        let Ok(status) = answer(&mut stream) else {
            closed = true;
            break;
        };
        statuses.push(status);
    }
    (statuses, closed)
}

fn answer(stream: &mut impl Read) -> io::Result<u16> {
    let mut head = [0; 24];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize;
    stream.read_exact(&mut vec![0; len])?;
    Ok(u16::from_be_bytes([head[6], head[7]]))
}

fn stat(page: &str, name: &str) -> String {
    let value = |line: &str| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned);
    page.lines().find_map(value).unwrap_or_default()
}

#[test]
fn invalid_login_options_prevent_the_start() {
    let scratch = Scratch::new("refusals");
    let good = scratch.file("good", PASSWORDS);
    let broken = scratch.file("broken", "ann:first\nhush\n");
    let folder = scratch.path("").display().to_string();
    // Each case has the options, the exit status, the message, and whether memcached exits with the
    // same status.
    let cases: [(&[&str], i32, &str, bool); 13] = [
        (&["-Y", "/nonexistent/file"], 1, "Could not open authfile [/nonexistent/file]", true),
        (&["--auth-file", &folder], 1, "Could not open authfile", false),
        (&["-Y", &broken], 1, "malformed entry. Should be 'user:password' (line 2", true),
        (&["-S"], 1, "MEMCACHED_SASL_PWDB", false),
        (&["-S", "--sasl-pwdb", "/nonexistent/file"], 1, "Could not open authfile", false),
        (&["--sasl-pwdb", &good], 64, "give -S, too", false),
        (&["-Y", &good, "-B", "binary"], 64, "BINARY protocol", true),
        (&["-Y", &good, "-U", "11211"], 64, "Cannot use UDP with ascii authentication", true),
        (&["-Y", &good, "-B", "auto"], 64, "BINARY protocol", true),
        (&["-S", "-B", "ascii"], 64, "ASCII protocol while using SASL", true),
        (&["-S", "-B", "auto"], 64, "ASCII protocol while using SASL", true),
        (&["-S", "-Y", &good, "-B", "binary"], 64, "BINARY protocol", true),
        (&["-S", "-U", "11211"], 64, "Cannot enable UDP while using binary SASL", true),
    ];
    let run = |program: &str, options: &[&str]| {
        let mut command = Command::new(program);
        command.args(["-u", "root", "-l", "127.0.0.1", "-p", "-1"]).args(options);
        command.env_remove("MEMCACHED_SASL_PWDB").output()
    };
    for (options, status, says, same) in cases {
        let output = run(env!("CARGO_BIN_EXE_larderd"), options).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{options:?}: {said}");
        assert!(said.contains(says) && !said.contains("hush"), "{options:?}: {said}");
        if let Some(memcached) = same.then(|| run("memcached", options).ok()).flatten() {
            assert_eq!(memcached.status.code(), Some(status), "memcached {options:?}");
        }
    }
}

#[test]
fn a_text_login_applies_to_one_connection() {
    let scratch = Scratch::new("text");
    let file = scratch.file("passwords", PASSWORDS);
    let server = Server::larderd(&["-t", "2", "-Y", &file]);
    let (mut ann, mut other) = (Lines::new(&server), Lines::new(&server));
    assert_eq!(ann.ask(b"get secret\r\n"), UNAUTHENTICATED);
    assert_eq!(ann.log_in("ann", "second"), REFUSED);
    assert_eq!(ann.log_in("ann", "first"), "STORED\r\n");
    assert_eq!(ann.ask(b"set secret 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(other.ask(b"get secret\r\n"), UNAUTHENTICATED);
    for (user, password) in [("bob", "seco:nd"), ("eve", "pass word")] {
        assert_eq!(Lines::new(&server).log_in(user, password), "STORED\r\n");
    }
    let input = [&login("ann", "first"), "get any secret\r\nstats\r\nstats settings\r\n"].concat();
    let page = String::from_utf8(server.ask(input.as_bytes())).unwrap();
    assert!(page.starts_with("STORED\r\nVALUE secret 0 1\r\nx\r\nEND\r\n"), "{page}");
    assert_eq!(
        (stat(&page, "auth_cmds").as_str(), stat(&page, "auth_errors").as_str()),
        ("5", "1")
    );
    assert_eq!(stat(&page, "auth_enabled_ascii"), file);
    assert_eq!(stat(&page, "auth_enabled_sasl"), "no");
    assert_eq!(stat(&page, "binding_protocol"), "ascii");
}

#[test]
fn sasl_takes_either_file_and_no_text() {
    let scratch = Scratch::new("sasl");
    let file = scratch.file("passwords", PASSWORDS);
    let by_option = Server::larderd(&["-t", "1", "-S", "--sasl-pwdb", &file]);
    let by_variable =
        Server::larderd_with(&["-t", "1", "--enable-sasl"], &[("MEMCACHED_SASL_PWDB", &file)]);
    for server in [by_option, by_variable] {
        let noop = || packet(NOOP, &[], &[], &[]);
        let good = plain(AUTH, b"\0eve\0pass word");
        assert_eq!(statuses(&server, &[good.clone(), noop()]), (vec![0, 0], false));
        let bad = plain(AUTH, b"\0eve\0first");
        assert_eq!(statuses(&server, &[bad, noop(), noop()]), (vec![0x20, 0x20], true));
        assert_eq!(server.ask(login("ann", "first").as_bytes(),), b"");
        let mut stream = server.connect();
        stream.write_all(&[good, packet(0x10, &[], b"settings", &[]), noop()].concat()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut page = Vec::new();
        stream.read_to_end(&mut page).unwrap();
        let page = page.escape_ascii().to_string();
        for shown in ["auth_enabled_saslyes", "auth_enabled_asciino", "binding_protocolbinary"] {
            assert!(page.contains(shown), "{shown}");
        }
    }
}

#[test]
fn both_kinds_of_logins_behave_like_in_memcached() {
    let scratch = Scratch::new("both");
    let file = scratch.file("passwords", PASSWORDS);
    let options = ["-t", "1", "-S", "-Y", &file];
    let larderd = Server::larderd(&options);
    scratch.file("memcached.conf", "mech_list: plain\n");
    let folder = scratch.path("").display().to_string();
    let environment = [("SASL_CONF_PATH", folder.as_str())];
    let memcached = Server::memcached_with(&options, &environment);
    let memcached = memcached.expect("memcached; scripts/test installs it");
    let requests = [
        plain(AUTH, b"\0ann\0first"),
        b"get abc\r\n".to_vec(),
        [login("ann", "first").as_bytes(), b"get any\r\n"].concat(),
    ];
    for request in requests {
        let [ours, theirs] = [&larderd, &memcached].map(|server| server.ask(&request));
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string());
    }
    let settings = |server: &Server| {
        let asks = [login("ann", "first").as_bytes(), b"stats settings\r\n"].concat();
        let page = String::from_utf8(server.ask(&asks)).unwrap();
        ["auth_enabled_sasl", "auth_enabled_ascii", "binding_protocol"]
            .map(|name| stat(&page, name))
    };
    assert_eq!(settings(&larderd), settings(&memcached));
}

#[test]
fn b_restricts_the_dialect() {
    let noop = packet(NOOP, &[], &[], &[]);
    let text = Server::larderd(&["-t", "1", "-B", "ascii"]);
    assert_eq!(text.ask(b"mn\r\n"), b"MN\r\n");
    assert!(text.ask(&noop).starts_with(b"CLIENT_ERROR"));
    let binary = Server::larderd(&["-t", "1", "--protocol=binary"]);
    assert_eq!(statuses(&binary, &[noop]), (vec![0], false));
    assert_eq!(binary.ask(b"mn\r\n"), b"");
}

/// SIGHUP also reloads the file of `-S`. `refresh_certs` reloads no passwords.
#[test]
fn sighup_reloads_the_sasl_passwords() {
    let scratch = Scratch::new("reload-sasl");
    let file = scratch.file("passwords", "ann:first\n");
    let server = Server::larderd(&["-t", "1", "-S", "--sasl-pwdb", &file]);
    let log_in = |password: &str| {
        let message = format!("\0ann\0{password}");
        format!("{:?}", statuses(&server, &[plain(AUTH, message.as_bytes())]).0)
    };
    assert_eq!(log_in("first"), "[0]");
    scratch.file("passwords", "ann:second\n");
    assert_eq!(log_in("first"), "[0]", "not asked to read it yet");
    server.signal(Signal::SIGHUP);
    until("[0]", || log_in("second"));
    assert_eq!(log_in("first"), "[32]");
}

/// Repeats a request until it gets the expected reply, because a signal takes effect with a delay.
fn until(expected: &str, mut ask: impl FnMut() -> String) {
    wait_for(expected, || ask() == expected);
}

#[test]
fn sighup_reloads_the_password_file_and_ignores_an_invalid_one() {
    let scratch = Scratch::new("reload");
    let file = scratch.file("passwords", "ann:first\n");
    let server = Server::larderd(&["-t", "1", "-Y", &file]);
    let log_in = |password: &str| Lines::new(&server).log_in("ann", password);
    let mut before = Lines::new(&server);
    assert_eq!(before.log_in("ann", "first"), "STORED\r\n");
    scratch.file("passwords", "ann:second\nsignal:1\n");
    assert_eq!(log_in("first"), "STORED\r\n", "not asked to read it yet");
    server.signal(Signal::SIGHUP);
    until("STORED\r\n", || log_in("second"));
    assert_eq!(log_in("first"), REFUSED);
    assert_eq!(before.ask(b"mn\r\n"), "MN\r\n", "an authenticated connection stays authenticated");
    scratch.file("passwords", "broken\n");
    server.signal(Signal::SIGHUP);
    wait_for("refusal", || server.said().contains("malformed entry"));
    assert_eq!(log_in("second"), "STORED\r\n");
    fs::remove_file(&file).unwrap();
    server.signal(Signal::SIGHUP);
    wait_for("second refusal", || server.said().contains("Could not open authfile"));
    assert_eq!(log_in("second"), "STORED\r\n");
    scratch.file("passwords", "ann:third\n");
    server.signal(Signal::SIGHUP);
    until("STORED\r\n", || log_in("third"));
    assert_eq!(log_in("second"), REFUSED);
}

#[test]
fn passwords_appear_neither_in_the_log_nor_for_watchers() {
    let scratch = Scratch::new("log");
    let file = scratch.file("passwords", "ann:sesame-right\nanother:sesame-other\n");
    let socket = scratch.path("socket");
    let mut larderd = Command::new(env!("CARGO_BIN_EXE_larderd"))
        .args(["-vvv", "-t", "1", "-Y", &file, "-s", socket.to_str().unwrap()])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut watcher = connect(&socket);
    write!(watcher, "{}watch connevents mutations fetchers\r\n", login("ann", "sesame-right"))
        .unwrap();
    let mut shown = BufReader::new(watcher);
    let mut line = String::new();
    shown.read_line(&mut line).and_then(|_| shown.read_line(&mut line)).unwrap();
    assert_eq!(line, "STORED\r\nOK\r\n");
    for password in ["sesame-wrong", "sesame-right"] {
        let mut stream = connect(&socket);
        write!(stream, "{}get seen\r\n", login("ann", password)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
    }
    scratch.file("passwords", "ann:sesame-new\nsesame-broken\n");
    let pid = Pid::from_raw(larderd.id().try_into().unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    line.clear();
    while !line.contains("key=seen") {
        assert!(shown.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let (mut log, mut out) = (String::new(), String::new());
    let mut stderr = BufReader::new(larderd.stderr.take().unwrap());
    while !log.contains("malformed entry") {
        assert!(stderr.read_line(&mut log).unwrap() > 0, "the log is there: {log}");
    }
    kill(pid, Signal::SIGTERM).unwrap();
    stderr.read_to_string(&mut log).unwrap();
    larderd.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    larderd.wait().unwrap();
    let _ = shown.read_to_string(&mut line);
    for said in [&log, &out, &line] {
        assert!(!said.contains("sesame"), "{said}");
    }
}

fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    wait_for("socket", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends only requests that memcached 1.6.18 and 1.6.45 parse in the same way. 1.6.18 answers lines
/// shorter than six bytes, while 1.6.45 closes the connection. 1.6.18 also ends a password at a
/// space, and accepts leading spaces and lines of any length. Each request waits for the previous
/// reply, because memcached would otherwise lose that reply.
#[test]
fn text_logins_get_the_replies_of_memcached() {
    let scratch = Scratch::new("same-text");
    let file = scratch.file("passwords", PASSWORDS);
    let larderd = Server::larderd(&["-t", "1", "-Y", &file]);
    let Some(memcached) = Server::memcached(&["-t", "1", "-Y", &file]) else {
        return;
    };
    let requests: [&[u8]; 27] = [
        b"get abc\r\n",
        b"gets abc\r\n",
        b"version\r\n",
        b"stats\r\n",
        b"flush_all\r\n",
        b"shutdown\r\n",
        b"watch fetchers\r\n",
        b"add abc 0 0 1\r\n",
        b"mg abc v\r\n",
        b"\x80\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n",
        b"SET abc 0 0 9\r\n",
        b"set abc 0 0\r\n",
        b"set abc 0 0 x\r\n",
        b"set abc 0 0 -1\r\n",
        b"set abc 0 0 9x\r\n",
        b"set abc 0 0 9\r\nann firstxx",
        b"set abc 0 0 5\r\nfirst\r\n",
        b"set abc 0 0 0\r\n\r\n",
        b"set abc 0 0 8\r\nann firs\r\n",
        b"set abc 0 0 10\r\nann first1\r\n",
        b"set abc 0 0 9\r\nbob first\r\n",
        b"set abc 0 0 9\r\nANN first\r\n",
        b"set abc 0 0 8\r\nbob seco\r\n",
        b"set k flags ttl 9 noreply\r\nann first\r\n",
        b"mg abc v\r\n",
        b"set abc 0 0 9\r\nann firs2\r\n",
        b"get ABC\r\n",
    ];
    let [mut ours, mut theirs] = [&larderd, &memcached].map(Lines::new);
    for request in requests {
        let shown = request.escape_ascii();
        assert_eq!(ours.ask(request), theirs.ask(request), "{shown}");
    }
    let mut whole = login("bob", "seco:nd").into_bytes();
    whole.extend_from_slice(b"mn\r\n");
    assert_eq!(larderd.ask(&whole), memcached.ask(&whole));
    let counts = |server: &Server| {
        let page = server.ask(&[login("bob", "seco:nd").as_bytes(), b"stats\r\n"].concat());
        let page = String::from_utf8(page).unwrap();
        (stat(&page, "auth_cmds"), stat(&page, "auth_errors"))
    };
    assert_eq!(counts(&larderd), counts(&memcached));
}

/// Starts a fake saslauthd for Debian's memcached. A request consists of four length-prefixed
/// strings. The reply is `OK` or `NO`.
fn answer_for_saslauthd(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut word = || -> io::Result<Vec<u8>> {
                let mut len = [0; 2];
                stream.read_exact(&mut len)?;
                let mut word = vec![0; u16::from_be_bytes(len).into()];
                stream.read_exact(&mut word)?;
                Ok(word)
            };
            let words: Vec<_> = (0..4).map_while(|_| word().ok()).collect();
            let right = words.len() == 4 && words[0] == b"ann" && words[1] == b"first";
            let _ = stream.write_all(if right { b"\0\x02OK" } else { b"\0\x02NO" });
        }
    });
}

#[test]
fn sasl_logins_are_answered_as_memcached_does() {
    let scratch = Scratch::new("same-sasl");
    let file = scratch.file("passwords", PASSWORDS);
    answer_for_saslauthd(&scratch.path("mux"));
    let folder = scratch.path("").display().to_string();
    let settings =
        format!("mech_list: plain\npwcheck_method: saslauthd\nsaslauthd_path: {folder}/mux\n");
    scratch.file("memcached.conf", &settings);
    let environment = [("SASL_CONF_PATH", folder.as_str())];
    let Some(memcached) = Server::memcached_with(&["-t", "1", "-S"], &environment) else {
        return;
    };
    let larderd = Server::larderd(&["-t", "1", "-S", "--sasl-pwdb", &file]);
    let list = || packet(LIST, &[], &[], &[]);
    let noop = || packet(NOOP, &[], &[], &[]);
    let good = || plain(AUTH, b"\0ann\0first");
    let bad = || plain(AUTH, b"\0ann\0second");
    let begin = || plain(AUTH, b"");
    let step = |message| plain(STEP, message);
    let named = |op, name| packet(op, &[], name, b"\0ann\0first");
    let conversations = [
        vec![list(), list()],
        vec![noop(), noop()],
        vec![packet(0x0b, &[], &[], &[]), noop(), noop()],
        vec![packet(0x00, &[], b"key", &[]), list()],
        vec![packet(0x11, &[0; 8], b"key", b"value"), list()],
        vec![packet(0x07, &[], &[], &[]), list()],
        vec![packet(0x55, &[], &[], &[]), list()],
        vec![good(), noop(), packet(0x55, &[], &[], &[]), noop()],
        vec![bad(), good(), noop()],
        vec![bad(), noop(), noop()],
        vec![begin(), step(b"\0ann\0first"), noop()],
        vec![begin(), step(b"\0ann\0second"), step(b"\0ann\0first"), noop()],
        vec![begin(), begin(), step(b"\0ann\0first"), noop()],
        vec![begin(), list(), step(b"\0ann\0first"), noop()],
        vec![begin(), noop(), noop()],
        vec![begin(), bad(), step(b"\0ann\0first"), noop(), noop()],
        vec![begin(), step(b""), list()],
        vec![begin(), named(STEP, b"OTHER"), noop()],
        vec![step(b"\0ann\0first"), list()],
        vec![bad(), step(b"\0ann\0first"), noop(), noop()],
        vec![good(), good(), noop(), noop()],
        vec![good(), step(b"\0ann\0first"), noop(), noop()],
        vec![good(), list(), noop(), noop()],
        vec![good(), list(), good(), noop(), noop()],
        vec![plain(AUTH, b"ann\0ann\0first"), noop()],
        vec![plain(AUTH, b"bob\0ann\0first"), list()],
        vec![plain(AUTH, b"\0ann\0first\0"), list()],
        vec![plain(AUTH, b"\0ann\0first\0more"), list()],
        vec![plain(AUTH, b"\0ann"), list()],
        vec![plain(AUTH, b"\0ann\0"), list()],
        vec![plain(AUTH, b"\0\0first"), list()],
        vec![named(AUTH, b"plain"), noop()],
        vec![named(AUTH, b"OTHER"), list()],
        vec![named(AUTH, b"OTHER PLAIN"), list()],
        vec![named(AUTH, &[b'X'; 33]), good(), noop()],
        vec![named(AUTH, &[b'X'; 251]), list()],
        vec![named(AUTH, b""), list()],
        vec![packet(AUTH, &[0; 4], b"PLAIN", b"\0ann\0first"), list()],
        vec![packet(LIST, &[], b"key", &[]), list()],
        vec![packet(LIST, &[], &[], b"value"), list()],
    ];
    for requests in conversations {
        let shown = requests.concat();
        let [ours, theirs] = [&larderd, &memcached].map(|server| statuses(server, &requests));
        assert_eq!(ours, theirs, "{}", shown.escape_ascii());
        let [ours, theirs] = [&larderd, &memcached].map(|server| server.ask(&shown));
        let ours = ours.escape_ascii().to_string().replace("1.6.45", "1.6.18");
        assert_eq!(ours, theirs.escape_ascii().to_string(), "{}", shown.escape_ascii());
    }
}
