//! The escape sequences of transcript lines.

use crate::piece::{Form, Piece};

/// Parses a line into pieces.
pub(crate) fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut out = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escaped = &rest[at + 1..];
        rest = if rest[at..].starts_with('\\') {
            backslash(escaped, &mut bytes)?
        } else {
            let (braced, behind) = escaped.split_once('}').ok_or("a `{` without `}`")?;
            match brace(braced)? {
                Piece::Bytes(repeated) => bytes.extend(repeated),
                piece => {
                    out.push(Piece::Bytes(std::mem::take(&mut bytes)));
                    out.push(piece);
                }
            }
            behind
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    out.push(Piece::Bytes(bytes));
    Ok(out)
}

/// Parses a string of literal bytes. A CAS value or `{number}` in the string is an error.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    match pieces(text)?.as_slice() {
        [Piece::Bytes(bytes)] => Ok(bytes.clone()),
        _ => Err(format!("neither a CAS nor {{number}} is allowed here: {text}")),
    }
}

fn backslash<'t>(text: &'t str, bytes: &mut Vec<u8>) -> Result<&'t str, String> {
    let wrong = || format!("unknown escape sequence: \\{text}");
    let letter = text.chars().next().ok_or_else(wrong)?;
    bytes.push(match letter {
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        's' => b' ',
        '\\' => b'\\',
        '{' => b'{',
        'x' => {
            let digits = text.get(1..3).ok_or_else(wrong)?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            return Ok(&text[3..]);
        }
        _ => return Err(wrong()),
    });
    Ok(&text[1..])
}

fn brace(text: &str) -> Result<Piece, String> {
    if text == "number" {
        return Ok(Piece::Number);
    }
    if let Some(name) = text.strip_prefix("cas:") {
        return cas(name, Form::Decimal);
    }
    let wrong = || format!("expected {{text*count}}, {{cas:name}} or {{number}}: {{{text}}}");
    let (unit, times) = text.rsplit_once('*').ok_or_else(wrong)?;
    let times = times.parse().map_err(|_| wrong())?;
    Ok(Piece::Bytes(bytes(unit)?.repeat(times)))
}

/// Parses a CAS name with an optional offset.
pub(crate) fn cas(text: &str, form: Form) -> Result<Piece, String> {
    let at = text.find(['+', '-']).unwrap_or(text.len());
    let (name, offset) = text.split_at(at);
    let offset = if offset.is_empty() { Ok(0) } else { offset.parse() };
    let offset = offset.map_err(|_| format!("the offset after {name} is not a number"))?;
    Ok(Piece::Cas { name: name.to_owned(), offset, form })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_repetitions() {
        for (text, expected) in [
            ("a\\x00b", &b"a\0b"[..]),
            ("{ab*3}", b"ababab"),
            ("\\s\\t\\r\\n\\\\\\{", b" \t\r\n\\{"),
            ("x{\\x80*2}y{z*0}", b"x\x80\x80y"),
        ] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_cas_has_a_name_and_perhaps_an_offset() {
        let form = Form::Decimal;
        let expected = Piece::Cas { name: "a".to_owned(), offset: -2, form };
        assert_eq!(pieces("c{cas:a-2}").unwrap()[1], expected);
    }
}
