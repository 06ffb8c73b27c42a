//! The flags and formats of other clients.
//!
//! | | bytes | text | number | pickled | compressed by zlib |
//! |---|---|---|---|---|---|
//! | pymemcache (`pickle_serde`, `compressed_serde`) | 0 | 16 | 2 | 1 | + 8 |
//! | pylibmc | 0 | 16 | 4 (2 for a boolean) | 1 | + 8 |
//! | dalli | 1, marshalled; 0 with `raw` | 1 | 1 | | + 2 |

use super::inflate::inflate;
use super::marshal;
use super::{Codec, CodecError, InvalidValue, Scalar, Value};
use bytes::Bytes;

/// A codec for bytes, text and numbers ([`Scalar`]) in the default format of another client. For
/// pymemcache, this is the format of `serde=pickle_serde`.
///
/// With the feature `compression`, this codec reads values that the other client has compressed. It
/// never compresses values. Decoding a Python or Ruby object of any other type fails with
/// [`InvalidValue::OtherType`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Convention {
    /// pymemcache (Python).
    Pymemcache,
    /// pylibmc (Python).
    Pylibmc,
    /// dalli (Ruby).
    Dalli,
}

mod python {
    pub(super) const INTEGER: u32 = 1 << 1;
    pub(super) const LONG: u32 = 1 << 2;
    pub(super) const COMPRESSED: u32 = 1 << 3;
    pub(super) const TEXT: u32 = 1 << 4;
    pub(super) const PICKLE: u32 = 1;
}

mod dalli {
    pub(super) const SERIALIZED: u32 = 1;
    pub(super) const COMPRESSED: u32 = 1 << 1;
}

impl Convention {
    /// Returns the flag that marks compressed values.
    fn compressed(self) -> u32 {
        match self {
            Self::Pymemcache | Self::Pylibmc => python::COMPRESSED,
            Self::Dalli => dalli::COMPRESSED,
        }
    }

    fn value(self, bytes: Bytes, flags: u32) -> Result<Value, InvalidValue> {
        match (self, flags) {
            (_, 0) => Ok(Value::Bytes(bytes)),
            (Self::Dalli, dalli::SERIALIZED) => marshal::read(&bytes),
            (Self::Dalli, flags) => Err(InvalidValue::Flags(flags)),
            (_, python::TEXT) => {
                let text = String::from_utf8(bytes.into()).map_err(|_| InvalidValue::Damaged)?;
                Ok(Value::Text(text))
            }
            (_, python::INTEGER | python::LONG) => {
                let number = i64::of_value(Value::Bytes(bytes)).ok_or(InvalidValue::Damaged)?;
                Ok(Value::Integer(number))
            }
            (_, python::PICKLE) => Err(InvalidValue::OtherType),
            (_, flags) => Err(InvalidValue::Flags(flags)),
        }
    }
}

impl<T: Scalar> Codec<T> for Convention {
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError> {
        let value = value.to_value();
        if *self == Self::Dalli {
            marshal::write(&value, bytes);
            return Ok(dalli::SERIALIZED);
        }
        Ok(match value {
            Value::Bytes(value) => {
                bytes.extend_from_slice(&value);
                0
            }
            Value::Text(text) => {
                bytes.extend_from_slice(text.as_bytes());
                python::TEXT
            }
            Value::Integer(number) => {
                bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
                if *self == Self::Pylibmc { python::LONG } else { python::INTEGER }
            }
        })
    }

    fn decode(&self, bytes: &Bytes, flags: u32) -> Result<T, CodecError> {
        let compressed = self.compressed();
        let bytes = if flags & compressed == 0 { bytes.clone() } else { inflate(bytes)? };
        let value = self.value(bytes, flags & !compressed)?;
        Ok(T::of_value(value).ok_or(InvalidValue::OtherType)?)
    }
}

#[cfg(test)]
mod tests {
    use super::Convention::{Dalli, Pylibmc, Pymemcache};
    use super::*;

    fn hex(digits: &str) -> Vec<u8> {
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    fn bytes(value: &'static [u8]) -> Value {
        Value::Bytes(Bytes::from_static(value))
    }

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    fn encode(convention: Convention, value: &Value) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        let flags = convention.encode(value, &mut bytes).unwrap();
        (bytes, flags)
    }

    fn decode<T: Scalar>(
        convention: Convention,
        bytes: &[u8],
        flags: u32,
    ) -> Result<T, InvalidValue> {
        let decoded = convention.decode(&Bytes::copy_from_slice(bytes), flags);
        decoded.map_err(|error| *error.downcast().unwrap())
    }

    /// Checks that the codec encodes a value to the same bytes and flags as the other client, and
    /// decodes them to the same value.
    fn check(convention: Convention, value: &Value, expected: &[u8], flags: u32) {
        assert_eq!(encode(convention, value), (expected.to_vec(), flags), "{value:?}");
        assert_eq!(decode(convention, expected, flags), Ok(value.clone()));
    }

