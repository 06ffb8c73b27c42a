//! Encoders for RESP requests: an array of words, each with its length.

use super::{WireKey, push_block};
use crate::text::number::{push, push_len};

/// Writes `GET`, which looks up a key.
#[inline]
pub fn get(key: WireKey<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    word(key.bytes(), out);
}

/// Starts an `MGET` of `keys` keys. Add each key with [`mget_key`]. The reply is an
/// [`Array`](crate::answer::Answer::Array) with a hit or a miss for each key.
#[inline]
pub fn mget(keys: usize, out: &mut Vec<u8>) {
    begin(keys + 1, out);
    out.extend_from_slice(b"$4\r\nMGET\r\n");
}

/// Adds a key to an [`mget`].
#[inline]
pub fn mget_key(key: WireKey<'_>, out: &mut Vec<u8>) {
    word(key.bytes(), out);
}

/// Writes `SET`, which stores a value. Adds `EX` if `ttl_secs` is not 0.
#[inline]
pub fn set(key: WireKey<'_>, value: &[u8], ttl_secs: u32, out: &mut Vec<u8>) {
    let head: &[u8] = match ttl_secs {
        0 => b"*3\r\n$3\r\nSET\r\n",
        _ => b"*5\r\n$3\r\nSET\r\n",
    };
    out.extend_from_slice(head);
    word(key.bytes(), out);
    word(value, out);
    if ttl_secs > 0 {
        out.extend_from_slice(b"$2\r\nEX\r\n");
        word(itoa::Buffer::new().format(ttl_secs).as_bytes(), out);
    }
}

/// Writes any command: its name and arguments.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    begin(words.len(), out);
    words.iter().for_each(|bytes| word(bytes, out));
}

/// Starts a command of `words` words, for callers that produce one word at a time. Add each word
/// with [`word`] or [`word_of_parts`].
#[inline]
pub fn begin(words: usize, out: &mut Vec<u8>) {
    out.push(b'*');
    push_len(words, b"\r\n", out);
}

/// Adds a word to a command.
#[inline]
pub fn word(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    push_len(bytes.len(), b"\r\n", out);
    push_block(bytes, out);
}

/// Adds a word to a command. The word is the concatenation of `parts`.
pub fn word_of_parts(parts: &[&[u8]], out: &mut Vec<u8>) {
    out.push(b'$');
    push(parts.iter().map(|part| part.len() as u64).sum(), out);
    out.extend_from_slice(b"\r\n");
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_written_with_its_length() {
        let mut out = Vec::new();
        command(&[b"AUTH", b"", b"pass: word"], &mut out);
        assert_eq!(out, b"*3\r\n$4\r\nAUTH\r\n$0\r\n\r\n$10\r\npass: word\r\n");
        out.clear();
        begin(2, &mut out);
        word(b"DEL", &mut out);
        word_of_parts(&[b"k-", b"17", b""], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nDEL\r\n$4\r\nk-17\r\n");
    }
}
