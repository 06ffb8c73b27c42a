//! A text line cut at its spaces.

/// The tokens of a line. The space is the only separator; tabs and other control bytes belong to
/// tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'b>(pub(crate) &'b [u8]);

impl<'b> Iterator for Tokens<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        let rest = skip_spaces(self.0);
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (token, rest) = rest.split_at_checked(end)?;
        self.0 = rest;
        if token.is_empty() { None } else { Some(token) }
    }
}

/// The rest behind leading spaces.
#[inline]
pub(crate) fn skip_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().take_while(|&&byte| byte == b' ').count();
    bytes.get(spaces..).unwrap_or_default()
}

/// The rest before trailing spaces.
pub(crate) fn trim_end_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().rev().take_while(|&&byte| byte == b' ').count();
    bytes.get(..bytes.len() - spaces).unwrap_or_default()
}
