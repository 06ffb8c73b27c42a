//! Custom commands (`--command`): their encoding, and the decoding of their replies.

use crate::load::stats::Kind;
use crate::settings::{CustomCommand, Settings};
use crate::words::split;
use larder_protocol::encode::{NumberedKeys, WireKey, resp};
use larder_protocol::response::{Read, Resp, Text, read_resp, read_text};
use larder_target::Protocol;

/// Placeholder of a key.
pub(crate) const KEY: &str = "__key__";
/// Placeholder of a value. In memcached's text and meta protocols, the encoder replaces it by the
/// length of the value, and the value follows the line.
pub(crate) const DATA: &str = "__data__";

/// The custom commands, in the order of sending.
#[derive(Debug)]
pub(crate) struct CustomCommands {
    protocol: Protocol,
    commands: Vec<Encoded>,
}

/// An encoded command.
#[derive(Debug)]
struct Encoded {
    kind: Kind,
    ratio: u32,
    /// Number of keys.
    keys: usize,
    /// Number of keys that precede the first value; `None` without a value.
    keys_before_value: Option<usize>,
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>),
    /// A key, with the text before and after it in the same word.
    Key(Vec<u8>, Vec<u8>),
    Data,
}

/// A response to a custom command or a recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response<'b> {
    /// A value of this length.
    Found(usize),
    /// A key was not found, or a recorded request did not store its value.
    Missing,
    /// An error, with the server's message.
    Error(&'b [u8]),
    /// The header of an array with this number of elements.
    Array(usize),
    /// A line that is not the last line of its reply. Contains the length of the line's value, if
    /// it has a value.
    More(Option<usize>),
    /// `END`: the last line of a reply. If no other line precedes it, the key was not found.
    End,
    /// Any other response.
    Other,
}

impl Encoded {
    fn new(kind: Kind, ratio: u32, parts: Vec<Part>) -> Self {
        let keys_in =
            |parts: &[Part]| parts.iter().filter(|part| matches!(part, Part::Key(..))).count();
        let value = parts.iter().position(|part| matches!(part, Part::Data));
        let (keys, keys_before_value) = (keys_in(&parts), value.map(|at| keys_in(&parts[..at])));
        Self { kind, ratio, keys, keys_before_value, parts }
    }
}

impl CustomCommands {
    pub(crate) fn new(settings: &Settings) -> Self {
        let kinds = settings.command_names();
        let encode = |command: &CustomCommand| {
            let words = split(&command.line).unwrap_or_default();
            let place = kinds.iter().position(|name| *name == command.name()).unwrap_or(0);
            Encoded::new(Kind::of_number(place), command.ratio, parts(settings.protocol, &words))
        };
        let commands = settings.commands.iter().map(encode).collect();
        Self { protocol: settings.protocol, commands }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the commands, each with the number of times in a row that a client sends it.
    pub(crate) fn turns(&self) -> impl Iterator<Item = (Kind, u32)> {
        self.commands.iter().map(|command| (command.kind, command.ratio))
    }

    /// Returns the index of the command at `position` of the cycle, and the next position.
    pub(crate) fn at(&self, position: u32) -> (usize, u32) {
        let mut before = 0;
        for (number, command) in self.commands.iter().enumerate() {
            before += command.ratio;
            if position < before {
                let is_last = position + 1 == before && number + 1 == self.commands.len();
                return (number, if is_last { 0 } else { position + 1 });
            }
        }
        (0, 0)
    }

    /// Returns the kind of the command with this number.
    pub(crate) fn kind(&self, number: usize) -> Kind {
        self.commands[number].kind
    }

    /// Returns the number of keys in a command.
    pub(crate) fn key_count(&self, number: usize) -> usize {
        self.commands[number].keys
    }

    /// Returns the number of keys before the first value of a command; `None` if the command has no
    /// value.
    pub(crate) fn keys_before_value(&self, number: usize) -> Option<usize> {
        self.commands[number].keys_before_value
    }

    /// Appends a command with its keys and its value.
    pub(crate) fn write(
        &self,
        number: usize,
        names: &mut NumberedKeys,
        keys: &[u64],
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        let is_resp = self.protocol == Protocol::Resp;
        let mut keys = keys.iter();
        for part in &self.commands[number].parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Key(before, after) => {
                    let Some(key) = keys.next() else { continue };
                    let word: [&[u8]; 3] = [before, names.key(*key).bytes(), after];
                    match is_resp {
                        true => resp::word_of_parts(&word, out),
                        false => word.iter().for_each(|part| out.extend_from_slice(part)),
                    }
                }
                Part::Data => {
                    let Some(value) = value else { continue };
                    match is_resp {
                        true => resp::word(value, out),
                        false => {
                            out.extend_from_slice(
                                itoa::Buffer::new().format(value.len()).as_bytes(),
                            );
                        }
                    }
                }
            }
        }
        if !is_resp {
            out.extend_from_slice(b"\r\n");
            if let Some(value) = value {
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends the first key of a command in the form in which it is sent: the complete word that
    /// contains the placeholder. Appends nothing for a command without a key.
    pub(crate) fn write_key(&self, number: usize, key: Option<WireKey<'_>>, out: &mut Vec<u8>) {
        let word = self.commands[number].parts.iter().find_map(|part| match part {
            Part::Key(before, after) => Some((before, after)),
            Part::Bytes(_) | Part::Data => None,
        });
        if let (Some((before, after)), Some(key)) = (word, key) {
            out.extend_from_slice(before);
            out.extend_from_slice(key.bytes());
            out.extend_from_slice(after);
        }
    }

    /// Decodes the response at the start of `bytes`.
    pub(crate) fn read<'b>(&self, bytes: &'b [u8]) -> Read<Response<'b>> {
        match self.protocol {
            Protocol::Resp => map(read_resp(bytes), |response| match response {
                Resp::Bulk(value) => Response::Found(value.len()),
                Resp::Null => Response::Missing,
                Resp::Error(text) => Response::Error(text),
                Resp::Array(elements) => Response::Array(elements),
                Resp::Simple(_) | Resp::Integer(_) => Response::Other,
            }),
            _ => map(read_text(bytes), |response| match response {
                Text::Value { value, .. } => Response::More(Some(value.len())),
                Text::MetaValue { value, .. } => Response::Found(value.len()),
                Text::End => Response::End,
                Text::Line(b"EN" | b"NF" | b"NOT_FOUND") => Response::Missing,
                Text::Line(line) if is_error(line) => Response::Error(line),
                Text::Line(line) if line.starts_with(b"STAT ") || line.starts_with(b"key=") => {
                    Response::More(None)
                }
                Text::Line(_) => Response::Other,
            }),
        }
    }
}

