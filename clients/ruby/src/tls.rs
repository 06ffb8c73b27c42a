//! `Larder::Tls`: TLS settings with the contents of their files.

use magnus::{Error, Module as _, Object as _, RModule, Ruby, function};
use std::path::PathBuf;

/// The TLS settings of a client's connections.
#[derive(Debug)]
#[magnus::wrap(class = "Larder::Tls", free_immediately)]
pub(crate) struct Tls(pub(crate) larder_client::Tls);

pub(crate) fn define(ruby: &Ruby) -> Result<(), Error> {
    let larder: RModule = ruby.class_object().const_get("Larder")?;
    let class = larder.define_class("Tls", ruby.class_object())?;
    class.define_singleton_method("new", function!(Tls::new, 4))
}

impl Tls {
    /// Reads the files. Without `key_file`, the key is in `cert_file`.
    fn new(
        ruby: &Ruby,
        ca_file: Option<PathBuf>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
        server_name: Option<String>,
    ) -> Result<Self, Error> {
        let tls = larder_client::Tls::load_parts(ca_file, cert_file, key_file, server_name);
        tls.map(Self)
            .map_err(|error| Error::new(ruby.exception_arg_error(), format!("ssl: {error}")))
    }
}
