//! The buffers that all connections of a thread share, and writing from them.

use std::io::{self, Write};

/// Buffers that all connections of a thread share.
#[derive(Debug)]
pub struct Buffers {
    /// For reading.
    pub input: Box<[u8]>,
    /// For answers. Empty between turns.
    pub output: Vec<u8>,
    /// For decrypted input.
    pub(super) plaintext: Vec<u8>,
    /// For encrypted answers. Empty between turns.
    pub(super) ciphertext: Vec<u8>,
}

/// What a thread reads at once, in bytes.
const READ_LEN: usize = 64 << 10;
/// A buffer for answers that is larger than this is shrunk after use, in bytes.
const OUTPUT_KEPT: usize = 1 << 20;

impl Buffers {
    /// Buffers for one thread.
    #[must_use]
    pub fn new() -> Self {
        let input = vec![0; READ_LEN].into_boxed_slice();
        Self { input, output: Vec::new(), plaintext: Vec::new(), ciphertext: Vec::new() }
    }

    /// Frees the memory that a large answer needed.
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

/// Bytes that a turn moved, as the conversation sees them.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoBytes {
    /// Read from the peer.
    pub read: usize,
    /// Written to it.
    pub written: usize,
}

/// Writes as much as the peer accepts now.
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
