//! The values of `-o ssl_*` as they were given. The files are not read yet.

use std::path::PathBuf;

/// The options of TLS, which take effect under `-Z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// `ssl_chain_cert`: the server's certificate and those above it, PEM.
    pub chain_cert: Option<PathBuf>,
    /// `ssl_key`: the private key; it may be in the chain's file instead.
    pub key: Option<PathBuf>,
    /// `ssl_keyformat`: how the key is written.
    pub key_format: KeyFormat,
    /// `ssl_ca_cert`: the authorities of clients' certificates, PEM.
    pub ca_cert: Option<PathBuf>,
    /// `ssl_verify_mode`: whether clients have to present certificates.
    pub verify_mode: VerifyMode,
    /// `ssl_min_version`: the oldest version that is accepted.
    pub min_version: Version,
    /// `ssl_session_cache`: sessions are kept, so that clients without tickets can resume them too.
    pub session_cache: bool,
    /// `ssl_wbuf_size` in bytes, which is shown: output is encrypted where it lies.
    pub wbuf_size: u32,
    /// `ssl_handshake_timeout`, which is Larder's own: seconds that a handshake may take, if given.
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
    /// 0: clients are not asked for certificates.
    #[default]
    None,
    /// 1: clients are asked for a certificate; if they present one, it has to be valid.
    Request,
    /// 2: clients without a valid certificate are refused.
    Require,
    /// 3: as 2. memcached does not ask again at a renegotiation, which Larder does not support.
    Once,
}

/// `ssl_min_version`. TLS 1.0 and 1.1 may be asked for, and get 1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0, 1 or 2.
    #[default]
    Tls12,
    /// 3.
    Tls13,
}

impl KeyFormat {
    /// The format of this name.
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
    /// The mode of this number.
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
    /// The version of this number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        if number >= 3 { Self::Tls13 } else { Self::Tls12 }
    }
}
