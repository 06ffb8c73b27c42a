//! Certificates for one test, larderd with `-Z`, and a client that trusts its certificate.

use super::{Scratch, Server, TIMEOUT};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A CA.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub chain: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the private key of the CA.
    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// Issues a certificate for `cache.test`.
    pub fn issue(&self) -> Identity {
        self.issue_as(CertificateParams::new(["cache.test".to_owned()]).unwrap())
    }

    /// Issues a certificate with these parameters.
    pub fn issue_as(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        Identity { chain, key: key.serialize_pem() }
    }
}

/// A client's side of a connection.
pub type Client = StreamOwned<ClientConnection, TcpStream>;

/// larderd or memcached with `-Z`, with the files `chain.pem`, `key.pem` and `ca.pem` in its
/// scratch directory.
pub struct Secure {
    pub server: Server,
    pub authority: Authority,
}

impl Secure {
    /// Starts larderd with TLS on its first port. `options` may add addresses. `suboptions` follow
    /// the suboptions of the certificates.
    pub fn start(name: &str, options: &[&str], suboptions: &str) -> Self {
        let options = [&["-t", "1"], options].concat();
        Self::of(env!("CARGO_BIN_EXE_larderd"), name, &options, suboptions)
    }

    /// Starts Debian's memcached, which uses OpenSSL.
    pub fn memcached(name: &str, suboptions: &str) -> Self {
        let options = ["-u", "root", "-U", "0"];
        Self::of("memcached", &format!("{name}-memcached"), &options, suboptions)
    }

    fn of(program: &str, name: &str, options: &[&str], suboptions: &str) -> Self {
        let (scratch, authority) = (Scratch::new(&format!("tls-{name}")), Authority::new());
        write_identity(&scratch, &authority.issue());
        scratch.file("ca.pem", &authority.pem());
        let list = format!("ssl_chain_cert=chain.pem,ssl_key=key.pem,{suboptions}");
        let mut command = Command::new(program);
        command.current_dir(scratch.path("")).stdin(Stdio::null());
        command.args(["-l", "127.0.0.1", "-p", "-1", "-Z", "-o", &list]).args(options);
        Self { server: Server::spawn(scratch, &mut command), authority }
    }

    /// Returns all bound ports, in the order of the command line.
    pub fn ports(&self) -> Vec<u16> {
        self.server.ports()
    }

    /// Returns the configuration of a client that trusts this server's CA.
    pub fn client_config(&self) -> ClientConfig {
        client_config(&self.authority, rustls::ALL_VERSIONS, None)
    }

    /// Connects a client that trusts the server.
    pub fn connect(&self) -> Client {
        connect(self.server.port(), &Arc::new(self.client_config()))
    }

    /// Sends requests on a new connection and reads all replies.
    pub fn ask(&self, requests: &str) -> String {
        let mut client = self.connect();
        client.write_all(requests.as_bytes()).unwrap();
        client.write_all(b"quit\r\n").unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        answers
    }
}

/// Writes a certificate and its key to the server's files.
pub fn write_identity(scratch: &Scratch, identity: &Identity) {
    scratch.file("chain.pem", &identity.chain);
    scratch.file("key.pem", &identity.key);
}

pub fn client_config(
    trusted: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    identity: Option<&Identity>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => {
            let chain = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    }
}

pub fn connect(port: u16, config: &Arc<ClientConfig>) -> Client {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("cache.test").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), stream)
}
