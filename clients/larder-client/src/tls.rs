//! TLS settings.

use crate::core::endpoint::address::Address;
use crate::core::endpoint::tls::Connector;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The TLS settings of a client's connections, for [`Builder::tls`](crate::Builder::tls).
///
/// The client uses TLS 1.2 or 1.3. Before the client sends any byte of a request, it checks the
/// server's certificate. A CA of the system, or a CA in the [`ca_file`](Self::ca_file) if that is
/// set, must have signed the certificate. The certificate must contain the host of the server's
/// address, or the [`server_name`](Self::server_name) if that is set.
///
/// ```no_run
/// use larder_client::{Tls, blocking::Client};
///
/// let tls = Tls::new().ca_file("/etc/cache/ca.pem");
/// let cache = Client::builder("cache.example.com:11211").tls(tls).build()?;
/// # Ok::<(), larder_client::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Tls {
    ca_file: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
    /// The loaded settings. `None` before [`load`](Self::load).
    loaded: Option<Loaded>,
}

/// The settings with the contents of the files. Each client replaces the cache of TLS sessions with
/// its own.
#[derive(Clone)]
struct Loaded(Arc<ClientConfig>);

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").finish_non_exhaustive()
    }
}

impl Tls {
    /// Creates settings that trust the CAs of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the CAs in this PEM file only.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        (self.ca_file, self.loaded) = (Some(path.into()), None);
        self
    }

    /// Sets the client certificate, for servers that request one. `certificate` is a PEM file with
    /// the certificate followed by its intermediate CAs. `key` is a PEM file with its private key.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self.loaded = None;
        self
    }

    /// Sets the name that the certificates of all servers must contain. [Default: the host of each
    /// server's address; `localhost` for unix sockets]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the files now, and checks the server name. Clients with the returned settings do not
    /// read the files again. Without this call, each client reads the files when it is built, and
    /// again when discovery returns another list of servers.
    ///
    /// # Errors
    /// A file cannot be read or does not contain the expected PEM data, the system trusts no CA, or
    /// the server name is invalid. The message names the file. An error whose kind is not
    /// `InvalidInput` comes from the system.
    pub fn load(mut self) -> io::Result<Self> {
        let config = self.config()?;
        if let Some(name) = &self.server_name {
            Connector::new(Arc::clone(&config), name)?;
        }
        self.loaded = Some(Loaded(config));
        Ok(self)
    }

    /// Builds and loads settings, for bindings to other languages. Without `key_file`, the key is
    /// in `cert_file`.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load), and `InvalidInput` if there is a key without a
    /// certificate.
    #[doc(hidden)]
    pub fn load_parts<P: Into<PathBuf>>(
        ca_file: Option<P>,
        cert_file: Option<P>,
        key_file: Option<P>,
        server_name: Option<String>,
    ) -> io::Result<Self> {
        let (cert_file, key_file) = (cert_file.map(Into::into), key_file.map(Into::into));
        if cert_file.is_none() && key_file.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "key_file needs a cert_file"));
        }
        let client_certificate =
            cert_file.map(|cert: PathBuf| (cert.clone(), key_file.unwrap_or(cert)));
        let ca_file = ca_file.map(Into::into);
        Self { ca_file, client_certificate, server_name, loaded: None }.load()
    }

    /// Reads the files, unless they are loaded. Returns a function that builds a connector for an
    /// address.
    ///
    /// # Errors
    /// A file cannot be read or does not contain the expected PEM data, or the system trusts no CA.
    /// The returned function fails if the host, or [`server_name`](Self::server_name), is not a
    /// valid certificate name.
    pub(crate) fn connectors(
        &self,
    ) -> io::Result<impl Fn(&Address) -> io::Result<Connector> + use<'_>> {
        let config = match &self.loaded {
            // Each client has a session cache of its own. With a shared cache, a forked process
            // could not build a client if another thread of its parent had held the lock of the
            // cache at the fork.
            Some(Loaded(config)) => {
                let mut config = ClientConfig::clone(config);
                config.resumption = Resumption::default();
                Arc::new(config)
            }
            None => self.config()?,
        };
        Ok(move |address: &Address| {
            let host = match address {
                Address::Host(host, _) => host,
                Address::Unix(_) => "localhost",
            };
            Connector::new(Arc::clone(&config), self.server_name.as_deref().unwrap_or(host))
        })
    }

    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(self.roots()?);
        let config = match &self.client_certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let private = PrivateKeyDer::from_pem_file(key);
                let private = private.map_err(|error| unreadable(key, "private key", error))?;
                let authenticated = builder.with_client_auth_cert(chain, private);
                authenticated.map_err(|error| match error {
                    rustls::Error::InvalidCertificate(_) => of_file(certificate, error),
                    error => of_file(key, error),
                })?
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> io::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.ca_file else {
            let found = rustls_native_certs::load_native_certs();
            // Skips certificates that rustls cannot parse, because many systems have some.
            if roots.add_parsable_certificates(found.certs).0 == 0 {
                let error = found.errors.first().map(|error| format!(": {error}"));
                let error = format!("the system trusts no CA{}", error.unwrap_or_default());
                return Err(io::Error::new(io::ErrorKind::NotFound, error));
            }
            return Ok(roots);
        };
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| of_file(path, error))?;
        }
        Ok(roots)
    }
}

/// Reads the certificates from a PEM file. Fails if the file contains no certificate.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read =
        read.and_then(|found| (!found.is_empty()).then_some(found).ok_or(pem::Error::NoItemsFound));
    read.map_err(|error| unreadable(path, "certificate", error))
}

/// Converts the error of reading an `item` from a PEM file to an I/O error that names the file.
fn unreadable(path: &Path, item: &str, error: pem::Error) -> io::Error {
    match error {
        pem::Error::Io(error) => {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        }
        pem::Error::NoItemsFound => of_file(path, format!("no {item}")),
        pem::Error::MissingSectionEnd { .. } => of_file(path, "PEM section without an end"),
        pem::Error::IllegalSectionStart { .. } => of_file(path, "malformed start of a PEM section"),
        error => of_file(path, error),
    }
}

fn of_file(path: &Path, error: impl Display) -> io::Error {
    let error = format!("{}: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
