//! Sends thousands of generated requests, valid and broken, in all three dialects to larderd and to
//! Debian's memcached. The replies must be the same, byte for byte, except for [`KNOWN`].
#![expect(clippy::print_stderr, reason = "each try that differs is shown")]
#![expect(clippy::cast_possible_truncation, reason = "generated lengths are short")]

use crate::common::{RUNTIMES, Server};
use std::fmt::Write as _;

/// Known differences between memcached 1.6.18 and Larder, which follows 1.6.45. Each consists of
/// the text in memcached's reply, the text in Larder's reply, and the reason.
///
/// The test does not generate requests that the two versions parse differently:
/// - too few words: 1.6.18 answers `ERROR`;
/// - leading spaces: 1.6.18 skips them;
/// - a store with invalid flags or an invalid key: 1.6.18 does not skip its data;
/// - a retrieval of a key that is too long: 1.6.18 loses earlier replies;
/// - `ms s`, and flags that are not letters.
///
/// The test also does not generate changes that make a number shorter. memcached usually pads the
/// number with spaces, but not if an earlier reply of the same pipeline still refers to the item.
const KNOWN: [(&str, &str, &str); 1] = [("1.6.18", "1.6.45", "the version that each says it is")];

/// A CAS value that neither server assigns.
const FOREIGN_CAS: &str = "999999999";

/// A small random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

fn key(random: &mut Random) -> String {
    match random.below(40) {
        0 => "k".repeat(250),
        1 => "k".repeat(251),
        2 => "with\ttab".to_owned(),
        _ => format!("key{}", random.below(6)),
    }
}

fn value(random: &mut Random) -> String {
    match random.below(8) {
        0 => String::new(),
        1 => "x".repeat(random.below(3000)),
        3 | 4 => "12x".to_owned(),
        2 => "007".to_owned(),
        5 => "-1".to_owned(),
        _ => random.below(2000).to_string(),
    }
}

fn number(random: &mut Random) -> &'static str {
    random.one(&["0", "1", "5", "10", "999", "18446744073709551616", "-1", "x"])
}

fn classic(random: &mut Random, out: &mut String) {
    let noreply = if random.chance(10) { " noreply" } else { "" };
    let key = key(random);
    match random.below(20) {
        0..=5 if key.len() <= 250 => {
            let command = random.one(&["set", "set", "add", "replace", "append", "prepend"]);
            let (flags, value) = (random.one(&["0", "7", "4294967295", "+5"]), value(random));
            let exptime = random.one(&["0", "0", "1000", "2592000", "-1", "4294967295"]);
            let len = value.len();
            write!(out, "{command} {key} {flags} {exptime} {len}{noreply}\r\n{value}\r\n").unwrap();
        }
        6 if key.len() <= 250 => {
            let (value, cas) = (value(random), random.one(&["0", FOREIGN_CAS]));
            let len = value.len();
            write!(out, "cas {key} 0 0 {len} {cas}{noreply}\r\n{value}\r\n").unwrap();
        }
        7..=11 if key.len() <= 250 => {
            let command = random.one(&["get", "get", "gets"]);
            let other = format!("key{}", random.below(6));
            write!(out, "{command} {key} {other}  {other} \r\n").unwrap();
        }
        12 if key.len() <= 250 => {
            let command = random.one(&["gat", "gats"]);
            let exptime = random.one(&["0", "1000", "x"]);
            write!(out, "{command} {exptime} {key}\r\n").unwrap();
        }
        13 => write!(out, "delete {key}{noreply}\r\n").unwrap(),
        14..=16 => {
            let command = "incr";
            let delta = number(random);
            write!(out, "{command} {key} {delta}{noreply}\r\n").unwrap();
        }
        17 => {
            let exptime = random.one(&["0", "1000", "x"]);
            write!(out, "touch {key} {exptime}{noreply}\r\n").unwrap();
        }
        18 => {
            write!(out, "{}{noreply}\r\n", random.one(&["flush_all", "verbosity 0", "flush_all 0"]))
                .unwrap()
        }
        _ => out.push_str(random.one(&["bogus line\r\n", "GET a\r\n", "mn\r\n"])),
    }
}

