//! TLS configurations from certificate files.

mod key_type;
mod load;
mod options;

pub use load::{ClientCertificates, LoadError, check_node, explain_certificate, load, load_client};
pub use options::{KeyFormat, Tls, VerifyMode, Version};
