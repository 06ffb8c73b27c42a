//! Glob patterns of keys, with redis-server's rules.

/// Returns whether all of `text` matches `pattern`. `*` matches any bytes, `?` one byte, `[a-z]`
/// one byte in the class, `[^a]` one byte outside of the class; `\` escapes the next byte. The time
/// is at most proportional to the product of both lengths.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern_at, mut text_at) = (0, 0);
    // The position to resume from after a mismatch: the offset in the pattern after the last `*`,
    // and the offset in the text at which the rest of the pattern was last tried.
    let mut retry = None;
    loop {
        let rest = pattern.get(pattern_at..).unwrap_or_default();
        if rest.first() == Some(&b'*') {
            pattern_at += 1;
            retry = Some((pattern_at, text_at));
            continue;
        }
        let Some(&byte) = text.get(text_at) else {
            // The text has ended. Backtracking cannot help: if the last `*` matched more bytes,
            // even less text would be left for the rest of the pattern.
            return rest.is_empty();
        };
        if let Some(len) = element(rest, byte) {
            pattern_at += len;
            text_at += 1;
        } else if let Some((after_star, tried_at)) = &mut retry {
            *tried_at += 1;
            (pattern_at, text_at) = (*after_star, *tried_at);
        } else {
            return false;
        }
    }
}

/// Returns the length of a pattern's first element if `byte` matches this element. The pattern must
/// not start with `*`.
fn element(pattern: &[u8], byte: u8) -> Option<usize> {
    let (len, is_matched) = match pattern {
        [] => return None,
        [b'?', ..] => (1, true),
        [b'\\', literal, ..] => (2, *literal == byte),
        [b'[', class @ ..] => {
            let (len, is_matched) = class_of(class, byte);
            (1 + len, is_matched)
        }
        [literal, ..] => (1, *literal == byte),
    };
    is_matched.then_some(len)
}

/// Returns the length of a class after its `[`, and whether it contains `byte`. An unclosed class
/// ends with the pattern.
fn class_of(class: &[u8], byte: u8) -> (usize, bool) {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;
    loop {
        let (len, is_found) = match class.get(at..).unwrap_or_default() {
            [] => return (class.len(), is_in != is_negated),
            [b']', ..] => return (at + 1, is_in != is_negated),
            [b'\\', literal, ..] => (2, *literal == byte),
            [from, b'-', to, ..] => (3, (*from.min(to)..=*from.max(to)).contains(&byte)),
            [literal, ..] => (1, *literal == byte),
        };
        at += len;
        is_in |= is_found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_redis_server() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "any", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("*b*b*", "abab", true),
            ("*b*b*", "aba", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hbllo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            (r"[\]]", "]", true),
            ("[]", "]", false),
            ("[ab", "b", true),
            ("[ab", "c", false),
            (r"\", r"\", true),
            ("user:*:name", "user:17:name", true),
            ("user:*:name", "user:17:names", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_takes_polynomial_time() {
        let pattern = "a*".repeat(100) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 10_000]));
    }
}
