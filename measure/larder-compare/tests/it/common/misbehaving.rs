//! A faulty server. A test starts its own executable as this server. If the environment variable
//! `BEHAVIOUR` is set, the test `failures::a_server` serves requests. Otherwise it does nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the command of a server with this `behaviour`: see [`answer`].
pub fn command(behaviour: &str) -> Vec<String> {
    let test = std::env::current_exe().unwrap().display().to_string();
    let environment = [format!("BEHAVIOUR={behaviour}"), "SOCKET={socket}".to_owned()];
    let arguments = ["--exact", "failures::a_server", "--nocapture"].map(ToOwned::to_owned);
    let words = ["env".to_owned()].into_iter().chain(environment).chain([test]);
    words.chain(arguments).collect()
}

/// Returns the TOML table of a server in a suite.
pub fn entry(name: &str, behaviour: &str) -> String {
    super::suite_entry(name, &command(behaviour))
}

/// Serves requests without end if the environment selects a behaviour.
pub fn serve() {
    let Ok(behaviour) = std::env::var("BEHAVIOUR") else { return };
    let path = std::env::var("SOCKET").unwrap();
    let listener = UnixListener::bind(Path::new(&path)).unwrap();
    for stream in listener.incoming() {
        let behaviour = behaviour.clone();
        std::thread::spawn(move || talk(&behaviour, stream.unwrap()));
    }
}

static ANSWERED: AtomicU64 = AtomicU64::new(0);

fn talk(behaviour: &str, mut stream: UnixStream) -> Option<()> {
    let mut input = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.starts_with("set ") {
            let len: usize = line.trim().rsplit(' ').next()?.parse().ok()?;
            input.read_exact(&mut vec![0; len + 2]).ok()?;
        }
        let answer = answer(behaviour, &line, ANSWERED.fetch_add(1, Ordering::Relaxed));
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// Returns the reply to request `number`, counted from 0. Depending on `behaviour`, the server
/// rejects all sets, freezes or exits at the 52nd request, or accepts all sets. All gets miss.
fn answer(behaviour: &str, line: &str, number: u64) -> &'static str {
    match behaviour {
        "freezes" if number > 50 => loop {
            std::thread::park();
        },
        "dies" if number > 50 => std::process::exit(7),
        "refuses" if line.starts_with("set ") => {
            return "SERVER_ERROR out of memory storing object\r\n";
        }
        _ => {}
    }
    match line.split(' ').next() {
        Some("set") => "STORED\r\n",
        Some("get") => "END\r\n",
        _ => "VERSION misbehaving\r\n",
    }
}
