//! Values that programs in all languages have.

use bytes::Bytes;

/// A value that programs in all languages have, for [`Convention`](super::Convention).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes.
    Bytes(Bytes),
    /// Text.
    Text(String),
    /// A number. Longer ones, which Python and Ruby have, can't be read.
    Integer(i64),
}

/// A type whose values are a [`Value`]: [`Bytes`], `Vec<u8>`, `String`, `i64`, and [`Value`] itself.
pub trait Scalar: Sized {
    /// It as a value.
    fn to_value(&self) -> Value;

    /// It from a value. Bytes may be text and numbers, which some clients write without saying so. `None` if the value has
    /// another type.
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
            // The server pads a number that has become shorter with blanks.
            Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.trim_ascii_end().parse().ok(),
            Value::Text(_) => None,
        }
    }
}
