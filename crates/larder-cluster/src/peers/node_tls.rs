//! TLS between nodes (`--cluster-tls`): both sides present a certificate.

use larder_support::tls::{
    ClientCertificates, LoadError, Tls, VerifyMode, Version, check_node, load, load_client,
};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files of `--cluster-tls`, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTlsFiles {
    /// The certificate of this node, and its chain.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificate authorities of all nodes.
    pub ca: PathBuf,
}

impl std::str::FromStr for NodeTlsFiles {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split(',').collect::<Vec<_>>()[..] {
            [cert, key, ca] if ![cert, key, ca].contains(&"") => {
                Ok(Self { cert: cert.into(), key: key.into(), ca: ca.into() })
            }
            _ => Err("give three files, separated by commas: CERT,KEY,CA"),
        }
    }
}

/// The certificates of this node, and the requirements for certificates of peers.
#[derive(Debug)]
pub struct NodeTls {
    options: Tls,
    /// This node's name in its group, which its certificate must contain. `None` outside of groups,
    /// where the certificate may contain any name.
    node: Option<String>,
    provider: Arc<CryptoProvider>,
    current: Mutex<Configurations>,
}

/// The TLS configurations for new connections: `server` for accepted ones, and `client` for
/// outgoing ones.
#[derive(Debug)]
struct Configurations {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl NodeTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`LoadError`] for the first invalid file.
    pub fn new(files: &NodeTlsFiles, node: Option<String>) -> Result<Self, LoadError> {
        let NodeTlsFiles { cert, key, ca } = files.clone();
        let options = Tls {
            chain_cert: Some(cert),
            key: Some(key),
            ca_cert: Some(ca),
            verify_mode: VerifyMode::Require,
            min_version: Version::Tls13,
            ..Tls::default()
        };
        let provider = Arc::new(ring::default_provider());
        let current = Mutex::new(Configurations::read(&options, node.as_deref(), &provider)?);
        Ok(Self { options, node, provider, current })
    }

    /// Reads the files again. New connections use the new certificates. If a file is invalid, the
    /// current certificates stay in use.
    ///
    /// # Errors
    /// [`LoadError`] for the first invalid file.
    pub fn refresh(&self) -> Result<(), LoadError> {
        let read = Configurations::read(&self.options, self.node.as_deref(), &self.provider)?;
        *self.current() = read;
        tracing::info!("reloaded the certificates of --cluster-tls");
        Ok(())
    }

    /// Creates the TLS session of an accepted connection.
    pub(crate) fn accept(&self) -> Result<Connection, Error> {
        let configuration = Arc::clone(&self.current().server);
        ServerConnection::new(configuration).map(Connection::Server)
    }

    /// Creates the TLS session of an outgoing connection. The peer's certificate must be for
    /// `name`.
    pub(crate) fn connect(&self, name: ServerName<'static>) -> Result<Connection, Error> {
        let configuration = Arc::clone(&self.current().client);
        ClientConnection::new(configuration, name).map(Connection::Client)
    }

    fn current(&self) -> MutexGuard<'_, Configurations> {
        // The value is replaced as a whole, so it is valid even if a thread has panicked while it
        // held the lock.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Configurations {
    /// Reads the files. Session resumption is off: connections last long, and each must present the
    /// current certificate.
    fn read(
        options: &Tls,
        node: Option<&str>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, LoadError> {
        if let Some(node) = node {
            check_node(options, node)?;
        }
        let mut server = load(options, ClientCertificates::Required, provider)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = load_client(options, provider)?;
        client.resumption = Resumption::disabled();
        // A node has only one certificate, so it needs no server name to choose one. SNI would send
        // the name in plaintext.
        client.enable_sni = false;
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }
}
