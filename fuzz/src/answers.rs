//! Reads replies as a client does.

use larder_protocol::answer::{Answer, read_binary, read_resp, read_text};
use larder_protocol::response::Read;

/// A reader of replies.
pub type ReadAnswer = for<'b> fn(&'b [u8]) -> Read<Answer<'b>>;

/// The readers of all protocols.
pub const READERS: [ReadAnswer; 3] = [read_text, read_binary, read_resp];

/// Reads a stream that arrives in `pieces`, and formats its replies up to the first malformed one.
/// After an incomplete reply, calls the reader again only when the input has the length that the
/// reader has requested.
///
/// # Panics
/// The reader consumes no bytes or more bytes than the input contains, or reports an incomplete
/// reply without requesting more bytes than the input contains.
pub fn answers<'s>(pieces: impl Iterator<Item = &'s [u8]>, read: ReadAnswer) -> Vec<String> {
    let (mut formatted, mut input, mut wanted) = (Vec::new(), Vec::new(), 1);
    for piece in pieces {
        input.extend_from_slice(piece);
        while input.len() >= wanted {
            match read(&input) {
                Read::Whole(answer, len) => {
                    assert!((1..=input.len()).contains(&len), "{answer:?}: {len}");
                    formatted.push(format!("{answer:?}"));
                    input.drain(..len);
                    wanted = 1;
                }
                Read::Incomplete { wanted: more } => {
                    assert!(more > input.len(), "{more} bytes wanted, {} here", input.len());
                    wanted = more;
                }
                Read::Malformed => {
                    formatted.push("malformed".to_owned());
                    return formatted;
                }
            }
        }
    }
    formatted
}
