//! Functions that the fuzz targets share. They pass bytes in pieces to a parser, a session or a
//! client's reader.

mod answers;
mod conversation;
mod parsing;
mod resp;

pub use answers::{READERS, ReadAnswer, answers};
pub use conversation::{Answers, classes, run_session, run_session_from};
pub use parsing::requests;
pub use resp::resp_requests;

/// Splits a stream into pieces. Each byte of `lengths` is the length of a piece minus 1. After the
/// last length, the lengths repeat from the start. If `lengths` is empty, returns the stream as one
/// piece.
pub fn pieces<'s>(stream: &'s [u8], lengths: &'s [u8]) -> impl Iterator<Item = &'s [u8]> {
    let mut rest = stream;
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let len = lengths.next().map_or(rest.len(), |len| usize::from(*len) + 1);
        let (piece, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Splits the fuzz input into the lengths of pieces and the stream. Returns `None` if the input is
/// too short.
pub fn cut(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = input.split_first()?;
    rest.split_at_checked(usize::from(count % 8))
}
