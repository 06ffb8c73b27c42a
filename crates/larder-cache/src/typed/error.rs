//! The error of typed stores.

use crate::insert::InsertError;
use std::error::Error;
use std::fmt;

/// The reason why a value was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedError<E> {
    /// The key or the value can't be encoded.
    Encode(E),
    /// The cache has refused the value.
    Insert(InsertError),
}

impl<E> From<InsertError> for TypedError<E> {
    fn from(error: InsertError) -> Self {
        Self::Insert(error)
    }
}

impl<E: fmt::Display> fmt::Display for TypedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(error) => write!(f, "the key or the value can't be encoded: {error}"),
            Self::Insert(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for TypedError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Encode(error) => Some(error),
            Self::Insert(error) => Some(error),
        }
    }
}
