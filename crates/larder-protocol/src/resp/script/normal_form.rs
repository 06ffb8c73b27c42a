//! The normal form of a Lua script: the same for all texts that differ in blanks, comments, quotes,
//! names of local variables, and the letter case of Redis's commands.
//!
//! The form is the script's tokens, separated by spaces. Local names become `v0`, `v1`, … in the
//! order in which they appear. Strings are in double quotes. The string after `call(` is in lower
//! case. The form has no semicolons.

use std::collections::BTreeMap;

/// The keywords of Lua 5.1.
const KEYWORDS: [&[u8]; 21] = [
    b"and",
    b"break",
    b"do",
    b"else",
    b"elseif",
    b"end",
    b"false",
    b"for",
    b"function",
    b"if",
    b"in",
    b"local",
    b"nil",
    b"not",
    b"or",
    b"repeat",
    b"return",
    b"then",
    b"true",
    b"until",
    b"while",
];

/// The global names that known scripts use.
const GLOBAL_NAMES: [&[u8]; 20] = [
    b"redis",
    b"call",
    b"pcall",
    b"KEYS",
    b"ARGV",
    b"tonumber",
    b"tostring",
    b"math",
    b"max",
    b"min",
    b"ceil",
    b"floor",
    b"ipairs",
    b"pairs",
    b"unpack",
    b"table",
    b"string",
    b"error_reply",
    b"status_reply",
    b"replicate_commands",
];

