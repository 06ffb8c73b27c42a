//! Parses memcached requests without a session.

use larder_protocol::{Get, Parsed, Parser, Recovery, ReplyFormat, Request};

/// Parses a stream that arrives in `pieces`, and formats its requests.
///
/// # Panics
/// The parser consumes no bytes or more bytes than the input contains, or waits for the rest of a
/// value that is already complete.
pub fn requests<'s>(pieces: impl Iterator<Item = &'s [u8]>) -> Vec<String> {
    let mut reader = Reader::default();
    for piece in pieces {
        reader.input.extend_from_slice(piece);
        while reader.step() {}
    }
    reader.formatted
}

#[derive(Default)]
struct Reader {
    parser: Parser,
    input: Vec<u8>,
    formatted: Vec<String>,
    /// The number of bytes to skip.
    swallow: u64,
    /// Whether to skip the rest of a line.
    swallow_line: bool,
    closed: bool,
}

impl Reader {
    /// Parses a request. Returns false if more bytes are needed, or if the connection is closed.
    fn step(&mut self) -> bool {
        if self.closed || !self.has_swallowed() {
            return false;
        }
        let before = self.parser;
        match self.parser.parse(&self.input) {
            Parsed::Request { request, consumed } => {
                assert!((1..=self.input.len()).contains(&consumed), "{request:?}: {consumed}");
                note(request, &mut self.formatted);
                match request {
                    Request::Quit(_) => self.closed = true,
                    Request::Fault(fault) => match fault.then {
                        Recovery::Continue => (),
                        Recovery::Swallow(len) => self.swallow = len,
                        Recovery::SwallowLine => self.swallow_line = true,
                        Recovery::Close => self.closed = true,
                    },
                    _ => (),
                }
                self.input.drain(..consumed);
                true
            }
            Parsed::StoreHead { head_len, body_len, .. } => {
                assert!(
                    head_len as u64 + body_len > self.input.len() as u64,
                    "a complete store must not be reported as a head"
                );
                self.parser = before;
                false
            }
            Parsed::Incomplete => {
                self.parser = before;
                false
            }
        }
    }

    fn has_swallowed(&mut self) -> bool {
        if self.swallow_line {
            match self.input.iter().position(|byte| *byte == b'\n') {
                Some(end) => drop(self.input.drain(..=end)),
                None => {
                    self.input.clear();
                    return false;
                }
            }
            self.swallow_line = false;
        }
        let len = self.swallow.min(self.input.len() as u64);
        self.input.drain(..usize::try_from(len).expect("the length is at most that of the input"));
        self.swallow -= len;
        self.swallow == 0 && !self.input.is_empty()
    }
}

/// Formats a request, but omits two properties that depend on how the stream was split: how to skip
/// the rest of a faulty line, and whether the last key of a retrieval line was parsed together with
/// the end of the line.
fn note(mut request: Request<'_>, formatted: &mut Vec<String>) {
    let mut ends = false;
    if let Request::Get(Get { format: ReplyFormat::Classic(classic), .. }) = &mut request {
        ends = std::mem::take(&mut classic.last);
    }
    formatted.push(match &request {
        Request::Fault(fault) if fault.then != Recovery::Close => format!("{:?}", fault.reply),
        other => format!("{other:?}"),
    });
    if ends {
        formatted.push(format!("{:?}", Request::GetEnd));
    }
}
