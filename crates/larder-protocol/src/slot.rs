//! Slots of a Larder cluster.

use rapidhash::v3::rapidhash_v3;

/// The number of slots in a cluster.
pub const SLOTS: u16 = 4096;

/// Returns the slot of a key: its rapidhash (version 3, default seed) modulo 4096. If the key has a
/// non-empty part in `{…}`, only this part is hashed, as in a Redis cluster. In this way, clients
/// can assign several keys to one slot.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below 4096")]
pub fn slot(key: &[u8]) -> u16 {
    (rapidhash_v3(hashed_part(key)) % u64::from(SLOTS)) as u16
}

/// Returns the part between the first `{` and the next `}`, or the whole key if this part is empty
/// or missing.
fn hashed_part(key: &[u8]) -> &[u8] {
    let tag = || {
        let tail = key.splitn(2, |byte| *byte == b'{').nth(1)?;
        let mut parts = tail.splitn(2, |byte| *byte == b'}');
        let tag = parts.next().filter(|tag| !tag.is_empty())?;
        parts.next().map(|_| tag)
    };
    tag().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_in_braces_is_hashed() {
        let check = |key: &str, expected: &str| {
            assert_eq!(hashed_part(key.as_bytes()), expected.as_bytes(), "{key}");
        };
        check("user:1", "user:1");
        check("{user:1}", "user:1");
        check("a{user:1}b", "user:1");
        check("a{b}{c}", "b");
        check("a{{b}}c", "{b");
        check("}a{b}", "b");
        check("a{}b{c}", "a{}b{c}");
        check("a{b", "a{b");
        check("a}b", "a}b");
        check("", "");
    }
}
