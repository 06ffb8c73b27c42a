//! The buffers that all connections of a thread share.

use std::io::{self, Write};

/// The buffers of one thread. The connections of the thread take turns using them, so an idle
/// connection needs no buffers.
#[derive(Debug)]
pub struct Buffers {
    /// Bytes read from a socket.
    pub input: Box<[u8]>,
    /// Replies. Empty between polls.
    pub output: Vec<u8>,
    /// Decrypted input.
    pub(super) plaintext: Vec<u8>,
    /// TLS records for the peer: encrypted replies and handshake messages. Empty between polls.
    pub(super) ciphertext: Vec<u8>,
}

/// The maximum length of one read, in bytes.
const READ_LEN: usize = 64 << 10;
/// An output buffer whose capacity exceeds this number of bytes is freed after use.
const OUTPUT_KEPT: usize = 1 << 20;

impl Buffers {
    /// Allocates the buffers of one thread.
    #[must_use]
    pub fn new() -> Self {
        let input = vec![0; READ_LEN].into_boxed_slice();
        Self { input, output: Vec::new(), plaintext: Vec::new(), ciphertext: Vec::new() }
    }

    /// Frees output buffers that have grown for a large reply.
    pub(crate) fn shrink(&mut self) {
        for buffer in [&mut self.output, &mut self.ciphertext] {
            if buffer.capacity() > OUTPUT_KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of bytes that one poll has received and sent. With TLS, the numbers count only
/// plaintext.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoBytes {
    /// Bytes read from the peer; with TLS, bytes decrypted.
    pub read: usize,
    /// Bytes written to the peer; with TLS, bytes encrypted for the peer.
    pub written: usize,
}

/// Writes until the socket has accepted all bytes or would block. Returns the number of bytes that
/// the socket accepted.
pub(super) fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => sent += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
