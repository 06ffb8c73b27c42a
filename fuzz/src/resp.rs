//! Reads RESP requests without a session.

use larder_protocol::resp::{
    Bounds, Command, DiscardProgress, OversizedRest, Read, fast_get, read, split_line,
};

/// The limits of requests. `request_len_max` exceeds the length of every fuzz input, because the
/// error for a longer request would depend on how the input is split.
const BOUNDS: Bounds =
    Bounds { bulk_len_max: 1 << 10, request_len_max: 1 << 30, needs_login: false };

/// Reads a stream that arrives in `pieces`, and formats its requests.
///
/// # Panics
/// The reader consumes no bytes or more bytes than the input contains, requests no further bytes
/// after an incomplete request, or gives another result than the fast path for `GET`.
pub fn resp_requests<'s>(pieces: impl Iterator<Item = &'s [u8]>) -> Vec<String> {
    let (mut formatted, mut input) = (Vec::new(), Vec::new());
    let mut oversized: Option<OversizedRest> = None;
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            if let Some(rest) = &mut oversized {
                match rest.discard(&input) {
                    DiscardProgress::All { consumed } => {
                        formatted.push("oversized".to_owned());
                        oversized = None;
                        input.drain(..consumed);
                    }
                    DiscardProgress::Part { consumed, wanted } => {
                        assert!(wanted > 0, "an incomplete request must want further bytes");
                        input.drain(..consumed);
                        break;
                    }
                    DiscardProgress::Fault(fault) => {
                        formatted.push(format!("{fault:?}"));
                        return formatted;
                    }
                }
            }
            let consumed = match read(&input, &BOUNDS) {
                Read::Request { request, consumed } => {
                    if let Some((key, len)) = fast_get(&input) {
                        assert_eq!((request.arguments.last(), consumed), (Some(key), len));
                    }
                    assert_eq!(request.arguments.count(), request.arguments.len());
                    let parsed = request
                        .row()
                        .and_then(|(row, verb)| Command::parse(&request, verb, row.name));
                    formatted.push(format!("{parsed:?}"));
                    consumed
                }
                Read::Line { line, consumed } => {
                    let mut split = Vec::new();
                    match split_line(line, &mut split) {
                        Ok(()) => formatted.push(split.escape_ascii().to_string()),
                        Err(fault) => {
                            formatted.push(format!("{fault:?}"));
                            return formatted;
                        }
                    }
                    consumed
                }
                Read::Nothing { consumed } => consumed,
                Read::Incomplete { wanted } => {
                    assert!(wanted > 0, "an incomplete request must want further bytes");
                    break;
                }
                Read::Oversized { rest, consumed } => {
                    oversized = Some(rest);
                    consumed
                }
                Read::Fault(fault) => {
                    formatted.push(format!("{fault:?}"));
                    return formatted;
                }
            };
            assert!((1..=input.len()).contains(&consumed), "{consumed}");
            input.drain(..consumed);
        }
    }
    formatted
}
