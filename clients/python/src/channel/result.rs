//! Results of calls as Python objects.

use crate::arguments::{none, outcome, refused};
use crate::errors::exception;
use larder_client::pipeline::Output;
use larder_client::{CountOutcome, Error, Item};
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

type Object<'py> = Bound<'py, PyAny>;

/// The ticket of a call: its future, and the kind of its result.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) future: Py<PyAny>,
    pub(super) reading: Reading,
}

/// The kind of result that a call's future gets.
#[derive(Debug)]
pub(super) enum Reading {
    /// The value, or `None` for a miss. With `with_flags`, a pair of stored bytes and flags instead
    /// of the value.
    Value { with_flags: bool },
    /// The value, its flags and its CAS, or `None` for a miss.
    ValueAndCas,
    /// A dictionary that maps each key that exists to its result: as in `ValueAndCas` if `cas` is
    /// set, otherwise as in `Value`.
    Values { keys: Vec<Py<PyAny>>, cas: bool, with_flags: bool },
    /// pymemcache's result of a store: see [`outcome`].
    Stored,
    /// The keys that were not stored.
    NotStored(Vec<Py<PyAny>>),
    /// Whether the item existed.
    Found,
    /// `True`.
    Done,
    /// The new number, `None` if the item does not exist, or an exception if the value is not a
    /// number.
    Counted,
    /// The version as `bytes`.
    Version,
    /// Pairs of name and value, both `bytes`.
    Stats,
}

impl Ticket {
    /// Sets the result of the call's future.
    ///
    /// # Errors
    /// Setting the result raised an exception that ends the program, such as `KeyboardInterrupt`.
    pub(super) fn settle(self, py: Python<'_>, answer: Result<Output, Error>) -> PyResult<()> {
        let Self { future, reading } = self;
        let result = match answer {
            Ok(output) => reading.read(py, output),
            Err(error) => Err(exception(py, &error)),
        };
        let delivered = match result {
            Ok(result) => future.call_method1(py, intern!(py, "set_result"), (result,)),
            Err(error) => {
                future.call_method1(py, intern!(py, "set_exception"), (error.into_value(py),))
            }
        };
        match delivered {
            // The future is already done, for example because it was cancelled. It accepts no
            // result.
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(()),
            delivered => delivered.map(drop),
        }
    }
}

impl Reading {
    fn read<'py>(self, py: Python<'py>, output: Output) -> PyResult<Object<'py>> {
        Ok(match (self, output) {
            (Self::Value { with_flags }, Output::Item(item)) => {
                item.map_or_else(|| Ok(none(py)), |item| value(py, &item, with_flags))?
            }
            (Self::ValueAndCas, Output::Item(item)) => {
                item.map_or_else(|| Ok(none(py)), |item| value_and_cas(py, &item))?
            }
            (Self::Values { keys, cas, with_flags }, Output::Items(items)) => {
                let found = PyDict::new(py);
                for (key, item) in keys.iter().zip(items) {
                    let Some(item) = item else { continue };
                    let read =
                        if cas { value_and_cas(py, &item) } else { value(py, &item, with_flags) };
                    found.set_item(key, read?)?;
                }
                found.into_any()
            }
            (Self::Stored, Output::Stored(stored)) => {
                stored.first().and_then(|stored| outcome(*stored)).into_pyobject(py)?
            }
            (Self::NotStored(keys), Output::Stored(stored)) => {
                let failed = keys.iter().zip(stored).filter(|(_, stored)| !stored.is_stored());
                PyList::new(py, failed.map(|(key, _)| key).collect::<Vec<_>>())?.into_any()
            }
            (Self::Found, Output::Found(found)) => boolean(py, found.first() == Some(&true)),
            (Self::Done, Output::Done | Output::Found(_)) => boolean(py, true),
            (Self::Counted, Output::Counted(CountOutcome::NotANumber)) => {
                return Err(refused(py, "cannot increment or decrement non-numeric value"));
            }
            (Self::Counted, Output::Counted(CountOutcome::Number(number))) => {
                number.into_pyobject(py)?.into_any()
            }
            (Self::Counted, Output::Counted(CountOutcome::NotFound)) => none(py),
            (Self::Version, Output::Version(version)) => {
                PyBytes::new(py, version.as_bytes()).into_any()
            }
            (Self::Stats, Output::Stats(page)) => {
                let bytes = |text: &String| PyBytes::new(py, text.as_bytes());
                let pairs = page.iter().map(|(name, value)| (bytes(name), bytes(value)));
                PyList::new(py, pairs.collect::<Vec<_>>())?.into_any()
            }
            (reading, output) => {
                let text = format!("unexpected output {output:?} for {reading:?}");
                return Err(PyRuntimeError::new_err(text));
            }
        })
    }
}

fn boolean(py: Python<'_>, value: bool) -> Object<'_> {
    pyo3::types::PyBool::new(py, value).to_owned().into_any()
}

fn value<'py>(py: Python<'py>, item: &Item, with_flags: bool) -> PyResult<Object<'py>> {
    let bytes = PyBytes::new(py, &item.value);
    Ok(if with_flags {
        (bytes, item.flags).into_pyobject(py)?.into_any()
    } else {
        bytes.into_any()
    })
}

fn value_and_cas<'py>(py: Python<'py>, item: &Item) -> PyResult<Object<'py>> {
    let cas = item.cas.map(|cas| PyBytes::new(py, cas.to_string().as_bytes()));
    Ok((PyBytes::new(py, &item.value), item.flags, cas).into_pyobject(py)?.into_any())
}
