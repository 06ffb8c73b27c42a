//! Value types that all languages support.

use bytes::Bytes;

/// A value of a type that all languages support, for [`Convention`](super::Convention).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A byte string.
    Bytes(Bytes),
    /// Text in UTF-8.
    Text(String),
    /// A number. Codecs reject numbers from Python and Ruby that do not fit in 64 bits.
    Integer(i64),
}

/// A type that converts to and from [`Value`]: [`Bytes`], `Vec<u8>`, `String`, `i64`, and [`Value`]
/// itself.
pub trait Scalar: Sized {
    /// Converts to a value.
    fn to_value(&self) -> Value;

    /// Converts from a value. Returns `None` if the value has another type. Bytes also convert to
    /// text and numbers, because some clients store text and numbers without a flag.
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
            // A server may pad a decremented number with trailing spaces to its old length.
            Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.trim_ascii_end().parse().ok(),
            Value::Text(_) => None,
        }
    }
}
