//! The reader of RESP requests alone.

use larder_protocol::resp::{Bounds, Command, Read, fast_get, read, split_line};

/// Which fault is found beyond the longest request depends on how it arrives, so no input is as long.
const BOUNDS: Bounds =
    Bounds { bulk_len_max: 1 << 10, request_len_max: 1 << 30, needs_login: false };

/// Every request of a stream that arrives in `pieces`, written down.
///
/// # Panics
/// The reader consumes nothing, or more than there is, or the fast path reads something else.
pub fn resp_requests<'s>(pieces: impl Iterator<Item = &'s [u8]>) -> Vec<String> {
    let (mut seen, mut input) = (Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let consumed = match read(&input, &BOUNDS) {
                Read::Request { request, consumed } => {
                    if let Some((key, len)) = fast_get(&input) {
                        assert_eq!((request.arguments.last(), consumed), (Some(key), len));
                    }
                    assert_eq!(request.arguments.count(), request.arguments.len());
                    let parsed = request
                        .row()
                        .and_then(|(row, verb)| Command::parse(&request, verb, row.name));
                    seen.push(format!("{parsed:?}"));
                    consumed
                }
                Read::Line { line, consumed } => {
                    let mut split = Vec::new();
                    match split_line(line, &mut split) {
                        Ok(()) => seen.push(split.escape_ascii().to_string()),
                        Err(fault) => {
                            seen.push(format!("{fault:?}"));
                            return seen;
                        }
                    }
                    consumed
                }
                Read::Nothing { consumed } => consumed,
                Read::Incomplete { wanted } => {
                    assert!(wanted > 0, "it is all here");
                    break;
                }
                Read::Fault(fault) => {
                    seen.push(format!("{fault:?}"));
                    return seen;
                }
            };
            assert!((1..=input.len()).contains(&consumed), "{consumed}");
            input.drain(..consumed);
        }
    }
    seen
}
