//! TLS for clients: certificates and the current configuration. [`channel`] encrypts and decrypts.

pub mod channel;
mod counts;
mod security;

pub use counts::TlsCounts;
pub use larder_support::tls::LoadError;
pub use security::Security;

use crate::options;
use larder_support::clock::Clock;
use larder_support::tls::{ClientCertificates, load};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The default of `ssl_handshake_timeout`, in seconds.
const HANDSHAKE_TIMEOUT: u32 = 30;

/// The TLS state that all connections of a server share.
#[derive(Debug)]
pub struct Tls {
    options: options::Tls,
    provider: Arc<CryptoProvider>,
    present: Mutex<Configurations>,
    /// The time at which the certificates were last read, on the scale of [`Clock::now`].
    refreshed: AtomicU32,
    clock: Clock,
    counts: Arc<TlsCounts>,
}

/// The configurations for new connections, one per requirement for client certificates.
#[derive(Debug)]
struct Configurations {
    /// For listeners without a prefix: verifies client certificates according to `ssl_verify_mode`.
    usual: Arc<ServerConfig>,
    /// For `btls:`.
    anonymous: Arc<ServerConfig>,
    /// For `mtls:`; `None` without `ssl_ca_cert`.
    certified: Option<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files that the options name. `securities` are the TLS requirements of the
    /// listeners.
    ///
    /// # Errors
    /// [`LoadError`] for the first option that is missing or whose file is invalid.
    pub fn new(
        options: options::Tls,
        mut securities: impl Iterator<Item = Security>,
    ) -> Result<Self, LoadError> {
        let clock = Clock::start();
        let provider = Arc::new(ring::default_provider());
        let present = Configurations::read(&options, &provider)?;
        let asks = securities.any(|security| security == Security::Certified);
        if asks && present.certified.is_none() {
            return Err(LoadError::NoAuthority("mtls:"));
        }
        let refreshed = clock.now().0.into();
        let counts = Arc::default();
        Ok(Self { options, provider, present: Mutex::new(present), refreshed, clock, counts })
    }

    /// Reads the files again. If a file is invalid, keeps the current configuration.
    ///
    /// # Errors
    /// [`LoadError`] for the first invalid file.
    pub fn refresh(&self) -> Result<(), LoadError> {
        let read = Configurations::read(&self.options, &self.provider)?;
        *self.present() = read;
        self.refreshed.store(self.clock.now().0, Relaxed);
        tracing::info!("certificates reloaded");
        Ok(())
    }

    /// Returns the configuration for a new connection at a listener, or `None` for plaintext.
    /// `mtls:` without `ssl_ca_cert` would also give `None`, but [`Tls::new`] refuses this
    /// combination.
    #[must_use]
    pub fn configuration(&self, security: Security) -> Option<Arc<ServerConfig>> {
        let present = self.present();
        match security {
            Security::Plain => None,
            Security::Usual => Some(Arc::clone(&present.usual)),
            Security::Anonymous => Some(Arc::clone(&present.anonymous)),
            Security::Certified => present.certified.clone(),
        }
    }

    /// Returns the configuration for a new HTTP connection at a TLS listener, with ALPN.
    #[cfg(feature = "http")]
    pub(crate) fn configuration_of_http(&self, security: Security) -> Arc<ServerConfig> {
        let present = self.configuration(security);
        let present = present.unwrap_or_else(|| Arc::clone(&self.present().usual));
        let mut configuration = (*present).clone();
        configuration.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(configuration)
    }

    /// Returns whether a listener requires a valid client certificate.
    #[must_use]
    pub fn asks_for_certificates(&self, security: Security) -> bool {
        match security {
            Security::Certified => true,
            Security::Usual => {
                ClientCertificates::from(self.options.verify_mode) == ClientCertificates::Required
            }
            Security::Plain | Security::Anonymous => false,
        }
    }

    /// Returns the maximum duration of a handshake.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        Duration::from_secs(self.options.handshake_timeout.unwrap_or(HANDSHAKE_TIMEOUT).into())
    }

    /// Returns the seconds since the certificates were last read.
    pub(crate) fn since_refresh(&self) -> u32 {
        self.clock.now().0.saturating_sub(self.refreshed.load(Relaxed))
    }

    /// Returns the fixed memory of TLS connections, in bytes.
    /// [`crate::connection::list::Connections::held`] does not include this memory.
    pub(crate) fn fixed(&self) -> usize {
        self.counts.open.load(Relaxed) * channel::FIXED_LEN
    }

    pub(crate) fn counts(&self) -> &Arc<TlsCounts> {
        &self.counts
    }

    fn present(&self) -> MutexGuard<'_, Configurations> {
        // A single assignment replaces the value, so the value stays valid if a thread panics while
        // holding the lock.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsCounts {
    pub(crate) fn reset(&self) {
        for count in [&self.new_sessions, &self.handshake_errors, &self.proto_errors] {
            count.store(0, Relaxed);
        }
    }
}

impl Configurations {
    /// Reads the configurations. Each configuration has its own session tickets, so a session that
    /// started without a certificate cannot resume at a listener that requires one, and no session
    /// can resume after a refresh.
    fn read(options: &options::Tls, provider: &Arc<CryptoProvider>) -> Result<Self, LoadError> {
        let read = |clients| load(options, clients, provider).map(Arc::new);
        let certified = options.ca_cert.is_some().then(|| read(ClientCertificates::Required));
        Ok(Self {
            usual: read(ClientCertificates::from(options.verify_mode))?,
            anonymous: read(ClientCertificates::None)?,
            certified: certified.transpose()?,
        })
    }
}
