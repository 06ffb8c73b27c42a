//! Where etcd is, and how it is logged in to.

use std::io;
use std::path::{Path, PathBuf};

/// What a command line says of etcd.
#[derive(Clone, Copy, Debug)]
pub struct EtcdFiles<'p> {
    /// The servers, such as `http://127.0.0.1:2379`.
    pub urls: &'p [String],
    /// Certificates, in PEM, of the authorities that certify the servers.
    pub authorities: Option<&'p Path>,
    /// A certificate in PEM.
    pub certificate: Option<&'p Path>,
    /// Its private key.
    pub key: Option<&'p Path>,
    /// `NAME:PASSWORD`.
    pub password: Option<&'p Path>,
}

/// The same with the contents of the files.
#[derive(Clone, Default)]
pub struct EtcdSettings {
    /// The servers, such as `http://127.0.0.1:2379`.
    pub urls: Vec<String>,
    /// Certificates, in PEM, of the authorities that certify the servers; the system's are not asked.
    pub authorities: Option<Vec<u8>>,
    /// A certificate and its key, in PEM, with which this process shows who it is.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// A name and a password.
    pub login: Option<(String, String)>,
}

impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdSettings").field("urls", &self.urls).finish_non_exhaustive()
    }
}

/// Why settings can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no server.
    #[error("--etcd: there is no URL of a server")]
    NoUrl,
    /// A URL begins with something else.
    #[error("--etcd {0}: the URL of a server begins with http:// or https://")]
    Url(String),
    /// A URL needs certificates.
    #[error("--etcd {0}: servers with https:// need --etcd-ca FILE")]
    NoAuthorities(String),
    /// A file has no certificate or key in PEM.
    #[error("{0}: the file has none in PEM")]
    Pem(&'static str),
    /// A file can't be read.
    #[error("{option} {}: {error}", .path.display())]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no name and password in a file.
    #[error("--etcd-password {}: the file has to have NAME:PASSWORD", .0.display())]
    Password(PathBuf),
}

impl EtcdFiles<'_> {
    /// Reads the files.
    ///
    /// # Errors
    /// [`SettingsError`]: a file can't be read, or has something else. URLs and certificates are looked at by
    /// [`crate::Etcd::new`].
    pub fn read(self) -> Result<EtcdSettings, SettingsError> {
        let authorities = self.authorities.map(|path| read("--etcd-ca", path)).transpose()?;
        let certificate = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                Some((read("--etcd-cert", certificate)?, read("--etcd-key", key)?))
            }
            _ => None,
        };
        let login = self.password.map(read_login).transpose()?;
        Ok(EtcdSettings { urls: self.urls.to_vec(), authorities, certificate, login })
    }
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, SettingsError> {
    let path = path.to_owned();
    std::fs::read(&path).map_err(|error| SettingsError::File { option, path, error })
}

fn read_login(path: &Path) -> Result<(String, String), SettingsError> {
    let text = String::from_utf8_lossy(&read("--etcd-password", path)?).trim().to_owned();
    let (name, password) =
        text.split_once(':').ok_or_else(|| SettingsError::Password(path.to_owned()))?;
    Ok((name.to_owned(), password.to_owned()))
}
