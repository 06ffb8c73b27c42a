//! The daemon, the service manager, privileges, and stopping.

use crate::common::{Scratch, Server, TIMEOUT, larderd, of_process, stderr, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, getsid};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// A background process. Dropping it kills the process.
struct Background(Pid);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// Returns whether a process that is not a child of this process has exited. A zombie counts as
/// exited, because the first process of a container may not wait for its children.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

#[test]
fn a_daemon_leaves_its_terminal_and_its_directory() {
    let scratch = Scratch::new("daemon");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    // The path of `-P` is relative to the working directory.
    command.args(["-d", "-l", "127.0.0.1", "-p", "-1", "-t", "1", "-P", "larderd.pid"]);
    command.current_dir(scratch.path("")).env("MEMCACHED_PORT_FILENAME", scratch.path("ports"));
    let started = command.output().unwrap();
    assert!(started.status.success(), "{}", stderr(&started));
    // When the command returns, the server has bound its port.
    let ports = scratch.read("ports");
    let port: u16 = ports.trim().rsplit(' ').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    wait_for("pid file", || scratch.path("larderd.pid").exists());
    let text = scratch.read("larderd.pid");
    let pid = Pid::from_raw(text.strip_suffix('\n').unwrap().parse().unwrap());
    let background = Background(pid);
    stream.write_all(b"stats\r\n").unwrap();
    let mut answer = [0; 40];
    stream.read_exact(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).starts_with(&format!("STAT pid {pid}\r\n")));
    assert_eq!(getsid(Some(pid)).unwrap(), pid, "a session of its own");
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    kill(pid, Signal::SIGTERM).unwrap();
    wait_for("end of the pid file", || !scratch.path("larderd.pid").exists());
    wait_for("end", || has_ended(pid));
    std::mem::forget(background);
}

/// If the daemon wrote its image to another directory, the next start would not remove that image,
/// and a later start could restore deleted items from it.
#[test]
fn a_daemon_writes_its_image_where_it_was_started() {
    let scratch = Scratch::new("daemon-image");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-d", "-l", "127.0.0.1", "-p", "-1", "-t", "1", "-P", "larderd.pid"]);
    command.args(["-e", "region", "-o", "memory_image=image"]).current_dir(scratch.path(""));
    let started = command.output().unwrap();
    assert!(started.status.success(), "{}", stderr(&started));
    wait_for("pid file", || scratch.path("larderd.pid").exists());
    let pid = Pid::from_raw(scratch.read("larderd.pid").trim().parse().unwrap());
    let background = Background(pid);
    kill(pid, Signal::SIGUSR1).unwrap();
    wait_for("end", || has_ended(pid));
    assert!(scratch.path("image").exists());
    std::mem::forget(background);
}

/// Only root can replace the daemon's `/dev/log` by a socket of the test.
#[test]
fn a_daemon_logs_to_the_system_log() {
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !may_mount.is_ok_and(|done| done.status.success()) {
        return;
    }
    let scratch = Scratch::new("syslog");
    std::fs::create_dir(scratch.path("dev")).unwrap();
    scratch.file("dev/null", "");
    let log = UnixDatagram::bind(scratch.path("dev/log")).unwrap();
    log.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mounts =
        "mount --bind /dev/null \"$1/null\" && mount --rbind \"$1\" /dev && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mounts, "sh"]).arg(scratch.path("dev"));
    command.arg(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-d", "-l", "127.0.0.1", "-p", "-1", "-t", "1", "-P", "larderd.pid"]);
    let started = command.current_dir(scratch.path("")).output().unwrap();
    assert!(started.status.success(), "{}", stderr(&started));
    wait_for("pid file", || scratch.path("larderd.pid").exists());
    let pid = Pid::from_raw(scratch.read("larderd.pid").trim().parse().unwrap());
    let background = Background(pid);
    kill(pid, Signal::SIGUSR1).unwrap();
    let wanted = format!("larderd[{pid}]: Gracefully stopping");
    let mut line = [0; 1000];
    loop {
        // Other warnings may come first.
        let len = log.recv(&mut line).expect("a line of the log");
        let line = String::from_utf8_lossy(&line[..len]);
        // Facility 3, severity 4: a warning of a daemon.
        assert!(line.starts_with("<28>"), "{line}");
        if line.contains(&wanted) {
            break;
        }
    }
    wait_for("end", || has_ended(pid));
    std::mem::forget(background);
}

#[test]
fn a_failed_daemon_start_returns_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = larderd(&["-d", "-l", "127.0.0.1", "-p", &port]);
    assert_eq!(output.status.code(), Some(71));
    assert!(stderr(&output).contains("failed to listen on TCP port"), "{}", stderr(&output));
}

