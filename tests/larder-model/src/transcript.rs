//! Transcripts: requests and expected replies as text, with one topic per file.
//!
//! ```text
//! # A comment. A blank line starts a new case, on an empty cache and a new connection.
//! ## its name [since 1.6.22] [larder: why memcached does not say this]
//! > set a 0 0 1          a line sent, CRLF added
//! > 1
//! < STORED               a line expected, CRLF added
//! >> half a li           bytes sent as they are; << likewise
//! 2> mn                  a second connection
//! b> get key=a           a binary request; b< likewise
//! @ +2                   two seconds later
//! ! closed               the server has closed the connection
//! ```
//!
//! Lines may contain the escape sequences `\x00 \r \n \t \s` (a space) `\\ \{`. `{x*300}` is 300
//! times x. `{cas:a}` is the CAS with the name `a`. All uses of a name have the same value, and
//! different names have different values. A sent CAS may have an offset, as in `{cas:a+1}`.
//! `{number}` matches any number.
//!
//! `[unmodelled]` cases need features that the model lacks, and `[server]` cases need a complete
//! server.
//!
//! Cases that advance the clock run against targets with an adjustable clock. `[sleep]` cases also
//! run against servers, in real time.

use crate::escape::pieces;
use crate::packet;
use crate::piece::Piece;
use std::fs;
use std::path::Path;

/// A memcached release.
pub type Version = [u32; 3];

/// A case: requests and expected replies.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// File and line of the case, and its name if it has one.
    pub place: String,
    /// The first version of memcached that gives these replies; `None` if all versions give them.
    pub since: Option<Version>,
    /// The reason why memcached's replies differ; `None` if they are the same.
    pub larder: Option<String>,
    /// Whether a case that advances the clock also runs against servers, in real time.
    pub sleep: bool,
    /// Whether the case needs features that the model lacks.
    pub unmodelled: bool,
    /// Whether the case needs a complete server.
    pub server: bool,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One line of a case.
#[derive(Clone, Debug)]
pub struct Step {
    /// The number of the line in the file, from 1.
    pub line: usize,
    /// The action of the line.
    pub action: Action,
}

/// An action of a transcript. Peers are numbered as in the transcript.
#[derive(Clone, Debug)]
pub enum Action {
    /// A peer sends these pieces.
    Send(usize, Vec<Piece>),
    /// A peer receives these pieces.
    Expect(usize, Vec<Piece>),
    /// The server closes the peer's connection.
    Closed(usize),
    /// The clock advances by this number of seconds.
    Advance(u32),
}

impl Case {
    /// Returns whether a step advances the clock.
    #[must_use]
    pub fn needs_clock(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Advance(_)))
    }

    /// Returns the total length of the bytes that peers send, without CAS values.
    #[must_use]
    pub fn sent_len(&self) -> usize {
        let sent = self.steps.iter().flat_map(|step| match &step.action {
            Action::Send(_, pieces) => pieces.as_slice(),
            _ => &[],
        });
        sent.map(|piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 }).sum()
    }
}

/// Reads all `.txt` files of a directory, in order of their names.
///
/// # Errors
/// The first file or line that cannot be read.
pub fn read_folder(folder: &Path) -> Result<Vec<Case>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        cases.extend(read(&name, &text)?);
    }
    Ok(cases)
}

/// Parses the cases of one file.
///
/// # Errors
/// The first line that cannot be parsed.
pub fn read(file: &str, text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    let mut case = Case::default();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let wrong = |error: String| format!("{file}:{number}: {error}");
        if line.is_empty() || line.starts_with("## ") {
            finish(&mut case, &mut cases);
        }
        if let Some(title) = line.strip_prefix("## ") {
            case = titled(&format!("{file}:{number} "), title).map_err(wrong)?;
        } else if !line.is_empty() && !line.starts_with('#') {
            if case.place.is_empty() {
                case.place = format!("{file}:{number}");
            }
            case.steps.push(Step { line: number, action: action(line).map_err(wrong)? });
        }
    }
    finish(&mut case, &mut cases);
    Ok(cases)
}

fn finish(case: &mut Case, cases: &mut Vec<Case>) {
    let done = std::mem::take(case);
    if !done.steps.is_empty() {
        cases.push(done);
    }
}

fn titled(place: &str, title: &str) -> Result<Case, String> {
    let mut case = Case::default();
    let mut parts = title.split('[');
    case.place = format!("{place}{}", parts.next().unwrap_or_default().trim());
    for part in parts {
        let tag = part.trim().strip_suffix(']').ok_or("a tag without `]`")?;
        match tag.split_once([' ', ':']).unwrap_or((tag, "")) {
            ("since", version) => case.since = Some(parse_version(version)?),
            ("larder", why) if !why.is_empty() => case.larder = Some(why.trim().to_owned()),
            ("sleep", "") => case.sleep = true,
            ("unmodelled", "") => case.unmodelled = true,
            ("server", "") => (case.unmodelled, case.server) = (true, true),
            _ => return Err(format!("unknown tag: {tag}")),
        }
    }
    Ok(case)
}

fn parse_version(text: &str) -> Result<Version, String> {
    let numbers: Vec<u32> = text.split('.').filter_map(|n| n.parse().ok()).collect();
    numbers.try_into().map_err(|_| format!("not a version: {text}"))
}

fn action(line: &str) -> Result<Action, String> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let peer = line[..digits].parse().unwrap_or(1);
    let (mark, rest) = line[digits..].split_once(' ').unwrap_or((&line[digits..], ""));
    match mark {
        ">" => Ok(Action::Send(peer, text_line(rest)?)),
        "<" => Ok(Action::Expect(peer, text_line(rest)?)),
        ">>" => Ok(Action::Send(peer, pieces(rest)?)),
        "<<" => Ok(Action::Expect(peer, pieces(rest)?)),
        "b>" => Ok(Action::Send(peer, packet::request(rest)?)),
        "b<" => Ok(Action::Expect(peer, packet::answer(rest)?)),
        "!" if rest == "closed" => Ok(Action::Closed(peer)),
        "@" => rest
            .strip_prefix('+')
            .and_then(|seconds| seconds.parse().ok())
            .map(Action::Advance)
            .ok_or_else(|| format!("expected +SECONDS: {rest}")),
        _ => Err(format!("not a line of a transcript: {line}")),
    }
}

fn text_line(rest: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = pieces(rest)?;
    pieces.push(Piece::Bytes(b"\r\n".to_vec()));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_cut_at_blank_lines_and_titles() {
        let text = "# why\n> a\n\n\n## second [since 1.6.22]\n2< b\n@ +3\n! closed\n## third\n> c";
        let cases = read("f", text).unwrap();
        let places: Vec<_> = cases.iter().map(|case| case.place.as_str()).collect();
        assert_eq!(places, ["f:2", "f:5 second", "f:9 third"]);
        assert_eq!(cases[1].since, Some([1, 6, 22]));
        assert!(matches!(cases[1].steps[0].action, Action::Expect(2, _)));
        assert!(cases[1].needs_clock());
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [("> a\n? b", 2), ("## a [soon]\n> b", 1), ("> {x*y}", 1), ("@ 3", 1)] {
            let error = read("f", text).unwrap_err();
            assert!(error.starts_with(&format!("f:{line}: ")), "{error}");
        }
    }
}
