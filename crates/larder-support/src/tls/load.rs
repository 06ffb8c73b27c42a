//! Builds rustls configurations from PEM and DER files.

use super::key_type;
use super::options::{KeyFormat, Tls, VerifyMode, Version};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of cached sessions (`ssl_session_cache`): OpenSSL's default.
const SESSIONS_MAX: usize = 20 * 1024;

/// The maximum length of a file, in bytes.
const FILE_LEN_MAX: u64 = 16 << 20;
const NONBLOCKING: i32 = nix::libc::O_NONBLOCK;

/// The reason why certificates are unusable. Messages about a file have memcached's format.
#[derive(Debug)]
pub enum LoadError {
    /// TLS is required, and `ssl_chain_cert` is missing.
    NoChain,
    /// The option with this name requires `ssl_ca_cert`, which is missing.
    NoAuthority(&'static str),
    /// The file of the server's certificates is invalid. The fields are its path and the reason.
    Chain(PathBuf, String),
    /// The file of the server's key is invalid. The fields are its path and the reason.
    Key(PathBuf, String),
    /// The file of certificate authorities is invalid. The fields are its path and the reason.
    Authority(PathBuf, String),
    /// The system's random generator failed, or rustls does not support the options.
    Unusable(Error),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, path, reason) = match self {
            Self::NoChain => return f.write_str("-Z needs a certificate: -o ssl_chain_cert=FILE"),
            Self::NoAuthority(option) => {
                return write!(f, "{option} requests certificates: -o ssl_ca_cert=FILE is needed");
            }
            Self::Unusable(error) => return write!(f, "TLS is unavailable: {error}"),
            Self::Chain(path, reason) => ("certificate chain", path, reason),
            Self::Key(path, reason) => ("key", path, reason),
            Self::Authority(path, reason) => ("CA certificate", path, reason),
        };
        write!(f, "Error loading the {file}: {} : {reason}", path.display())
    }
}

impl std::error::Error for LoadError {}

/// Whether clients must present certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Do not request a certificate.
    None,
    /// Accept a valid certificate or none.
    Optional,
    /// Require a valid certificate.
    Required,
}

impl From<VerifyMode> for ClientCertificates {
    fn from(mode: VerifyMode) -> Self {
        match mode {
            VerifyMode::None => Self::None,
            VerifyMode::Request => Self::Optional,
            VerifyMode::Require | VerifyMode::Once => Self::Required,
        }
    }
}

/// Reads the files in `options` and returns the TLS configuration of a listener.
///
/// # Errors
/// [`LoadError`] for the first option that is missing or whose file is invalid.
pub fn load(
    options: &Tls,
    clients: ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<ServerConfig, LoadError> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions(options.min_version))
        .map_err(LoadError::Unusable)?;
    let builder = match verifier(options, clients, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let identity = SingleCertAndKey::from(identity(options, provider)?);
    let mut config = builder.with_cert_resolver(Arc::new(identity));
    // As in OpenSSL, tickets are always on, and a session cache is an option.
    config.ticketer = Ticketer::new().map_err(LoadError::Unusable)?;
    config.session_storage = if options.session_cache {
        ServerSessionMemoryCache::new(SESSIONS_MAX)
    } else {
        Arc::new(NoServerSessionStorage {})
    };
    Ok(config)
}

/// Reads the files in `options` and returns the TLS configuration for connections to servers. The
/// client verifies server certificates against the authorities of `options.ca_cert`, and presents
/// the certificate of `options.chain_cert`.
///
/// # Errors
/// [`LoadError`] for the first option that is missing or whose file is invalid.
pub fn load_client(
    options: &Tls,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig, LoadError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions(options.min_version))
        .map_err(LoadError::Unusable)?
        .with_root_certificates(authorities(options)?.1);
    let identity = SingleCertAndKey::from(identity(options, provider)?);
    Ok(builder.with_client_cert_resolver(Arc::new(identity)))
}

/// Checks that the certificate is valid for the name of this node. Other nodes refuse a certificate
/// for another name.
///
/// # Errors
/// [`LoadError`]: the certificate is for another name, or its file is invalid.
pub fn check_node(options: &Tls, node: &str) -> Result<(), LoadError> {
    let path = options.chain_cert.as_ref().ok_or(LoadError::NoChain)?;
    let bad = |reason: String| LoadError::Chain(path.clone(), reason);
    let chain = certificates(path).map_err(bad)?;
    let leaf = chain.first().ok_or(LoadError::NoChain)?;
    let leaf =
        ParsedCertificate::try_from(leaf).map_err(|error| bad(explain_certificate(&error)))?;
    let is_for = |name| verify_server_name(&leaf, &name).is_ok();
    if ServerName::try_from(node).is_ok_and(is_for) {
        return Ok(());
    }
    Err(bad(format!(
        "not for this node: the certificate needs the name DNS:{node} (subjectAltName)"
    )))
}

static TLS13_ALONE: &[&SupportedProtocolVersion] = &[&version::TLS13];

fn versions(min: Version) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        Version::Tls12 => rustls::ALL_VERSIONS,
        Version::Tls13 => TLS13_ALONE,
    }
}