#[test]
fn a_pid_file_is_replaced_and_removed() {
    let scratch = Scratch::new("pid-file");
    let path = scratch.file("pid", "2147483646\n");
    let mut server = Server::larderd(&["-P", &path]);
    wait_for("pid file", || scratch.read("pid") == format!("{}\n", server.child.id()));
    assert!(!server.said().contains("(running) pid"), "{}", server.said());
    let second = Server::larderd(&["-P", &path]);
    wait_for("second pid file", || scratch.read("pid") == format!("{}\n", second.child.id()));
    let warned = format!("contained the following (running) pid: {}", server.child.id());
    assert!(second.said().contains(&warned), "{}", second.said());
    drop(second);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
    assert!(!scratch.path("pid").exists());
}

#[test]
fn an_unwritable_pid_file_does_not_prevent_the_start() {
    let server = Server::larderd(&["-P", "/nowhere/larderd.pid"]);
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    let said = server.said();
    assert!(
        said.contains("Could not open the pid file /nowhere/larderd.pid for writing"),
        "{said}"
    );
}

#[test]
fn huge_pages_are_used_or_a_warning_is_logged() {
    let server = Server::larderd(&["-L", "-m", "64"]);
    assert_eq!(server.ask_text("set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    let mappings = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid())).unwrap();
    let flags = |line: &str| line.strip_prefix("VmFlags:").map(str::to_owned);
    let huge = mappings.lines().filter_map(flags).any(|flags| flags.split(' ').any(|f| f == "hg"));
    assert_ne!(huge, server.said().contains("no huge pages"), "{}", server.said());
}

/// Only root can switch to another user.
#[test]
fn root_becomes_another_user_with_that_users_groups() {
    if !geteuid().is_root() {
        return;
    }
    let server = Server::larderd(&["-u", "nobody"]);
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    let ids = |name| of_process(server.pid(), "status", name);
    let root = |ids: String| ids.split_whitespace().any(|id| id == "0");
    assert!(!root(ids("Uid:")) && !root(ids("Gid:")) && !root(ids("Groups:")));
    assert_eq!(ids("CapEff:").trim_start_matches('0'), "");
}

/// The socket belongs to the `-u` user's group, so the `-a` mode can give this group access.
#[test]
fn a_unix_socket_belongs_to_the_user_of_u() {
    if !geteuid().is_root() {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let scratch = Scratch::new("owned");
    let path = scratch.path("socket");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
    command.args(["-u", "nobody", "-a", "660", "-t", "1", "-s"]).arg(&path);
    let _server = Server::spawn(scratch, &mut command);
    let owner = (nobody.uid.as_raw(), nobody.gid.as_raw(), 0o660);
    // Wait, because the socket accepts connections before its owner is set.
    wait_for("owner", || {
        let meta = std::fs::metadata(&path).ok();
        meta.is_some_and(|meta| (meta.uid(), meta.gid(), meta.mode() & 0o777) == owner)
    });
}

#[test]
fn the_core_file_limit_is_raised_to_the_maximum() {
    let shell = "ulimit -S -c 0; exec \"$0\" -r -l 127.0.0.1 -p -1 -t 1";
    let mut command = Command::new("sh");
    command.args(["-c", shell, env!("CARGO_BIN_EXE_larderd")]);
    let server = Server::spawn(Scratch::new("core"), &mut command);
    // The shell sets the soft limit to 0. Compare it with the hard limit, which may also be 0 on
    // this machine.
    wait_for("core limit", || {
        let limits = of_process(server.pid(), "limits", "Max core file size");
        let limits: Vec<&str> = limits.split_whitespace().collect();
        limits[0] == limits[1]
    });
}

/// Returns whether a process may lock any amount of memory. Root may do so, except in some
/// containers.
fn may_lock_memory(pid: Pid) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let capabilities = of_process(pid, "status", "CapEff:");
    u64::from_str_radix(&capabilities, 16).unwrap() >> CAP_IPC_LOCK & 1 == 1
}

#[test]
fn memory_is_locked_or_a_warning_is_logged() {
    let server = Server::larderd(&["-k", "-m", "16"]);
    assert_eq!(server.ask_text("set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    let locked = of_process(server.pid(), "status", "VmLck:");
    let resident = of_process(server.pid(), "status", "VmRSS:");
    let kib = |text: &str| text.trim_end_matches(" kB").parse::<u64>().unwrap();
    let said = server.said();
    if said.contains("-k invalid, mlockall() failed") {
        assert!(!may_lock_memory(server.pid()), "{said}");
    } else {
        assert!(kib(&locked) >= 16 << 10, "{locked}");
        // Locking does not allocate unused memory, so the process stays small.
        assert!(kib(&resident) < 48 << 10, "{resident}");
    }
}

/// A limit on locked memory must not stop the server when it switches to the user of `-u`.
#[test]
fn a_limit_of_locked_memory_is_only_a_warning() {
    if !geteuid().is_root() {
        return;
    }
    for (runtime, options, lost) in [
        ("per-core", &["-u", "nobody"][..], "-sys_resource"),
        ("tokio-multi-thread", &["-u", "nobody"], "-sys_resource"),
        ("per-core", &[], "-sys_resource"),
        ("per-core", &[], "-sys_resource,-ipc_lock"),
    ] {
        // Without `sys_resource`, even root cannot raise the limit again. The limit exceeds the
        // memory that the server uses at startup.
        let shell = format!(
            "ulimit -l 8388608; exec setpriv --bounding-set={lost} --inh-caps={lost} \
             \"$0\" -k -l 127.0.0.1 -p -1 -m 64 -t 2 \"$@\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &shell, env!("CARGO_BIN_EXE_larderd"), "--runtime", runtime]);
        command.args(options);
        let server = Server::spawn(Scratch::new("lock-limit"), &mut command);
        assert_eq!(server.ask_text("set a 0 0 1\r\n1\r\n"), "STORED\r\n");
        let is_root_throughout = options.is_empty() && may_lock_memory(server.pid());
        let warns = server.said().contains("-k invalid, mlockall() failed");
        assert_eq!(warns, !is_root_throughout, "{runtime} {options:?}: {}", server.said());
    }
}

#[test]
fn shutdown_must_be_enabled() {
    let refused = "SERVER_ERROR: shutdown not enabled\r\nMN\r\n";
    let mut server = Server::larderd(&[]);
    assert_eq!(server.ask_text("shutdown\r\nmn\r\n"), refused);
    assert_eq!(server.ask_text("shutdown graceful\r\nmn\r\n"), refused);
    assert!(server.child.try_wait().unwrap().is_none());
    let server = Server::larderd(&["-A"]);
    let invalid = "CLIENT_ERROR invalid shutdown mode\r\nMN\r\n";
    assert_eq!(server.ask_text("shutdown now\r\nmn\r\n"), invalid);
}

#[test]
fn shutdown_ends_the_server_without_a_reply() {
    for (name, command, graceful) in
        [("quick", "shutdown\r\n", false), ("graceful", "shutdown graceful\r\n", true)]
    {
        let mut server = Server::larderd(&["-A"]);
        let mut idle = server.connect();
        assert_eq!(server.ask_text(command), "", "{name}");
        assert_eq!(idle.read_to_end(&mut Vec::new()).unwrap_or(0), 0, "{name}");
        assert_eq!(server.ends().code(), Some(0), "{name}");
        assert_eq!(server.said().contains("Gracefully stopping"), graceful, "{name}");
    }
}

/// Sends half a value, requests a graceful stop, and waits until the server accepts no more
/// connections.
fn half_done() -> (Server, TcpStream) {
    let server = Server::larderd(&[]);
    let mut stream = server.connect();
    stream.write_all(b"mn\r\nset a 0 0 5\r\nab").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    server.signal(Signal::SIGUSR1);
    let port = server.port();
    wait_for("closed listener", || TcpStream::connect(("127.0.0.1", port)).is_err());
    (server, stream)
}

#[test]
fn a_graceful_stop_completes_open_requests() {
    let (mut server, mut stream) = half_done();
    assert!(server.child.try_wait().unwrap().is_none(), "it waits");
    stream.write_all(b"cde\r\nget a\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("STORED\r\n"), "{answer}");
    assert_eq!(server.ends().code(), Some(0));
}

#[test]
fn a_graceful_stop_sends_unsent_replies() {
    let mut server = Server::larderd(&[]);
    let value = "x".repeat(50_000);
    let mut stream = server.connect();
    let (gets, set) = ("get a\r\n".repeat(400), format!("set a 0 0 50000\r\n{value}\r\n"));
    stream.write_all((set + &gets).as_bytes()).unwrap();
    let mut stored = [0; 8];
    stream.read_exact(&mut stored).unwrap();
    server.signal(Signal::SIGUSR1);
    let port = server.port();
    wait_for("end of the listener", || TcpStream::connect(("127.0.0.1", port)).is_err());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 400 * (50_000 + "VALUE a 0 50000\r\n\r\nEND\r\n".len()));
    assert_eq!(server.ends().code(), Some(0));
}

#[test]
fn a_quick_stop_overrides_a_graceful_one() {
    let (mut server, mut stream) = half_done();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
}

#[test]
fn a_graceful_stop_has_a_time_limit() {
    let (mut server, _stream) = half_done();
    assert_eq!(server.ends().code(), Some(0));
}

#[test]
fn systemd_is_notified_of_every_phase() {
    let scratch = Scratch::new("systemd");
    let path = scratch.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let receives = |wanted: &str| {
        let mut bytes = [0; 256];
        loop {
            let len = manager.recv(&mut bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return;
            }
            assert!(text.contains("WATCHDOG=1"), "{text} where {wanted} was to come");
        }
    };
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "400000")];
    let mut server = Server::larderd_with(&["-v"], &variables);
    receives("READY=1");
    assert_eq!(server.ask_text("mn\r\n"), "MN\r\n", "ready is ready");
    (0..3).for_each(|_| receives("WATCHDOG=1"));
    server.signal(Signal::SIGHUP);
    receives("RELOADING=1");
    receives("READY=1");
    // During a graceful stop, which waits for this request, the watchdog continues.
    let mut stream = server.connect();
    stream.write_all(b"mn\r\nset half 0 0 4\r\nab").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    server.signal(Signal::SIGUSR1);
    receives("STOPPING=1");
    (0..3).for_each(|_| receives("WATCHDOG=1"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ends().code(), Some(0));
}

/// systemd binds the socket and passes it as descriptor 3.
#[test]
fn an_inherited_socket_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Connect before the server starts.
    let mut early = TcpStream::connect(address).unwrap();
    early.write_all(b"mn\r\n").unwrap();
    // Pass a port in use to `-p`. The server must not bind it, because that would fail.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let shell = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" -p $1 -t 1 3<&0 0</dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", shell, env!("CARGO_BIN_EXE_larderd"), &port]);
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    let mut server = Server::spawn(Scratch::new("activated"), &mut command);
    early.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = [0; 4];
    early.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
    assert_eq!(server.child.try_wait().unwrap(), None, "nothing else is listened on");
}

/// While the server waits for one incomplete request, it must close all idle connections.
#[test]
fn idle_connections_do_not_delay_a_graceful_stop() {
    let mut server = Server::larderd(&["-c", "500"]);
    let idle: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    let mut busy = server.connect();
    busy.write_all(b"mn\r\nset a 0 0 5\r\nab").unwrap();
    busy.read_exact(&mut [0; 4]).unwrap();
    server.signal(Signal::SIGUSR1);
    for mut stream in idle {
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0, "an orderly end");
    }
    busy.write_all(b"cde\r\n").unwrap();
    let mut answer = [0; 8];
    busy.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\n");
    assert_eq!(server.ends().code(), Some(0));
}