fn meta(random: &mut Random, out: &mut String) {
    let (key, base64) = match random.below(12) {
        0 => ("Zm9vYmFy".to_owned(), " b"),
        _ => (key(random), ""),
    };
    let mut flags = String::from(base64);
    for _ in 0..random.below(5) {
        let flag = random.one(&[
            "k",
            "t",
            "s",
            "f",
            "v",
            "c",
            "h",
            "q",
            "Oabc",
            "T0",
            "T1000",
            "N30",
            "R30",
            "C999999999",
            "I",
            "Tx",
            "k",
            "F5",
            "J10",
            "D3",
            "MI",
            "u",
        ]);
        // For a flag `t` between `N` and `T`, memcached may return one of three values, and Larder
        // one of two.
        let both = |a: &str, b: &str| flag.starts_with(a) && flags.contains(b);
        // 1.6.18 does not record that the key of a new item was base64.
        if both("N", " T") || both("T", " N") || both("N", " b") {
            continue;
        }
        flags.push(' ');
        flags.push_str(flag);
    }
    match random.below(10) {
        // The versions return different errors for a key that is too long.
        4..=6 | 8 if key.len() > 250 => out.push_str("mn\r\n"),
        0..=3 => write!(out, "mg {key}{flags}\r\n").unwrap(),
        4..=6 => {
            let (mode, value) =
                (random.one(&["", " ME", " MA", " MP", " MR", " MS"]), value(random));
            // Send one mode per request, and only flags with the same meaning in both versions
            // (1.6.18 lacks `s`).
            let flags: String = flags
                .split(' ')
                .filter(|f| !f.starts_with('M') && !["N30", "s"].contains(f))
                .map(|f| format!(" {f}"))
                .collect();
            let flags = flags.trim_end();
            write!(out, "ms {key} {}{flags}{mode}\r\n{value}\r\n", value.len()).unwrap();
        }
        7 => write!(out, "md {key}{base64} {}\r\n", random.one(&["q", "k", "Oabc", "C999999999"]))
            .unwrap(),
        8 => write!(out, "ma {key}{flags}\r\n").unwrap(),
        _ => out.push_str("mn\r\n"),
    }
}

fn binary(random: &mut Random, out: &mut Vec<u8>) {
    let opcodes =
        [0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 25, 26, 28, 29, 30];
    let opcode = opcodes[random.below(opcodes.len())];
    let key = format!("key{}", random.below(6)).into_bytes();
    let value = value(random).into_bytes();
    let (extras, key, value) = match opcode {
        1..=3 | 17..=19 => (vec![0, 0, 0, 9, 0, 0, 0, 0], key, value),
        5 | 6 | 21 | 22 => {
            let mut extras = [0; 20];
            extras[7] = 3;
            extras[15] = 50;
            extras[16] = if random.chance(30) { 0xff } else { 0 };
            extras.copy_within(16..17, 17);
            extras.copy_within(16..17, 18);
            extras.copy_within(16..17, 19);
            (extras.to_vec(), key, vec![])
        }
        14 | 15 | 25 | 26 => (vec![], key, value),
        10 | 11 => (vec![], vec![], vec![]),
        28..=30 => (vec![0; 4], key, vec![]),
        _ => (vec![], key, vec![]),
    };
    let cas: u64 = if random.chance(8) { 999_999_999 } else { 0 };
    let body = (extras.len() + key.len() + value.len()) as u32;
    out.extend([0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0]);
    out.extend(body.to_be_bytes());
    out.extend((random.next() as u32).to_be_bytes());
    out.extend(cas.to_be_bytes());
    for part in [extras, key, value] {
        out.extend(part);
    }
}

/// The number of attempts for a request whose replies differ. A server's clock may tick during a
/// request, which makes a TTL a second shorter.
const ATTEMPTS: usize = 4;

/// Sends `rounds` generated pipelines to memcached and to larderd with these options, and compares
/// the replies. Each pipeline starts with a flush.
fn compare(seed: u64, rounds: usize, options: &[&str], generate: impl Fn(&mut Random) -> Vec<u8>) {
    let Some(memcached) = Server::memcached(&["-t", "1"]) else {
        panic!("memcached is not installed; scripts/test installs it");
    };
    let larderd = Server::larderd(&[&["-t", "1"], options].concat());
    let mut random = Random(seed);
    for round in 0..rounds {
        let request = generate(&mut random);
        let difference = |_| difference(&memcached, &larderd, &request);
        let differences = (0..ATTEMPTS).map_while(difference);
        let mut shown = differences
            .inspect(|shown| eprintln!("{options:?} seed {seed} round {round}, {shown}"));
        assert!(shown.nth(ATTEMPTS - 1).is_none(), "different {ATTEMPTS} times");
    }
}