fn identity(options: &Tls, provider: &CryptoProvider) -> Result<CertifiedKey, LoadError> {
    let chain_path = options.chain_cert.as_ref().ok_or(LoadError::NoChain)?;
    let bad_chain = |reason: String| LoadError::Chain(chain_path.clone(), reason);
    let chain = certificates(chain_path).map_err(bad_chain)?;
    let key_path = options.key.as_ref().unwrap_or(chain_path);
    let bad_key = |reason: String| LoadError::Key(key_path.clone(), reason);
    let key = private_key(key_path, options.key_format).map_err(bad_key)?;
    let type_name = key_type::type_name(&key);
    let unsupported = |error: Error| bad_key(key_type::explain_unsupported(type_name, &error));
    let key = provider.key_provider.load_private_key(key).map_err(unsupported)?;
    let identity = CertifiedKey::new(chain, key);
    match identity.keys_match() {
        // If the key file lacks the public key, rustls cannot compare the key with the certificate.
        Ok(()) | Err(Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(identity),
        Err(Error::InconsistentKeys(_)) => {
            Err(bad_key("the key is not the certificate's".to_owned()))
        }
        Err(error) => Err(bad_chain(explain_certificate(&error))),
    }
}

/// Reads all certificates of a PEM file. A file without certificates is an error.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read_pem(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(read) if read.is_empty() => Err(missing_section(&text, "certificate")),
        Ok(read) => Ok(read),
        Err(error) => Err(explain(error, &text)),
    }
}

fn private_key(path: &Path, format: KeyFormat) -> Result<PrivateKeyDer<'static>, String> {
    match format {
        KeyFormat::Pem => {
            let text = read_pem(path)?;
            PrivateKeyDer::from_pem_slice(&text).map_err(|error| explain(error, &text))
        }
        KeyFormat::Der => PrivateKeyDer::try_from(read_file(path)?).map_err(str::to_owned),
    }
}

/// Reads a PEM file, without the byte-order mark that Windows editors write at its start.
fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = read_file(path)?;
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    Ok(bytes)
}

/// Reads a regular file of at most [`FILE_LEN_MAX`] bytes. Refuses other files, because reading a
/// pipe or device could block and delay handshakes and the shutdown of the server.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    // Without the flag, opening a pipe would block.
    let file = File::options().read(true).custom_flags(NONBLOCKING).open(path).map_err(text)?;
    if !file.metadata().map_err(text)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(text)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err("the file is longer than 16 MiB".to_owned());
    }
    Ok(bytes)
}

/// Describes the fault of a certificate, and the remedy if one is known.
#[must_use]
pub fn explain_certificate(error: &Error) -> String {
    // rustls has no variant for this error, only a message.
    let text = error.to_string();
    if !text.contains("UnsupportedCertVersion") {
        return text;
    }
    "the certificate is of X.509 version 1, and only version 3 is accepted: issue it again with an \
     extension, as in openssl x509 -req -extfile <(echo basicConstraints=CA:FALSE)"
        .to_owned()
}

/// Describes the fault of a PEM file with a private key or certificates.
fn explain(error: pem::Error, text: &[u8]) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => missing_section(text, "private key"),
        pem::Error::MissingSectionEnd { end_marker } => {
            let label = end_marker.escape_ascii();
            format!("the line -----END {label}----- is missing: the file is cut off")
        }
        other => other.to_string(),
    }
}

/// Describes the fault of a PEM file without a section of the kind `kind`. Adds the remedy if the
/// file has a section of a similar kind.
fn missing_section(text: &[u8], kind: &str) -> String {
    let has = |label: &str| text.windows(label.len()).any(|part| part == label.as_bytes());
    match kind {
        "private key" if has("ENCRYPTED") => {
            "the private key is encrypted: decrypt it, as with openssl pkey -in FILE -out NEW"
                .to_owned()
        }
        "certificate" if has("BEGIN TRUSTED CERTIFICATE") => {
            "the certificate has OpenSSL's trust settings: remove them with openssl x509 -in FILE -out NEW"
                .to_owned()
        }
        _ => format!("no {kind} in PEM form in the file"),
    }
}

fn verifier(
    options: &Tls,
    clients: ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, LoadError> {
    if clients == ClientCertificates::None {
        return Ok(None);
    }
    let (path, roots) = authorities(options)?;
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    let builder = match clients {
        ClientCertificates::Optional => builder.allow_unauthenticated(),
        ClientCertificates::None | ClientCertificates::Required => builder,
    };
    let bad = |reason: String| LoadError::Authority(path.clone(), reason);
    builder.build().map(Some).map_err(|error| bad(error.to_string()))
}

/// Reads the certificate authorities. Returns the path of their file and their certificates.
fn authorities(options: &Tls) -> Result<(&PathBuf, RootCertStore), LoadError> {
    let path = options.ca_cert.as_ref().ok_or(LoadError::NoAuthority("ssl_verify_mode"))?;
    let bad = |reason: String| LoadError::Authority(path.clone(), reason);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path).map_err(bad)? {
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    Ok((path, roots))
}
