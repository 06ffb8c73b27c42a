//! Requests and replies for the tests of operators' commands.

use crate::common::{self, Server};
use std::io::Write;
use std::net::TcpStream;

/// Every engine, with the options that it requires.
pub(super) const ENGINES: [&[&str]; 3] = [&["segment"], &["dashmap", "-M"], &["moka"]];

pub(super) fn larderd(engine: &[&str], options: &[&str]) -> Server {
    Server::larderd(&[&["--engine"], engine, options].concat())
}

pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

pub(super) fn ask(server: &Server, lines: &str) -> String {
    text(server.ask(lines.as_bytes()))
}

/// Sends a request and reads until the reply ends with `last`.
pub(super) fn exchange(stream: &mut TcpStream, request: &str, last: &str) -> String {
    exchange_any(stream, request, &[last])
}

/// Sends a request and reads until the reply ends with one of `lasts`.
pub(super) fn exchange_any(stream: &mut TcpStream, request: &str, lasts: &[&str]) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut bytes = [0; 16 << 10];
    while !lasts.iter().any(|last| answer.ends_with(last.as_bytes())) {
        let len = common::read_some(stream, &mut bytes).unwrap();
        assert!(len > 0, "closed after {:?}", text(answer));
        answer.extend_from_slice(&bytes[..len]);
    }
    text(answer)
}

/// Returns the value of a statistic on a page.
pub(super) fn value<'p>(page: &'p str, name: &str) -> &'p str {
    let start = format!("STAT {name} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("{name} in {page}"))
}

/// Returns the value of a numeric statistic on a page.
pub(super) fn stat(page: &str, name: &str) -> u64 {
    value(page, name).parse().unwrap()
}

/// Returns the line with each sequence of digits replaced by 0.
pub(super) fn format(line: &str) -> String {
    let mut format = line.replace(|c: char| c.is_ascii_digit(), "0");
    while format.contains("00") {
        format = format.replace("00", "0");
    }
    format
}

pub(super) fn fill(server: &Server, items: usize) {
    let sets: String = (0..items).map(|i| format!("set key-{i} 0 0 5\r\nvalue\r\n")).collect();
    let stored = ask(server, &sets);
    assert_eq!(stored.len(), items * "STORED\r\n".len());
}
