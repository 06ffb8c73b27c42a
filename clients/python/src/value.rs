//! Values: conversion of Python objects to stored bytes, and back.

use crate::errors::MemcacheIllegalInputError;
use larder_client::Item;
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The conversion of values.
#[derive(Debug)]
pub(crate) struct Values {
    /// An object with `serialize` and `deserialize`. With `None`, values are not converted, and
    /// lookups return bytes.
    pub(crate) serde: Option<Py<PyAny>>,
    /// The text encoding for values other than bytes. `encode` first converts these values to text.
    pub(crate) encoding: String,
}

impl Values {
    /// Serializes a value to bytes and flags. `flags` override the serializer's flags.
    ///
    /// # Errors
    /// `MemcacheIllegalInputError` if the text cannot be encoded, and the exceptions of the
    /// serializer.
    pub(crate) fn serialize<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        flags: Option<u32>,
    ) -> PyResult<(Bound<'py, PyBytes>, u32)> {
        let Some(serde) = &self.serde else {
            return Ok((self.encode(value)?, flags.unwrap_or(0)));
        };
        let py = key.py();
        let serialized = serde.bind(py).call_method1(intern!(py, "serialize"), (key, value))?;
        let (data, chosen): (Bound<'py, PyAny>, Bound<'py, PyAny>) = serialized.extract()?;
        let flags = match flags {
            Some(flags) => flags,
            None => chosen.extract()?,
        };
        Ok((self.encode(&data)?, flags))
    }

    fn encode<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return Ok(bytes.clone());
        }
        let py = data.py();
        let encoded = encode(&data.str()?, &self.encoding).map_err(|error| {
            if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
                return error;
            }
            let text = format!("Data values must be binary-safe: {}", error.value(py));
            MemcacheIllegalInputError::new_err(text)
        })?;
        Ok(encoded.cast_into()?)
    }

    /// Returns the value of an item. Without a serde, the value is the stored bytes.
    ///
    /// # Errors
    /// Exceptions of the deserializer.
    pub(crate) fn deserialize<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        item: &Item,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let bytes = PyBytes::new(py, &item.value);
        match &self.serde {
            None => Ok(bytes.into_any()),
            Some(serde) => {
                let arguments = (key, bytes, item.flags);
                serde.bind(py).call_method1(intern!(py, "deserialize"), arguments)
            }
        }
    }
}

fn encode<'py>(text: &Bound<'py, PyString>, encoding: &str) -> PyResult<Bound<'py, PyAny>> {
    text.call_method1(intern!(text.py(), "encode"), (encoding,))
}
