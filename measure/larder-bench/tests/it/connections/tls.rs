//! The load over TLS.

use crate::common::load;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

/// Starts a TLS server that answers each line with `END`. Returns its port and the path of its
/// certificate.
fn server_without_items(name: &str) -> (u16, PathBuf) {
    server_for(usize::MAX, name)
}

/// Starts the server of [`server_without_items`], but serves only the first `served` connections.
fn server_for(served: usize, name: &str) -> (u16, PathBuf) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["cache.test".to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("larder-bench-{}-{name}.pem", std::process::id()));
    std::fs::write(&file, cert.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let (connection, stream) = (ServerConnection::new(config.clone()), stream.unwrap());
            if number < served {
                let connection = StreamOwned::new(connection.unwrap(), stream);
                std::thread::spawn(|| miss(connection));
            } else {
                silent.push(stream);
            }
        }
    });
    (port, file)
}

fn miss(mut stream: StreamOwned<ServerConnection, TcpStream>) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        for _ in bytes[..len].iter().filter(|byte| **byte == b'\n') {
            stream.write_all(b"END\r\n").unwrap();
        }
    }
}

#[test]
fn requests_and_answers_are_encrypted() {
    let (port, certificate) = server_without_items("trusted");
    let line = format!("-s 127.0.0.1 -p {port} -t 2 -c 3 -n 100 --ratio 0:1 --pipeline 10 --tls");
    let trusted = format!("{line} --sni cache.test --cacert {}", certificate.display());
    for line in [format!("{line} --tls-skip-verify"), trusted] {
        let measured = load(&line);
        assert_eq!(measured.outcome.commands["get"].misses, 600, "{line}");
        assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    }
    std::fs::remove_file(certificate).unwrap();
}

#[test]
fn several_servers_are_spoken_to_in_tls() {
    let servers = ["first", "second"].map(server_without_items);
    let ports = format!("127.0.0.1:{},127.0.0.1:{}", servers[0].0, servers[1].0);
    let measured = load(&format!("-s {ports} -t 1 -c 3 -n 100 --ratio 0:1 --pipeline 10 --tls"));
    assert_eq!(measured.outcome.commands["get"].misses, 300);
    assert!(measured.outcome.servers.iter().all(|server| server.misses > 0));
    assert!(measured.outcome.faults.is_empty(), "{:?}", measured.outcome.faults);
    for (_, certificate) in servers {
        std::fs::remove_file(certificate).unwrap();
    }
}

#[test]
fn a_server_with_tls_that_is_spoken_to_in_plaintext_is_named() {
    let (port, certificate) = server_without_items("plaintext");
    let line = format!("-s 127.0.0.1 -p {port} -t 1 -c 2 -n 10 --timeout 1");
    let reason = load(&line).outcome.ended_early.unwrap();
    assert!(reason.contains("TLS"), "{reason}");
    std::fs::remove_file(certificate).unwrap();
}

#[test]
fn a_server_without_tls_that_is_spoken_to_in_tls_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"ERROR\r\n");
        }
    });
    let line = format!("-s 127.0.0.1 -p {port} -t 1 -c 2 -n 10 --timeout 1 --tls");
    let reason = load(&line).outcome.ended_early.unwrap();
    assert!(reason.contains("does not speak TLS on this port"), "{reason}");
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let (port, certificate) = server_without_items("wrong-name");
    let line = format!(
        "-s 127.0.0.1 -p {port} -t 1 -c 1 --tls --sni other.test --cacert {}",
        certificate.display()
    );
    let reason = load(&line).outcome.ended_early.unwrap();
    assert!(reason.contains("certificate not valid for name"), "{reason}");
    std::fs::remove_file(certificate).unwrap();
}

#[test]
fn connections_are_opened_again_after_an_interval() {
    let (port, _) = server_without_items("reconnect");
    let line = format!(
        "-s 127.0.0.1 -p {port} --tls -t 1 -c 2 -n 20 --ratio 0:1 --reconnect-interval 4 --pipeline 2"
    );
    let outcome = load(&line).outcome;
    assert_eq!(outcome.commands["get"].requests, 40);
    assert!(outcome.faults.is_empty(), "{:?}", outcome.faults);
}

/// The server accepts the connections of the second step but does not answer their handshakes.
#[test]
fn a_handshake_that_is_never_answered_during_the_run_is_a_fault() {
    let (port, certificate) = server_for(1, "silent");
    let steps = "--clients-start 1 --clients-step 2 --step-duration 0.3 --test-time 1.5";
    let line = format!("-s 127.0.0.1 -p {port} --tls -t 1 -c 3 --ratio 0:1 {steps} --timeout 0.4");
    let outcome = load(&line).outcome;
    let lost = "connection lost during the TLS handshake: no answer within 0.4 s (--timeout)";
    assert_eq!(outcome.faults.get(lost), Some(&2), "{:?}", outcome.faults);
    assert_eq!(outcome.faults.len(), 1, "{:?}", outcome.faults);
    assert_eq!((outcome.lost_connections, outcome.ended_early), (2, None));
    assert!(outcome.commands["get"].requests > 0);
    std::fs::remove_file(certificate).unwrap();
}
