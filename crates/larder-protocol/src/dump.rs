//! Encoders for dumps, which list the items of the cache for operators. A dump has one line per
//! item.

use crate::meta_flags::number;
use crate::parse::base64;
use crate::request::KEY_LEN_MAX;

/// The fields of an item in a dump.
#[derive(Clone, Copy, Debug)]
pub struct DumpItem<'k> {
    /// The decoded key.
    pub key: &'k [u8],
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry. [`metadump`] ignores this
    /// field, because it percent-encodes all keys.
    pub binary_key: bool,
    /// The expiry in Unix seconds; `None` if the item never expires.
    pub expires: Option<u32>,
    /// The last access in Unix seconds.
    pub accessed: u32,
    /// The CAS; 0 if the server stores no CAS values (`-C`).
    pub cas: u64,
    /// Whether the item has been read since it was stored.
    pub fetched: bool,
    /// memcached's slab class.
    pub class: u8,
    /// The size of the item in bytes, counted as memcached does.
    pub size: usize,
    /// The length of the value in bytes.
    pub value_len: usize,
    /// Client flags, which the server does not interpret.
    pub client_flags: u32,
    /// The location of an item on flash: its page, and its offset in this page in bytes.
    pub flash_location: Option<(u32, u32)>,
}

/// Writes a line of `lru_crawler metadump`. As in memcached, the line ends in a space and LF,
/// without CR.
pub fn metadump(item: &DumpItem<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    uri(item.key, out);
    match item.expires {
        Some(at) => number(b" exp=", at.into(), out),
        None => out.extend_from_slice(b" exp=-1"),
    }
    number(b" la=", item.accessed.into(), out);
    number(b" cas=", item.cas, out);
    out.extend_from_slice(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
    number(b" cls=", item.class.into(), out);
    number(b" size=", item.size as u64, out);
    number(b" flags=", item.client_flags.into(), out);
    if let Some((page, offset)) = item.flash_location {
        number(b" ext_page=", page.into(), out);
        number(b" ext_offset=", offset.into(), out);
    }
    out.extend_from_slice(b" \n");
}

/// Returns whether a text request can contain the key: its encoding has at most [`KEY_LEN_MAX`]
/// bytes. RESP can store longer keys, and the binary protocol can store keys whose base64 encoding
/// is longer.
#[must_use]
pub fn can_be_sent(item: &DumpItem<'_>) -> bool {
    let len = item.key.len();
    (if item.binary_key { len.div_ceil(3) * 4 } else { len }) <= KEY_LEN_MAX
}

/// Writes a line of `lru_crawler mgdump`. Call [`can_be_sent`] first.
pub fn mgdump(item: &DumpItem<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if item.binary_key {
        base64::encode(item.key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(item.key);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a line of `stats cachedump`.
pub fn cachedump(item: &DumpItem<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(item.key);
    number(b" [", item.value_len as u64, out);
    number(b" b; ", item.expires.unwrap_or(0).into(), out);
    out.extend_from_slice(b" s]\r\n");
}

/// Writes `key` percent-encoded: all bytes except letters, digits and `-._~` become `%XX`.
pub fn uri(key: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied().unwrap_or_default();
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(show: fn(&DumpItem<'_>, &mut Vec<u8>), item: &DumpItem<'_>) -> String {
        let mut out = Vec::new();
        show(item, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_match_memcached() {
        let item = DumpItem {
            key: b"a b/\xff~",
            binary_key: false,
            expires: Some(1_700_000_100),
            accessed: 1_700_000_000,
            cas: 7,
            fetched: true,
            class: 1,
            size: 69,
            value_len: 3,
            client_flags: 5,
            flash_location: None,
        };
        let meta = "key=a%20b%2F%FF~ exp=1700000100 la=1700000000 cas=7 fetch=yes cls=1 size=69 flags=5 \n";
        assert_eq!(shown(metadump, &item), meta);
        let on_flash = DumpItem { flash_location: Some((3, 4096)), ..item };
        let expected = meta.replace(" \n", " ext_page=3 ext_offset=4096 \n");
        assert_eq!(shown(metadump, &on_flash), expected);
        let immortal = DumpItem { expires: None, key: b"ab", ..item };
        assert!(shown(metadump, &immortal).contains(" exp=-1 "));
        assert_eq!(shown(mgdump, &immortal), "mg ab\r\n");
        let binary = DumpItem { binary_key: true, key: &[0, 1, 2], ..item };
        assert_eq!(shown(mgdump, &binary), "mg AAEC b\r\n");
        assert_eq!(shown(cachedump, &immortal), "ITEM ab [3 b; 0 s]\r\n");
    }
}