/// Describes the first difference between the replies. Returns `None` if they are equal.
fn difference(memcached: &Server, larderd: &Server, request: &[u8]) -> Option<String> {
    let [expected, got] = [memcached, larderd].map(|server| without_cas(&server.ask(request)));
    let expected = as_larder(&expected);
    if expected == got {
        return None;
    }
    let at = expected.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let show = |bytes: &[u8]| {
        let near = &bytes[at.saturating_sub(120).min(bytes.len())..(at + 120).min(bytes.len())];
        near.escape_ascii().to_string()
    };
    let (theirs, ours, request) = (show(&expected), show(&got), request.escape_ascii());
    Some(format!("byte {at}\nmemcached: {theirs}\nlarderd:   {ours}\nrequest:   {request}"))
}

/// Returns the replies with every CAS replaced by 0, because the servers assign different CAS
/// values.
fn without_cas(answers: &[u8]) -> Vec<u8> {
    if answers.first() == Some(&0x81) {
        return without_binary_cas(answers);
    }
    let mut out = Vec::new();
    for line in answers.split_inclusive(|&byte| byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let words: Vec<&str> = text.trim_end_matches("\r\n").split(' ').collect();
        match words[..] {
            ["VALUE", key, flags, len, _cas] => {
                out.extend(format!("VALUE {key} {flags} {len} 0\r\n").bytes());
            }
            ["HD" | "VA" | "EX" | "NS" | "NF", ..] => {
                let zero = |word: &&str| {
                    let digits = word.strip_prefix('c').is_some_and(|d| d.parse::<u64>().is_ok());
                    if digits { "c0".to_owned() } else { (*word).to_owned() }
                };
                let words: Vec<String> = words.iter().map(zero).collect();
                out.extend(words.join(" ").bytes());
                out.extend(b"\r\n");
            }
            _ => out.extend(line),
        }
    }
    out
}

fn without_binary_cas(mut answers: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((head, rest)) = answers.split_at_checked(24) {
        let len = u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize;
        let body = &rest[..len.min(rest.len())];
        out.extend(&head[..16]);
        out.extend([0; 8]);
        out.extend(body);
        answers = &rest[body.len()..];
    }
    out.extend(answers);
    out
}

/// Returns the expected replies of Larder, given memcached's replies `expected`.
fn as_larder(expected: &[u8]) -> Vec<u8> {
    KNOWN.iter().fold(expected.to_vec(), |bytes, (memcached, larder, _reason)| {
        assert_eq!(memcached.len(), larder.len(), "else lengths in binary answers are off");
        let mut bytes = bytes;
        while let Some(at) = bytes.windows(memcached.len()).position(|w| w == memcached.as_bytes())
        {
            bytes[at..at + larder.len()].copy_from_slice(larder.as_bytes());
        }
        bytes
    })
}

fn lines(random: &mut Random, write: fn(&mut Random, &mut String)) -> Vec<u8> {
    let mut out = String::from("flush_all\r\n");
    (0..1 + random.below(30)).for_each(|_| write(random, &mut out));
    out.into_bytes()
}

/// Returns a pipeline of binary requests. It starts with a flush, so that its replies do not depend
/// on earlier pipelines.
fn frames(random: &mut Random) -> Vec<u8> {
    let mut out = vec![0x80, 8];
    out.resize(24, 0);
    (0..1 + random.below(30)).for_each(|_| binary(random, &mut out));
    out
}

#[test]
fn classic_answers_are_memcacheds() {
    compare(1, 400, &[], |random| lines(random, classic));
}

#[test]
fn meta_answers_are_memcacheds() {
    compare(2, 400, &[], |random| lines(random, meta));
}

#[test]
fn binary_answers_are_memcacheds() {
    compare(3, 400, &[], frames);
}

/// This comparison is short, because `scripts/test-runtimes` runs the other tests with each runtime
/// and with the delayed engine.
#[test]
fn each_runtime_answers_over_each_engine() {
    for runtime in RUNTIMES {
        for engine in ["segment", "delayed"] {
            let options = ["--runtime", runtime, "--engine", engine];
            compare(4, 40, &options, |random| lines(random, classic));
            compare(5, 40, &options, |random| lines(random, meta));
            compare(6, 40, &options, frames);
        }
    }
}