/// The maximum length, in bytes, of a script that [`normal_form`] accepts. Known scripts are
/// shorter.
pub const SCRIPT_LEN_MAX: usize = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'s> {
    Name(&'s [u8]),
    Number(&'s [u8]),
    /// A string, without its quotes.
    Text(&'s [u8]),
    Symbol(&'s [u8]),
}

/// Returns the normal form of a script, or `None` if the script is too long or has an invalid
/// token. Does not check the syntax of statements.
#[must_use]
pub fn normal_form(script: &[u8]) -> Option<Vec<u8>> {
    if script.len() > SCRIPT_LEN_MAX {
        return None;
    }
    let (mut form, mut names, mut rest) =
        (Vec::with_capacity(script.len()), BTreeMap::new(), script);
    let mut last_two = [None, None];
    while let Some((token, behind)) = next_token(rest)? {
        rest = behind;
        if token == Token::Symbol(b";") {
            // Refuse a `;` that does not end a statement: Lua 5.1, which Redis uses, has no empty
            // statements.
            let next = next_token(rest)?.map(|(token, _)| token);
            if !last_two[1].is_some_and(ends_statement) || !next.is_none_or(starts_statement) {
                return None;
            }
            continue;
        }
        if !form.is_empty() {
            form.push(b' ');
        }
        match token {
            Token::Name(name) if !KEYWORDS.contains(&name) && !GLOBAL_NAMES.contains(&name) => {
                let number = names.len();
                let number = *names.entry(name).or_insert(number);
                form.extend_from_slice(format!("v{number}").as_bytes());
            }
            Token::Text(text) => {
                let is_command = matches!(
                    last_two,
                    [Some(Token::Name(b"call" | b"pcall")), Some(Token::Symbol(b"("))]
                );
                form.push(b'"');
                if is_command {
                    form.extend(text.iter().map(u8::to_ascii_lowercase));
                } else {
                    form.extend_from_slice(text);
                }
                form.push(b'"');
            }
            Token::Name(bytes) | Token::Number(bytes) | Token::Symbol(bytes) => {
                form.extend_from_slice(bytes);
            }
        }
        last_two = [last_two[1], Some(token)];
    }
    Some(form)
}

/// Returns whether a statement may end with this token.
fn ends_statement(token: Token<'_>) -> bool {
    match token {
        Token::Name(b"end" | b"true" | b"false" | b"nil" | b"break") => true,
        Token::Name(name) => !KEYWORDS.contains(&name),
        Token::Number(_) | Token::Text(_) => true,
        Token::Symbol(symbol) => matches!(symbol, b")" | b"]" | b"}"),
    }
}

/// Returns whether a statement, or the end of a block, may start with this token. Returns false for
/// a parenthesis, although a Lua statement may start with one.
fn starts_statement(token: Token<'_>) -> bool {
    matches!(token, Token::Name(name) if !matches!(
        name,
        b"and" | b"false" | b"in" | b"nil" | b"not" | b"or" | b"then" | b"true"
    ))
}

/// Splits off the next token, after blanks and comments. Returns `Some(None)` at the end of the
/// script, and `None` for bytes that no known script contains.
fn next_token(script: &[u8]) -> Option<Option<(Token<'_>, &[u8])>> {
    let mut rest = script.trim_ascii_start();
    while let Some(comment) = rest.strip_prefix(b"--") {
        if comment.starts_with(b"[[") {
            let end = memchr::memmem::find(comment, b"]]")?;
            rest = comment.get(end + 2..)?.trim_ascii_start();
        } else if comment.starts_with(b"[=") {
            // The script contains a long comment with `=` in its brackets. No known script contains
            // such a comment.
            return None;
        } else {
            let end = memchr::memchr2(b'\n', b'\r', comment).unwrap_or(comment.len());
            rest = comment.get(end..)?.trim_ascii_start();
        }
    }
    let Some(&first) = rest.first() else { return Some(None) };
    let span = |matches: fn(&u8) -> bool| rest.iter().take_while(|byte| matches(byte)).count();
    let (len, make): (usize, fn(&[u8]) -> Token<'_>) = match first {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
            (span(|byte| byte.is_ascii_alphanumeric() || *byte == b'_'), |name| Token::Name(name))
        }
        b'0'..=b'9' => (span(|byte| byte.is_ascii_alphanumeric() || *byte == b'.'), |digits| {
            Token::Number(digits)
        }),
        b'"' | b'\'' => {
            let text = rest.get(1..)?;
            let text = text.get(..memchr::memchr(first, text)?)?;
            // Known scripts contain no escape sequences, and an escape sequence could hide a quote.
            if text.iter().any(|byte| matches!(byte, b'\\' | b'"' | b'\n')) {
                return None;
            }
            return Some(Some((Token::Text(text), rest.get(text.len() + 2..)?)));
        }
        _ if [&b"=="[..], b"~=", b"<=", b">=", b".."].iter().any(|pair| rest.starts_with(pair)) => {
            (2, |symbol| Token::Symbol(symbol))
        }
        0x21..=0x7e => (1, |symbol| Token::Symbol(symbol)),
        _ => return None,
    };
    let (token, rest) = rest.split_at_checked(len)?;
    Some(Some((make(token), rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(script: &str, expected: Option<&str>) {
        let form = normal_form(script.as_bytes());
        assert_eq!(form.map(|form| String::from_utf8(form).unwrap()).as_deref(), expected);
    }

    #[test]
    fn texts_with_one_meaning_have_one_form() {
        let form = "local v0 = redis . call ( \"get\" , KEYS [ 1 ] ) return v0 ~= \"No\"";
        for script in [
            "local a=redis.call('GET',KEYS[1]) return a~='No'",
            "\n-- a comment\nlocal value = redis.call(\"get\", KEYS[1]);\n\treturn value ~= \"No\" --end",
            "-- a comment\rlocal a = redis.call('get', KEYS[1]); return a ~= 'No';",
            "--[[ several\nlines ]] local _x1 = redis . call ( 'Get' , KEYS[1] ) ; return _x1 ~= 'No'",
        ] {
            check(script, Some(form));
        }
        check("local a, b = 1 local c = b .. a", Some("local v0 , v1 = 1 local v2 = v1 .. v0"));
        check("", Some(""));
    }

    #[test]
    fn other_texts_have_no_form() {
        for script in [
            "return 'a",
            "; return 1",
            "if true then ; return 1 end",
            "return; 1",
            "redis.call;('get')",
            "redis.call('get', KEYS[1];)",
            "local a; = 1",
            "local a = 1; ; return a",
            "return 'a\\'b'",
            "return '\"'",
            "return 'a\nb'",
            "--[[ x",
            "--[==[\nreturn 1\n--]==]",
            "return \u{e4}",
        ] {
            check(script, None);
        }
        check(&" ".repeat(SCRIPT_LEN_MAX + 1), None);
    }

    #[test]
    fn texts_with_other_meanings_have_other_forms() {
        let form = |script: &str| normal_form(script.as_bytes()).unwrap();
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return 1 else return 0 end";
        for (part, other) in [
            ("==", "~="),
            ("ARGV[1]", "ARGV[2]"),
            ("KEYS[1]", "ARGV[1]"),
            ("'get'", "'del'"),
            ("return 1", "return '1'"),
            ("redis.call", "redis.pcall"),
        ] {
            assert_ne!(form(script), form(&script.replacen(part, other, 1)), "{part}");
        }
    }
}
