//! Values that exist in all languages.

use bytes::Bytes;

/// A value that exists in all languages, for [`Convention`](super::Convention).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A byte string.
    Bytes(Bytes),
    /// Text in UTF-8.
    Text(String),
    /// A number. Codecs cannot read numbers of Python and Ruby that do not fit in 64 bits.
    Integer(i64),
}

/// A type whose values are a [`Value`]: [`Bytes`], `Vec<u8>`, `String`, `i64`, and [`Value`]
/// itself.
pub trait Scalar: Sized {
    /// Converts to a value.
    fn to_value(&self) -> Value;

    /// Converts from a value, or returns `None` if the value has another type. Bytes convert to
    /// text and numbers, because some clients write text and numbers without marking them.
    fn of_value(value: Value) -> Option<Self>;
}

impl Scalar for Value {
    fn to_value(&self) -> Value {
        self.clone()
    }

    fn of_value(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl Scalar for Bytes {
    fn to_value(&self) -> Value {
        Value::Bytes(self.clone())
    }

    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Text(_) | Value::Integer(_) => None,
        }
    }
}

impl Scalar for Vec<u8> {
    fn to_value(&self) -> Value {
        Value::Bytes(Bytes::copy_from_slice(self))
    }

    fn of_value(value: Value) -> Option<Self> {
        Bytes::of_value(value).map(Into::into)
    }
}

impl Scalar for String {
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }

    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            Value::Bytes(bytes) => Self::from_utf8(bytes.into()).ok(),
            Value::Integer(_) => None,
        }
    }
}

impl Scalar for i64 {
    fn to_value(&self) -> Value {
        Value::Integer(*self)
    }

    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Integer(number) => Some(number),
            // Servers pad decremented numbers with spaces to the old length.
            Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.trim_ascii_end().parse().ok(),
            Value::Text(_) => None,
        }
    }
}
