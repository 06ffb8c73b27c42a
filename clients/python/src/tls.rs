//! TLS settings for the clients for threads. Python's `ssl` encrypts all other connections.

use larder_client::Tls;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io;
use std::path::PathBuf;

/// The base class of `larder_client.Tls`, with the contents of the files.
#[pyclass(subclass, frozen, module = "larder_client._native")]
#[derive(Debug)]
pub(crate) struct BaseTls {
    pub(crate) settings: Tls,
}

#[pymethods]
impl BaseTls {
    /// Reads the files. Without `key_file`, the key is in `cert_file`.
    #[new]
    #[pyo3(signature = (ca_file = None, cert_file = None, key_file = None, server_name = None))]
    fn new(
        ca_file: Option<PathBuf>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
        server_name: Option<String>,
    ) -> PyResult<Self> {
        let settings = Tls::load_parts(ca_file, cert_file, key_file, server_name);
        Ok(Self { settings: settings.map_err(exception)? })
    }
}

/// Converts an error about invalid contents or an invalid name to `ValueError`, and a system error
/// to its exception, such as `FileNotFoundError`.
fn exception(error: io::Error) -> PyErr {
    match error.kind() {
        io::ErrorKind::InvalidInput => PyValueError::new_err(error.to_string()),
        _ => error.into(),
    }
}
