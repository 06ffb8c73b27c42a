//! Fake servers inside the test process, and clients for them.

use crate::any_client::{AnyClient, AnyClientBuilder};
use crate::common::Scratch;
use crate::common::tls::{Authority, Identity};
use larder_client::{Error, ErrorKind, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

pub(super) type NewClient<'c> = &'c dyn Fn(String) -> AnyClientBuilder;

pub(super) const MILLIS: fn(u64) -> Duration = Duration::from_millis;
/// A timeout that no test should reach, even on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

pub(super) fn with_tls(builder: AnyClientBuilder, tls: Tls) -> AnyClientBuilder {
    match builder {
        AnyClientBuilder::Threads(builder) => AnyClientBuilder::Threads(builder.tls(tls)),
        AnyClientBuilder::Tokio(builder) => AnyClientBuilder::Tokio(builder.tls(tls)),
    }
}

/// Returns the TLS settings of a client that trusts the CA in this directory and expects the server
/// name `cache.test`.
pub(super) fn tls(scratch: &Scratch) -> Tls {
    Tls::new().ca_file(scratch.path("ca.pem")).server_name("cache.test")
}

pub(super) fn patient(client: NewClient<'_>, port: u16, tls: Tls) -> AnyClient {
    with_tls(client(at(port)), tls).timeout(LONG).connect_timeout(LONG).build().unwrap()
}

/// Creates a client whose calls time out after a second.
pub(super) fn hasty(client: NewClient<'_>, port: u16, tls: Tls) -> AnyClient {
    let builder = with_tls(client(at(port)), tls).timeout(Duration::from_secs(1));
    builder.connect_timeout(LONG).build().unwrap()
}

pub(super) fn reason(error: &Error) -> String {
    assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error:?}");
    assert!(!error.is_ambiguous() && error.is_fault());
    error.to_string()
}

/// The function that serves a connection. Its first argument is the connection number.
pub(super) type Serve = dyn Fn(u64, TcpStream) + Send + Sync;

/// A fake server. It stops with the test process.
pub(super) struct Fake {
    pub(super) port: u16,
    pub(super) accepted: Arc<AtomicU64>,
}

impl Fake {
    pub(super) fn start(serve: Arc<Serve>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Self { port: listener.local_addr().unwrap().port(), accepted: Arc::default() };
        let accepted = Arc::clone(&fake.accepted);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (number, serve) =
                    (accepted.fetch_add(1, Ordering::Relaxed), Arc::clone(&serve));
                thread::spawn(move || serve(number, stream.unwrap()));
            }
        });
        fake
    }

    /// Starts a server with TLS. The arguments of `answer` are the connection number, the line's
    /// number on this connection, the line and the stream. `answer` returns whether the connection
    /// stays open.
    pub(super) fn with_tls(
        scratch: &Scratch,
        answer: impl Fn(u64, u64, &str, &mut Encrypted) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::with_versions(scratch, rustls::ALL_VERSIONS, answer)
    }

    /// Starts a server with only these TLS versions.
    pub(super) fn with_versions(
        scratch: &Scratch,
        versions: &[&'static SupportedProtocolVersion],
        answer: impl Fn(u64, u64, &str, &mut Encrypted) -> bool + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new();
        scratch.file("ca.pem", &authority.pem());
        let Identity { chain, key } = authority.issue();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            );
        let config = Arc::new(config.unwrap());
        Self::start(Arc::new(move |number, stream| {
            stream.set_nodelay(true).unwrap();
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut lines = BufReader::new(StreamOwned::new(tls, stream));
            for on_connection in 0.. {
                let mut line = String::new();
                let has_line = lines.read_line(&mut line).is_ok_and(|len| len > 0);
                if !has_line || !answer(number, on_connection, &line, lines.get_mut()) {
                    break;
                }
            }
        }))
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

pub(super) type Encrypted = StreamOwned<ServerConnection, TcpStream>;

/// Returns a valid reply to a lookup. The value equals the key.
pub(super) fn right(line: &str) -> String {
    let key = line.trim_end().strip_prefix("get ").unwrap();
    format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len())
}

/// Sets the linger time to 0, so that closing the stream sends a reset.
pub(super) fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

pub(super) fn scratch_with_ca() -> Scratch {
    let scratch = Scratch::new("client-fake");
    scratch.file("ca.pem", &Authority::new().pem());
    scratch
}
