//! The addresses of etcd, and the credentials for it.

use super::counters::EtcdCounters;
use super::login::Login;
use crate::identity::ClusterIdentity;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options for connections to etcd, as given on the command line.
#[derive(Clone, Copy, Debug)]
pub struct EtcdOptions<'p> {
    /// The servers, such as `http://127.0.0.1:2379`.
    pub urls: &'p [String],
    /// The PEM file with the certificate authorities for the servers.
    pub authorities: Option<&'p Path>,
    /// The PEM file with a client certificate. It has no effect without `key`.
    pub certificate: Option<&'p Path>,
    /// The PEM file with the private key for `certificate`.
    pub key: Option<&'p Path>,
    /// A file with `NAME:PASSWORD`.
    pub password: Option<&'p Path>,
}

/// The settings for connections to etcd, with the contents of the files instead of their paths.
#[derive(Clone, Default)]
pub struct EtcdSettings {
    /// The servers, such as `http://127.0.0.1:2379`.
    pub urls: Vec<String>,
    /// The certificate authorities for the servers, in PEM. The system's authorities are not used.
    pub authorities: Option<Vec<u8>>,
    /// A client certificate and its key, in PEM.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// A name and a password.
    pub login: Option<Login>,
    /// The counters that all clients with these settings share.
    pub counters: Arc<EtcdCounters>,
    /// The cluster identity that etcd must have to execute transactions. `None` for operators'
    /// commands.
    pub identity: Option<Arc<ClusterIdentity>>,
}

impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdSettings").field("urls", &self.urls).finish_non_exhaustive()
    }
}

/// Invalid settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The list of servers is empty.
    #[error("--etcd: give the URL of at least one server")]
    NoUrl,
    /// A URL whose scheme is neither http nor https.
    #[error("--etcd {0}: the URL of a server must start with http:// or https://")]
    Url(String),
    /// An https URL without certificate authorities.
    #[error("--etcd {0}: servers with https:// need --etcd-ca FILE")]
    NoAuthorities(String),
    /// A file without a valid certificate or key.
    #[error(
        "{0}: the file has no valid PEM section: --etcd-ca and --etcd-cert need certificates, --etcd-key a private key"
    )]
    Pem(&'static str),
    /// An unreadable file.
    #[error("{option} {}: {error}", .path.display())]
    File {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A password file that does not contain a name and a password.
    #[error("--etcd-password {}: the file must contain NAME:PASSWORD", .0.display())]
    Password(PathBuf),
}

impl EtcdOptions<'_> {
    /// Reads the files.
    ///
    /// # Errors
    /// [`SettingsError`]: a file is unreadable, or the password file is malformed.
    /// [`crate::Etcd::new`] checks URLs and certificates.
    pub fn read(self) -> Result<EtcdSettings, SettingsError> {
        let authorities = self.authorities.map(|path| read("--etcd-ca", path)).transpose()?;
        let certificate = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                Some((read("--etcd-cert", certificate)?, read("--etcd-key", key)?))
            }
            _ => None,
        };
        let login = self.password.map(read_login).transpose()?;
        let urls = self.urls.to_vec();
        let counters = Arc::default();
        Ok(EtcdSettings { urls, authorities, certificate, login, counters, identity: None })
    }
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, SettingsError> {
    let path = path.to_owned();
    std::fs::read(&path).map_err(|error| SettingsError::File { option, path, error })
}

fn read_login(path: &Path) -> Result<Login, SettingsError> {
    let text = String::from_utf8_lossy(&read("--etcd-password", path)?).trim().to_owned();
    let (name, password) =
        text.split_once(':').ok_or_else(|| SettingsError::Password(path.to_owned()))?;
    Ok(Login::new(name, password))
}
