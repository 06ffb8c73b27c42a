//! The values of the options `-o ssl_*`, before their files are read.

use std::path::PathBuf;

/// TLS options. For connections of clients, `-o ssl_*` sets them, and they take effect with `-Z`.
/// For connections between nodes, `--cluster-tls` sets some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// `ssl_chain_cert`: the PEM file with the server's certificate and the certificates of its
    /// issuers.
    pub chain_cert: Option<PathBuf>,
    /// `ssl_key`: the file of the private key. If `None`, the chain file contains the key.
    pub key: Option<PathBuf>,
    /// `ssl_keyformat`: the format of the key file.
    pub key_format: KeyFormat,
    /// `ssl_ca_cert`: the PEM file of the certificate authorities for clients.
    pub ca_cert: Option<PathBuf>,
    /// `ssl_verify_mode`: whether clients must present certificates.
    pub verify_mode: VerifyMode,
    /// `ssl_min_version`: the oldest accepted version of TLS.
    pub min_version: Version,
    /// `ssl_session_cache`: whether the server caches sessions. Clients that do not support session
    /// tickets can then resume sessions, too.
    pub session_cache: bool,
    /// `ssl_wbuf_size`, in bytes. The server shows this number in statistics and otherwise ignores
    /// it.
    pub wbuf_size: u32,
    /// `ssl_handshake_timeout`, Larder's own option: the time limit of a handshake, in seconds;
    /// `None` for the default.
    pub handshake_timeout: Option<u32>,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            chain_cert: None,
            key: None,
            key_format: KeyFormat::default(),
            ca_cert: None,
            verify_mode: VerifyMode::default(),
            min_version: Version::default(),
            session_cache: false,
            wbuf_size: 16 << 10,
            handshake_timeout: None,
        }
    }
}

/// `ssl_keyformat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// `1` or `PEM`.
    #[default]
    Pem,
    /// `2` or `DER`.
    Der,
}

/// `ssl_verify_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// 0: do not request certificates.
    #[default]
    None,
    /// 1: request a certificate, and refuse an invalid one.
    Request,
    /// 2: refuse clients without a valid certificate.
    Require,
    /// 3: like 2. In memcached, a renegotiation does not request the certificate again. Larder has
    /// no renegotiation.
    Once,
}

/// `ssl_min_version`. Larder accepts the values for TLS 1.0 and 1.1 as TLS 1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0, 1 or 2.
    #[default]
    Tls12,
    /// 3.
    Tls13,
}

impl KeyFormat {
    /// Parses a value of `ssl_keyformat`. Returns `None` for any other string.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_uppercase().as_str() {
            "1" | "PEM" => Some(Self::Pem),
            "2" | "DER" => Some(Self::Der),
            _ => None,
        }
    }
}

impl VerifyMode {
    /// Returns the mode with this number in memcached. Numbers above 3 mean [`Self::Once`].
    #[must_use]
    pub fn new(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Request,
            2 => Self::Require,
            _ => Self::Once,
        }
    }
}

impl Version {
    /// Returns the version with this number in memcached. Numbers above 3 mean TLS 1.3.
    #[must_use]
    pub fn new(number: u64) -> Self {
        if number >= 3 { Self::Tls13 } else { Self::Tls12 }
    }
}
