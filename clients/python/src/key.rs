//! Keys with pymemcache's rules.

use crate::errors::MemcacheIllegalInputError;
use pyo3::exceptions::{PyTypeError, PyUnicodeEncodeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::borrow::Cow;

/// The length limit of a key including its prefix, in bytes.
const LEN_MAX: usize = 250;

/// The rules and the prefix of keys.
#[derive(Debug)]
pub(crate) struct KeyRules {
    pub(crate) allow_unicode: bool,
    pub(crate) prefix: Vec<u8>,
}

impl KeyRules {
    /// Checks a key and returns its bytes, including the prefix. Without a prefix, borrows the
    /// bytes of the Python object.
    ///
    /// # Errors
    /// `MemcacheIllegalInputError` if the key breaks a rule, `TypeError` if it is neither `str` nor
    /// `bytes`, and `UnicodeEncodeError` if it contains surrogates and Unicode is allowed.
    pub(crate) fn check<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        let bytes = self.encode(key)?;
        let bytes = if self.prefix.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            Cow::Owned([&self.prefix, bytes].concat())
        };
        let illegal = |problem: &str| {
            let repr = PyBytes::new(key.py(), &bytes).repr()?;
            Err(MemcacheIllegalInputError::new_err(format!("Key {problem}: {repr}")))
        };
        if bytes.len() > LEN_MAX {
            illegal("is too long")
        } else if bytes.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0x0b) {
            illegal("contains whitespace")
        } else if bytes.contains(&0) {
            illegal("contains null")
        } else {
            Ok(bytes)
        }
    }

    fn encode<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
        if let Ok(bytes) = key.cast::<PyBytes>() {
            return Ok(bytes.as_bytes());
        }
        let Ok(text) = key.cast::<PyString>() else {
            let class = key.get_type().name()?;
            return Err(PyTypeError::new_err(format!("a key must be str or bytes, not {class}")));
        };
        let not_ascii = || {
            let repr = key.repr()?;
            Err(MemcacheIllegalInputError::new_err(format!("Non-ASCII key: {repr}")))
        };
        match text.to_str() {
            Ok(text) if self.allow_unicode || text.is_ascii() => Ok(text.as_bytes()),
            Ok(_) => not_ascii(),
            Err(error) => {
                let is_surrogate = error.is_instance_of::<PyUnicodeEncodeError>(key.py());
                if is_surrogate && !self.allow_unicode { not_ascii() } else { Err(error) }
            }
        }
    }
}
