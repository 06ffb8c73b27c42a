//! The reasons why an address cannot be listened on.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// An address that can't be listened on.
#[derive(Debug)]
pub enum ListenError {
    /// It is not an address.
    Address(String),
    /// `-l` was given and names no address.
    NoAddress,
    /// `proto[..]:` does not name a protocol.
    Protocol(String),
    /// The dialect has no logins, and `-S` or `-Y` requires one.
    NoLogin(String),
    /// A TCP socket could not be bound.
    Tcp(SocketAddr, io::Error),
    /// A UDP socket could not be bound.
    Udp(SocketAddr, io::Error),
    /// A unix socket could not be bound.
    Unix(String, io::Error),
    /// A socket that was passed to the server cannot be used.
    Inherited(String),
    /// An address asks for TLS without `-Z`.
    NeedsTls(String),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("-l names no address to listen on"),
            Self::Address(text) => write!(f, "failed to resolve the address to listen on: {text}"),
            Self::Protocol(entry) => {
                write!(f, "-l {entry}: proto[..] is one of ascii, binary, negotiating and resp")
            }
            Self::NoLogin(address) => write!(
                f,
                "-l ..{address}: -Y has logins in ascii alone, -S in binary alone; leave proto[..] \
                 out, or name that one"
            ),
            Self::Tcp(address, error) => {
                write!(f, "failed to listen on TCP port {}: {error} ({address})", address.port())
            }
            Self::Udp(address, error) => {
                write!(f, "failed to listen on UDP port {}: {error} ({address})", address.port())
            }
            Self::Unix(path, error) => {
                write!(f, "failed to listen on UNIX socket: {path}: {error}")
            }
            Self::Inherited(text) => write!(f, "failed to listen on what was passed: {text}"),
            Self::NeedsTls(address) => write!(f, "{address}: mtls: and btls: need -Z"),
        }
    }
}

impl std::error::Error for ListenError {}
