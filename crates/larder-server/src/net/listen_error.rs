//! Errors of checking and binding the sockets to listen on.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// An error while checking or binding a socket to listen on.
#[derive(Debug)]
pub enum ListenError {
    /// The string is not an address, or does not resolve.
    Address(String),
    /// `-l` is given but contains no address.
    NoAddress,
    /// The protocol in `proto[..]:` is unknown.
    Protocol(String),
    /// `-S` or `-Y` requires a login that the dialect of the address does not support.
    NoLogin(String),
    /// Binding a TCP socket failed.
    Tcp(SocketAddr, io::Error),
    /// Binding a UDP socket failed.
    Udp(SocketAddr, io::Error),
    /// Binding a unix socket failed.
    Unix(String, io::Error),
    /// A socket inherited from the parent process is unusable.
    Inherited(String),
    /// The prefix of an address requires TLS, but `-Z` is not given.
    NeedsTls(String),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("-l contains no address to listen on"),
            Self::Address(text) => write!(f, "failed to resolve the address to listen on: {text}"),
            Self::Protocol(entry) => {
                write!(f, "-l {entry}: proto[..] is one of ascii, binary, negotiating and resp")
            }
            Self::NoLogin(address) => write!(
                f,
                "-l ..{address}: -Y supports logins only in ascii, -S only in binary; omit proto[..], or \
                 give that protocol"
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
            Self::Inherited(text) => write!(f, "failed to listen on an inherited socket: {text}"),
            Self::NeedsTls(address) => write!(f, "{address}: mtls: and btls: need -Z"),
        }
    }
}

impl std::error::Error for ListenError {}
