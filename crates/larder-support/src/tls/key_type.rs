//! The type of a private key, for messages about keys that cannot be used.

use rustls::pki_types::PrivateKeyDer;

/// The key types that ring supports for signing.
const SUPPORTED: &str =
    "RSA keys of 2048 to 4096 bits, ECDSA keys on P-256 and P-384, and Ed25519 keys";

/// DER-encoded object identifiers, each with the type of the keys that contain it.
const IDENTIFIERS: [(&[u8], &str); 7] = [
    (b"\x06\x05\x2b\x81\x04\x00\x23", "an ECDSA key on P-521"),
    (b"\x06\x05\x2b\x81\x04\x00\x0a", "an ECDSA key on secp256k1"),
    (b"\x06\x03\x2b\x65\x71", "an Ed448 key"),
    (b"\x06\x03\x2b\x65\x6e", "an X25519 key, which cannot sign"),
    (b"\x06\x07\x2a\x86\x48\xce\x38\x04\x01", "a DSA key"),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a", "an RSA-PSS key"),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01", RSA),
];
const RSA: &str = "an RSA key";

/// The length, in bytes, of the start of a key that contains the object identifier.
const HEAD_LEN: usize = 120;

/// Returns the message about a key that cannot be used. The message contains the type of the key,
/// the supported types, and the error.
pub(super) fn explain_unsupported(type_name: Option<&str>, error: &rustls::Error) -> String {
    let type_name = type_name.unwrap_or("a key of an unknown type");
    format!("this is {type_name}; {SUPPORTED} are supported ({error})")
}

/// Returns the type of a key, or `None` if it is unknown.
pub(super) fn type_name(key: &PrivateKeyDer<'_>) -> Option<&'static str> {
    let bytes = key.secret_der();
    let head = &bytes[..bytes.len().min(HEAD_LEN)];
    let has = |part: &[u8]| head.windows(part.len()).any(|window| window == part);
    match key {
        PrivateKeyDer::Pkcs1(_) => Some(RSA),
        _ => IDENTIFIERS.into_iter().find(|(identifier, _)| has(identifier)).map(|(_, name)| name),
    }
}
