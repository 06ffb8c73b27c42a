//! Inline requests: lines of words, optionally quoted, with the rules of redis-server's
//! `sdssplitargs`.

use super::fault::ProtocolError;
use crate::text::number::push;

/// Appends a line's words to `out` as an array of bulk strings. Appends nothing for a line without
/// words.
///
/// # Errors
/// A quote is not closed, or a word follows a closing quote immediately. Nothing is appended.
pub fn split_line(line: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    let mut words = Vec::new();
    let mut rest = skip_blanks(line);
    while !rest.is_empty() {
        let (word, behind) = next_word(rest).ok_or(ProtocolError::Quotes)?;
        words.push(word);
        rest = skip_blanks(behind);
    }
    if words.is_empty() {
        return Ok(());
    }
    out.push(b'*');
    push(words.len() as u64, out);
    for word in words {
        out.extend_from_slice(b"\r\n$");
        push(word.len() as u64, out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&word);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn skip_blanks(line: &[u8]) -> &[u8] {
    let blanks = line.iter().take_while(|byte| is_space(**byte)).count();
    line.get(blanks..).unwrap_or_default()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Splits off the first word of a line without leading white space; `None` if its quotes are
/// malformed.
fn next_word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            // As in C strings, a NUL ends the line.
            [] | [0, ..] => return Some((word, &[])),
            [b'"', quoted @ ..] => return double_quoted(word, quoted),
            [b'\'', quoted @ ..] => return single_quoted(word, quoted),
            [b' ' | b'\n' | b'\r' | b'\t', behind @ ..] => return Some((word, behind)),
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
        };
    }
}

fn double_quoted(mut word: Vec<u8>, mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    loop {
        rest = match rest {
            [] | [0, ..] => return None,
            [b'\\', b'x', high, low, behind @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hex(*high) << 4 | hex(*low));
                behind
            }
            [b'\\', escaped, behind @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                behind
            }
            [b'"', behind @ ..] => return closed(word, behind),
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
        };
    }
}

fn single_quoted(mut word: Vec<u8>, mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    loop {
        rest = match rest {
            [] | [0, ..] => return None,
            [b'\\', b'\'', behind @ ..] => {
                word.push(b'\'');
                behind
            }
            [b'\'', behind @ ..] => return closed(word, behind),
            [byte, behind @ ..] => {
                word.push(*byte);
                behind
            }
        };
    }
}

/// Ends a quoted word before `behind`; `None` if another word follows immediately.
fn closed(word: Vec<u8>, behind: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    match behind.first() {
        None | Some(0) => Some((word, &[])),
        Some(byte) if is_space(*byte) => Some((word, behind)),
        Some(_) => None,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&str>) {
        let mut out = Vec::new();
        let split = split_line(line.as_bytes(), &mut out).ok();
        assert_eq!(split.map(|()| out.escape_ascii().to_string()).as_deref(), expected, "{line}");
    }

    #[test]
    fn quoted_words_are_split_like_redis_server() {
        check("", Some(""));
        check("  ", Some(""));
        check("PING", Some(r"*1\r\n$4\r\nPING\r\n"));
        check(" set  k\tv ", Some(r"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\nv\r\n"));
        check(r#"echo "a b\n\x41\q""#, Some(r"*2\r\n$4\r\necho\r\n$6\r\na b\nAq\r\n"));
        check(r"echo 'a\'b\n'", Some(r"*2\r\n$4\r\necho\r\n$5\r\na\'b\\n\r\n"));
        check(r#"echo """#, Some(r"*2\r\n$4\r\necho\r\n$0\r\n\r\n"));
        for bad in [r#"echo "a"#, r#"echo "a"b"#, "echo 'a", "echo 'a'b", r#"a"b"#] {
            check(bad, None);
        }
    }
}
