//! Conversion of the arguments and results of calls, with pymemcache's rules and messages.

use crate::errors::{MemcacheClientError, MemcacheIllegalInputError};
use crate::key::KeyRules;
use crate::value::Values;
use larder_client::{StoreMode, StoreOutcome, StoreRequest, Ttl};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};
use std::borrow::Cow;
use std::time::Duration;

/// The time limit that stands for no limit: one year.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

type Object<'py> = Bound<'py, PyAny>;

impl KeyRules {
    pub(crate) fn check_all<'a>(&self, keys: &'a [Object<'_>]) -> PyResult<Vec<Cow<'a, [u8]>>> {
        keys.iter().map(|key| self.check(key)).collect()
    }
}

pub(crate) fn collect<'py>(keys: &Object<'py>) -> PyResult<Vec<Object<'py>>> {
    keys.try_iter()?.collect()
}

pub(crate) fn none(py: Python<'_>) -> Object<'_> {
    py.None().into_bound(py)
}

pub(crate) fn defaults<'py>(
    py: Python<'py>,
    value: Option<Object<'py>>,
    cas: Option<Object<'py>>,
) -> PyResult<Object<'py>> {
    Ok((value, cas).into_pyobject(py)?.into_any())
}

/// Converts the outcome of a store to pymemcache's result: whether the item was stored, or `None`
/// if a store by CAS found no item.
pub(crate) fn outcome(stored: StoreOutcome) -> Option<bool> {
    match stored {
        StoreOutcome::Stored => Some(true),
        StoreOutcome::NotStored | StoreOutcome::Exists => Some(false),
        StoreOutcome::NotFound => None,
    }
}

/// Returns the exception for an argument that the server would refuse. `words` is the text of the
/// server's error.
pub(crate) fn refused(py: Python<'_>, words: &str) -> PyErr {
    MemcacheClientError::new_err(PyBytes::new(py, words.as_bytes()).unbind())
}

pub(crate) fn integer<'a, 'py>(
    name: &str,
    value: &'a Object<'py>,
) -> PyResult<&'a Bound<'py, PyInt>> {
    value.cast::<PyInt>().or_else(|_| {
        let repr = value.repr()?;
        let text = format!("{name} must be integer, got bad value: {repr}");
        Err(MemcacheIllegalInputError::new_err(text))
    })
}

/// Reads a memcached exptime, which is a number of seconds or a Unix time. The default is 0.
pub(crate) fn ttl(name: &str, value: Option<Object<'_>>) -> PyResult<Ttl> {
    let Some(value) = value else { return Ok(Ttl::FOREVER) };
    let number = integer(name, &value)?.extract();
    let number = number.map_err(|_| refused(value.py(), "invalid exptime argument"))?;
    Ok(Ttl::from_exptime(number))
}

/// Reads a CAS, which is a number or its digits as `str` or `bytes`.
pub(crate) fn cas_number(cas: &Object<'_>) -> PyResult<u64> {
    let illegal = |problem: &str| {
        let repr = cas.repr()?;
        Err(MemcacheIllegalInputError::new_err(format!("cas {problem}, got bad value: {repr}")))
    };
    let digits = match cas.cast::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes().to_owned(),
        Err(_) if cas.is_instance_of::<PyInt>() || cas.is_instance_of::<PyString>() => {
            cas.str()?.to_cow()?.into_owned().into_bytes()
        }
        Err(_) => return illegal("must be integer, string, or bytes"),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return illegal("must only contain values in 0-9");
    }
    let number = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| refused(cas.py(), "bad command line format"))
}

pub(crate) fn duration(secs: Option<f64>) -> PyResult<Duration> {
    let Some(secs) = secs else { return Ok(FOREVER) };
    let time = Duration::try_from_secs_f64(secs);
    time.map_err(|_| PyValueError::new_err(format!("a timeout can't be {secs} seconds")))
}

/// Converts a time limit to seconds, or to `None` if there is no limit.
pub(crate) fn seconds(time: Duration) -> Option<f64> {
    (time < FOREVER).then_some(time.as_secs_f64())
}

/// Checks a key, and returns it as sent to the server, including the prefix.
#[pyfunction]
#[pyo3(signature = (key, allow_unicode_keys, key_prefix = None), text_signature = "(key, allow_unicode_keys, key_prefix=b'')")]
pub(crate) fn check_key_helper<'py>(
    key: &Object<'py>,
    allow_unicode_keys: bool,
    key_prefix: Option<Object<'py>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let prefix = match &key_prefix {
        Some(prefix) => match prefix.cast::<PyBytes>() {
            Ok(prefix) => prefix.as_bytes().to_owned(),
            Err(_) => return Err(PyTypeError::new_err("key_prefix should be bytes.")),
        },
        None => Vec::new(),
    };
    let rules = KeyRules { allow_unicode: allow_unicode_keys, prefix };
    Ok(PyBytes::new(key.py(), &rules.check(key)?))
}

/// A key as sent to the server, its serialized value, and the flags.
type Serialized<'a, 'py> = (Cow<'a, [u8]>, Bound<'py, PyBytes>, u32);

/// Serializes pairs of keys and values.
pub(crate) fn serialized<'a, 'py>(
    keys: &KeyRules,
    values: &Values,
    pairs: &'a [(Object<'py>, Object<'py>)],
    flags: Option<u32>,
) -> PyResult<Vec<Serialized<'a, 'py>>> {
    let one = |(key, value): &'a (Object<'py>, Object<'py>)| {
        let name = keys.check(key)?;
        let (value, flags) = values.serialize(key, value, flags)?;
        Ok((name, value, flags))
    };
    pairs.iter().map(one).collect()
}

/// Builds requests that store these items.
pub(crate) fn sets<'i>(items: &'i [Serialized<'_, '_>], ttl: Ttl) -> Vec<StoreRequest<'i>> {
    let one = |(key, value, flags): &'i Serialized<'_, '_>| {
        let (value, flags) = (value.as_bytes(), *flags);
        StoreRequest { mode: StoreMode::Set, key, value, ttl, flags, cas: None }
    };
    items.iter().map(one).collect()
}
