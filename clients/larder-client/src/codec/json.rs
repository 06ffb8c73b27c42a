//! JSON, by serde.

use super::{Codec, CodecError, InvalidValue};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// JSON, for all types that serde serializes. A cache outlives the program that fills it: JSON says what its parts are, so
/// that a type may get new fields, and programs in other languages read it.
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

/// "L" for Larder, and the number of the format. Other clients have flags below 2^16.
const FLAGS: u32 = 0x4c00_0001;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(&self, value: &T, bytes: &mut Vec<u8>) -> Result<u32, CodecError> {
        serde_json::to_writer(bytes, value)?;
        Ok(FLAGS)
    }

    /// Flags of 0 may be JSON, too: those of clients that write it as text.
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
    fn values_come_back() {
        let (value, mut bytes) = (vec![("a".to_owned(), 1.5)], Vec::new());
        let flags = Json.encode(&value, &mut bytes).unwrap();
        assert_eq!((flags, &bytes[..]), (FLAGS, &br#"[["a",1.5]]"#[..]));
        let decode = |flags| -> Result<Vec<(String, f64)>, _> {
            Json.decode(&Bytes::copy_from_slice(&bytes), flags)
        };
        assert_eq!(decode(FLAGS).unwrap(), value);
        assert_eq!(decode(0).unwrap(), value);
        assert!(decode(1).is_err(), "an object of Python");
        let other: Result<u32, _> = Json.decode(&bytes.into(), FLAGS);
        assert!(other.is_err());
    }
}
