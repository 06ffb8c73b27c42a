//! Tokens of a text line.

/// An iterator over the tokens of a line. Only spaces separate tokens; tabs and other control bytes
/// belong to tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'b>(pub(crate) &'b [u8]);

impl<'b> Iterator for Tokens<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        let rest = skip_spaces(self.0);
        let (token, rest) = rest.split_at_checked(token_len(rest))?;
        self.0 = rest;
        if token.is_empty() { None } else { Some(token) }
    }
}

/// Returns the number of bytes before the first space. Tests eight bytes at a time. Tokens are
/// short, so a call to `memchr` for each token would cost more than the rest of the parsing.
#[inline]
fn token_len(bytes: &[u8]) -> usize {
    let (chunks, tail) = bytes.as_chunks::<8>();
    for (i, chunk) in chunks.iter().enumerate() {
        let spaces = zeros(u64::from_le_bytes(*chunk) ^ (EACH * b' ' as u64));
        if spaces != 0 {
            return 8 * i + spaces.trailing_zeros() as usize / 8;
        }
    }
    let in_tail = tail.iter().position(|&byte| byte == b' ').unwrap_or(tail.len());
    8 * chunks.len() + in_tail
}

/// A word in which each byte is 1.
const EACH: u64 = u64::MAX / 255;

/// Sets the top bit of each zero byte. The result is correct up to the first zero byte. Source:
/// "Determine if a word has a zero byte", Bit Twiddling Hacks, S. E. Anderson.
#[inline]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & (EACH * 128)
}

/// Returns the offset of the first space or control character if it is less than `within`.
/// Otherwise, returns `None` or an offset of at least `within`.
#[inline]
pub(crate) fn blank(bytes: &[u8], within: usize) -> Option<usize> {
    let (chunks, tail) = bytes.as_chunks::<8>();
    for (i, chunk) in chunks.iter().take(within / 8 + 1).enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let blanks = below(word, b' ' + 1);
        if blanks != 0 {
            return Some(8 * i + blanks.trailing_zeros() as usize / 8);
        }
    }
    let in_tail = tail.iter().position(|&byte| byte <= b' ')?;
    Some(8 * chunks.len() + in_tail)
}

/// Returns whether any byte is a space, a control character or DEL.
#[inline]
pub(crate) fn has_blank_or_control(bytes: &[u8]) -> bool {
    // The last chunk may overlap the previous chunk, because testing some bytes twice is cheaper
    // than testing single bytes.
    let (chunks, tail) = bytes.as_chunks::<8>();
    match bytes.last_chunk() {
        Some(last) => chunks.iter().chain([last]).any(|chunk| {
            let word = u64::from_le_bytes(*chunk);
            below(word, b' ' + 1) | zeros(word ^ (EACH * 0x7f)) != 0
        }),
        None => tail.iter().any(|&byte| byte <= b' ' || byte == 0x7f),
    }
}

/// Sets the top bit of each byte below `limit`, which is at most 128. The result is correct up to
/// the first such byte. Source: "Determine if a word has a byte less than n", Bit Twiddling Hacks,
/// S. E. Anderson.
#[inline]
fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(EACH * u64::from(limit)) & !word & (EACH * 128)
}

#[inline]
pub(crate) fn skip_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().take_while(|&&byte| byte == b' ').count();
    bytes.get(spaces..).unwrap_or_default()
}

pub(crate) fn trim_end_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().rev().take_while(|&&byte| byte == b' ').count();
    bytes.get(..bytes.len() - spaces).unwrap_or_default()
}
