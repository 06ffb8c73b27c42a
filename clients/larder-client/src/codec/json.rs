//! JSON with serde.

use super::{Codec, CodecError, InvalidValue};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A JSON codec for types that serde can serialize and deserialize. JSON is self-describing, so
/// programs in other languages can read the values. A later version of the program can also read
/// the values if the new fields of its types have defaults.
///
/// ```no_run
/// use larder_client::blocking::Client;
/// use larder_client::codec::Json;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User {
///     name: String,
///     visits: u32,
/// }
///
/// let cache = Client::connect("cache:11211")?;
/// let users = cache.typed::<User, _>(Json);
/// users.set("user:1", &User { name: "ann".into(), visits: 1 }, 60)?;
/// # Ok::<(), larder_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json;

/// The flags of JSON values: the letter L for Larder in the highest byte, and the version of the
/// format in the lowest byte. Other clients use flags below 2^16.
const FLAGS: u32 = 0x4c00_0001;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError> {
        serde_json::to_writer(bytes, value)?;
        Ok(FLAGS)
    }

    /// Decodes JSON. Also accepts flags 0, because other clients store JSON text with these flags.
    fn decode(&self, bytes: &Bytes, flags: u32) -> Result<T, CodecError> {
        if flags != FLAGS && flags != 0 {
            return Err(InvalidValue::Flags(flags).into());
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_values_are_read_with_known_flags_only() {
        let (value, mut bytes) = (vec![("a".to_owned(), 1.5)], Vec::new());
        let flags = Json.encode(&value, &mut bytes).unwrap();
        assert_eq!((flags, &bytes[..]), (FLAGS, &br#"[["a",1.5]]"#[..]));
        let decode = |flags| -> Result<Vec<(String, f64)>, _> {
            Json.decode(&Bytes::copy_from_slice(&bytes), flags)
        };
        assert_eq!(decode(FLAGS).unwrap(), value);
        assert_eq!(decode(0).unwrap(), value);
        assert!(decode(1).is_err(), "a pickled Python object");
        let other: Result<u32, _> = Json.decode(&bytes.into(), FLAGS);
        assert!(other.is_err());
    }
}