    /// The bytes are from pymemcache 4.0.0 with `pickle_serde`, and from pylibmc 1.6.3.
    #[test]
    fn values_of_python_clients_are_read_and_written() {
        for (convention, integer) in [(Pymemcache, 2), (Pylibmc, 4)] {
            check(convention, &bytes(b""), b"", 0);
            check(convention, &bytes(b"\0\xff"), b"\0\xff", 0);
            check(convention, &text(""), b"", 16);
            check(convention, &text("grün"), b"gr\xc3\xbcn", 16);
            for number in [0, 7, -7, 1 << 31, i64::MIN, i64::MAX] {
                check(convention, &Value::Integer(number), number.to_string().as_bytes(), integer);
            }
            // Each of these two conventions also accepts the other convention's number flag.
            assert_eq!(decode(convention, b"7", 6 - integer), Ok(7_i64));
            assert_eq!(decode::<Value>(convention, b"\x80\x05N.", 1), Err(InvalidValue::OtherType));
            assert_eq!(decode::<Value>(convention, b"x", 32), Err(InvalidValue::Flags(32)));
            let long = b"1180591620717411303424";
            assert_eq!(decode::<Value>(convention, long, integer), Err(InvalidValue::Damaged));
        }
    }

    /// The bytes are from dalli 3.0.6.
    #[test]
    fn values_of_dalli_are_read_and_written() {
        check(Dalli, &bytes(b""), &hex("04082200"), 1);
        check(Dalli, &bytes(b"\0\xff"), &hex("0408220700ff"), 1);
        check(Dalli, &text(""), &hex("0408492200063a064554"), 1);
        check(Dalli, &text("grün"), &hex("040849220a6772c3bc6e063a064554"), 1);
        let long = [hex("04084922022c01"), vec![b'x'; 300], hex("063a064554")].concat();
        check(Dalli, &text(&"x".repeat(300)), &long, 1);
        for (number, expected) in [
            (0, "04086900"),
            (7, "0408690c"),
            (-7, "040869f4"),
            (122, "0408697f"),
            (123, "040869017b"),
            (-123, "04086980"),
            (-124, "040869ff84"),
            (255, "04086901ff"),
            (256, "040869020001"),
            (-256, "040869ff00"),
            (-257, "040869fefffe"),
            (65_535, "04086902ffff"),
            (65_536, "04086903000001"),
            ((1 << 30) - 1, "04086904ffffff3f"),
            (1 << 30, "04086c2b0700000040"),
            (-1 << 30, "040869fc000000c0"),
            ((-1 << 30) - 1, "04086c2d0701000040"),
            (1 << 31, "04086c2b0700000080"),
            (i64::MIN, "04086c2d090000000000000080"),
            (i64::MAX, "04086c2b09ffffffffffffff7f"),
        ] {
            check(Dalli, &Value::Integer(number), &hex(expected), 1);
        }
        // The values are a US-ASCII string, and a number written with `raw`.
        let ascii = hex("040849220a6173636969063a064546");
        assert_eq!(decode(Dalli, &ascii, 1), Ok("ascii".to_owned()));
        assert_eq!(decode(Dalli, b"7", 0), Ok(7_i64));
        let shift_jis = [&hex("04084922067806")[..], b":\rencoding\"\x0eShift_JIS"].concat();
        assert_eq!(decode::<Value>(Dalli, &shift_jis, 1), Err(InvalidValue::OtherType));
        assert_eq!(decode::<Value>(Dalli, &hex("040830"), 1), Err(InvalidValue::OtherType), "nil");
    }

    #[cfg(feature = "compression")]
    #[test]
    fn compressed_values_of_other_clients_are_read() {
        let python = hex("789c4b2f3abc272f7d9418254689e14c000073c42acf");
        for convention in [Pymemcache, Pylibmc] {
            assert_eq!(decode(convention, &python, 24), Ok("grün".repeat(200)));
        }
        let ruby = hex(
            "789cedc4a10dc0200000b0842c04bf0f38038fc0f3030ec1153b0ac763bb02d78a3ea9e5f0bd639d3d\
             254992244992245d2d9658fb0ffccfd7fa",
        );
        assert_eq!(decode(Dalli, &ruby, 3), Ok("grün".repeat(1000)));
        for damaged in [&python[..10], b"", b"no zlib"] {
            assert_eq!(decode::<Value>(Pylibmc, damaged, 8), Err(InvalidValue::Damaged));
        }
        let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0; super::super::DECOMPRESSED_LEN_MAX + 1];
        std::io::Write::write_all(&mut bomb, &zeros).unwrap();
        let bomb = bomb.finish().unwrap();
        let too_long = InvalidValue::TooLong(super::super::DECOMPRESSED_LEN_MAX);
        assert_eq!(decode::<Value>(Pylibmc, &bomb, 8), Err(too_long));
    }

    #[test]
    fn a_type_reads_compatible_values_only() {
        assert_eq!(decode(Pymemcache, b"hi", 0), Ok("hi".to_owned()));
        assert_eq!(decode(Pymemcache, b"7  ", 0), Ok(7_i64));
        assert_eq!(decode::<i64>(Pymemcache, b"hi", 0), Err(InvalidValue::OtherType));
        assert_eq!(decode::<String>(Pymemcache, b"\xff", 0), Err(InvalidValue::OtherType));
        assert_eq!(decode::<Vec<u8>>(Pymemcache, b"hi", 16), Err(InvalidValue::OtherType));
        assert_eq!(decode::<String>(Pymemcache, b"\xff", 16), Err(InvalidValue::Damaged));
    }
}
