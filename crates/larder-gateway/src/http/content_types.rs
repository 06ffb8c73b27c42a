//! Encodes content types as client flags. An item has no field for a content type, but it has 32
//! bits of client flags. The flags of a value stored over HTTP contain the number of a row in this
//! table.

/// The upper 24 bits of client flags that refer to a row. The lower eight bits are the row number.
const MARK: u32 = 0x4C00_0000;

/// The content type for flags that refer to no row. An item stored with a content type that is not
/// in the table also has such flags.
pub(super) const UNKNOWN: &str = "application/octet-stream";

/// The content types. Row numbers never change, because items survive restarts with newer versions.
const TABLE: [&str; 22] = [
    UNKNOWN,
    "text/plain; charset=utf-8",
    "application/json",
    "text/html; charset=utf-8",
    "text/css; charset=utf-8",
    "text/javascript; charset=utf-8",
    "text/csv; charset=utf-8",
    "text/xml; charset=utf-8",
    "application/xml",
    "application/pdf",
    "application/msgpack",
    "application/x-protobuf",
    "application/cbor",
    "application/wasm",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/avif",
    "image/svg+xml",
    "font/woff2",
    "text/markdown; charset=utf-8",
];

/// Returns the flags for a content type, or 0 if the type is not in the table. A text type without
/// a charset counts as UTF-8. For other types, the charset UTF-8 has no effect.
pub(super) fn flags_of(content_type: &str) -> u32 {
    let normal = |text: &str| -> String {
        let plain = text.chars().filter(|c| !c.is_ascii_whitespace() && *c != '"');
        plain.collect::<String>().to_ascii_lowercase()
    };
    let wanted = normal(content_type);
    let row = TABLE.iter().position(|row| {
        let row = normal(row);
        row == wanted
            || row.strip_suffix(";charset=utf-8") == Some(&wanted)
            || wanted.strip_suffix(";charset=utf-8") == Some(&row)
    });
    row.and_then(|row| u32::try_from(row).ok()).map_or(0, |row| MARK | row)
}

/// Returns the content type for client flags.
pub(super) fn type_of(flags: u32) -> &'static str {
    let row = usize::try_from(flags ^ MARK).ok().and_then(|row| TABLE.get(row));
    row.copied().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_content_type_maps_to_its_row_and_back() {
        for (row, name) in TABLE.iter().enumerate() {
            assert_eq!(flags_of(name), MARK | u32::try_from(row).unwrap());
            assert_eq!(type_of(flags_of(name)), *name);
        }
        for (sent, shown) in [
            ("TEXT/PLAIN", "text/plain; charset=utf-8"),
            ("text/html;charset=\"UTF-8\"", "text/html; charset=utf-8"),
            ("text/plain; charset=latin-1", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert_eq!(type_of(flags_of(sent)), shown, "{sent}");
        }
        assert_eq!([type_of(0), type_of(5), type_of(MARK | 200), type_of(u32::MAX)], [UNKNOWN; 4]);
    }
}