fn is_error(line: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| line.starts_with(word))
}

fn map<'b, T>(read: Read<T>, convert: impl FnOnce(T) -> Response<'b>) -> Read<Response<'b>> {
    match read {
        Read::Whole(response, len) => Read::Whole(convert(response), len),
        Read::Incomplete { wanted } => Read::Incomplete { wanted },
        Read::Malformed => Read::Malformed,
    }
}

fn parts(protocol: Protocol, words: &[Vec<u8>]) -> Vec<Part> {
    let mut parts = Vec::new();
    let is_resp = protocol == Protocol::Resp;
    let mut bytes = Vec::new();
    if is_resp {
        resp::begin(words.len(), &mut bytes);
    }
    for (number, word) in words.iter().enumerate() {
        if number > 0 && !is_resp {
            bytes.push(b' ');
        }
        let part = match find(word, KEY.as_bytes()) {
            _ if word == DATA.as_bytes() => Part::Data,
            Some(at) => Part::Key(word[..at].to_vec(), word[at + KEY.len()..].to_vec()),
            None => {
                match is_resp {
                    true => resp::word(word, &mut bytes),
                    false => bytes.extend_from_slice(word),
                }
                continue;
            }
        };
        parts.push(Part::Bytes(std::mem::take(&mut bytes)));
        parts.push(part);
    }
    parts.push(Part::Bytes(bytes));
    parts
}

fn find(word: &[u8], pattern: &[u8]) -> Option<usize> {
    word.windows(pattern.len()).position(|window| window == pattern)
}

/// Returns the number of keys in a command.
pub(crate) fn key_count(line: &str) -> usize {
    let has_key = |word: &&Vec<u8>| find(word, KEY.as_bytes()).is_some();
    split(line).unwrap_or_default().iter().filter(has_key).count()
}

/// Returns `None` if a command is valid. Otherwise returns the violated requirement, as the text
/// after "expected" in an error message.
pub(crate) fn objection(protocol: Protocol, line: &str) -> Option<&'static str> {
    let Some(words) = split(line) else { return Some("closed quotes with a space after them") };
    let has = |word: &[u8], pattern: &str| find(word, pattern.as_bytes()).is_some();
    let Some((name, others)) = words.split_first() else { return Some("a command") };
    let data = others.iter().filter(|word| has(word, DATA)).count();
    if protocol == Protocol::Binary {
        return Some("the text, meta or RESP protocol");
    }
    if has(name, KEY) || has(name, DATA) || name.starts_with(b"__monitor_line") {
        return Some("the name of a command as first word");
    }
    if others.iter().any(|word| has(word, DATA) && word.len() != DATA.len()) {
        return Some("__data__ as a separate word");
    }
    if protocol == Protocol::Resp {
        return None;
    }
    let is_meta = name.len() == 2 && name.starts_with(b"m");
    let flags = others.get(1..).unwrap_or_default();
    if others.iter().any(|word| word == b"noreply") || is_meta && flags.iter().any(|f| f == b"q") {
        return Some("a command with an answer (no noreply or q)");
    }
    if words.iter().flatten().any(|byte| *byte == b'\n') || data > 1 {
        return Some("one line with at most one __data__");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_cannot_be_sent_are_refused() {
        use Protocol::{Binary, Meta, Resp, Text};
        for (protocol, line) in [
            (Resp, "set __key__ __data__"),
            (Resp, "hset h-__key__-x f __data__ g __data__"),
            (Text, "set __key__ 0 0 __data__"),
            (Meta, "ms __key__ __data__ T60"),
            (Meta, "mg q v"),
        ] {
            assert_eq!(objection(protocol, line), None, "{line}");
        }
        for (protocol, line) in [
            (Binary, "get __key__"),
            (Resp, ""),
            (Resp, "__key__"),
            (Resp, "set __key__ x__data__"),
            (Resp, "set \"a"),
            (Text, "set __key__ 0 0 __data__ noreply"),
            (Text, "set __key__ 0 __data__ __data__"),
            (Meta, "mg __key__ v q"),
            (Resp, "__monitor_line1__"),
        ] {
            assert!(objection(protocol, line).is_some(), "{line}");
        }
    }
}
