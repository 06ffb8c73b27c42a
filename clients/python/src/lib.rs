//! The Rust half of the Python package `larder_client`: calls, keys, values, TLS settings and
//! exceptions. The Python half contains the constructors, the clients of several servers, and
//! Django's cache.

mod arguments;
mod channel;
mod client;
mod errors;
mod gil;
mod key;
mod murmur;
mod tls;
mod value;

/// The native module of `larder_client`.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::arguments::check_key_helper;
    #[pymodule_export]
    use crate::channel::Channel;
    #[pymodule_export]
    use crate::client::BaseClient;
    #[pymodule_export]
    use crate::errors::{
        MemcacheClientError, MemcacheError, MemcacheIllegalInputError, MemcacheServerError,
        MemcacheUnexpectedCloseError, MemcacheUnknownCommandError, MemcacheUnknownError,
    };
    #[pymodule_export]
    use crate::murmur::murmur3_32;
    #[pymodule_export]
    use crate::tls::BaseTls;
}
