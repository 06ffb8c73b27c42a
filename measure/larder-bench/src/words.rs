//! Splits a custom command into words, with the quotes and escapes of memtier_benchmark and
//! redis-cli.

/// Splits a line into words at white space. A word that starts with a single or double quote ends
/// at the next quote of the same kind, and can contain white space. In double quotes, `\n`, `\r`,
/// `\t`, `\a`, `\b` and `\xHH` are escapes for one byte, and `\` before any other character stands
/// for that character. In single quotes, the only escape is `\'`. Returns `None` if a quote is not
/// closed, or if a character other than white space follows the closing quote.
pub(crate) fn split(line: &str) -> Option<Vec<Vec<u8>>> {
    let mut rest = line.as_bytes();
    let mut words = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let (word, left) = match rest.split_first() {
            None => return Some(words),
            Some((b'"', quoted)) => in_double_quotes(quoted)?,
            Some((b'\'', quoted)) => in_single_quotes(quoted)?,
            Some(_) => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        if !left.first().is_none_or(u8::is_ascii_whitespace) {
            return None;
        }
        words.push(word);
        rest = left;
    }
}

fn in_single_quotes(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            [b'\\', b'\'', left @ ..] => {
                word.push(b'\'');
                left
            }
            [b'\'', left @ ..] => return Some((word, left)),
            [byte, left @ ..] => {
                word.push(*byte);
                left
            }
            [] => return None,
        };
    }
}

fn in_double_quotes(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, left @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digits = [*high, *low];
                word.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                left
            }
            [b'\\', escaped, left @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    other => *other,
                });
                left
            }
            [b'"', left @ ..] => return Some((word, left)),
            [byte, left @ ..] => {
                word.push(*byte);
                left
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_escapes() {
        let words = |line| split(line).map(|words| words.join(&b'|'));
        assert_eq!(words("set  __key__ 5"), Some(b"set|__key__|5".to_vec()));
        assert_eq!(words(r#"set "a b" 'c "d'"#), Some(b"set|a b|c \"d".to_vec()));
        assert_eq!(words(r#""\x41\n\"" '\''"#), Some(b"A\n\"|'".to_vec()));
        assert_eq!(words(r#"set "" x"#), Some(b"set||x".to_vec()));
        assert_eq!(words(""), Some(Vec::new()));
        for wrong in [r#"set "a"#, "set 'a", r#"set "a"b"#] {
            assert_eq!(words(wrong), None, "{wrong}");
        }
    }
}
