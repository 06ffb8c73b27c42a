//! The input buffer of a connection to a server.

/// An input buffer. `start..end` contains the received bytes that are not consumed yet.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Minimum length of the next reply in bytes.
    wanted: usize,
}

impl Input {
    /// Returns an empty buffer with capacity for `len` bytes. It grows for longer replies.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { buffer: vec![0; len], start: 0, end: 0, wanted: 1 }
    }

    /// Returns the received bytes that are not consumed yet.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns whether the buffer contains at least as many bytes as the next reply needs.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.end - self.start >= self.wanted
    }

    /// Sets the minimum length of the next reply in bytes: the number in
    /// `larder_protocol::response::Read::Incomplete`.
    #[inline]
    pub fn want(&mut self, wanted: usize) {
        self.wanted = wanted;
    }

    /// Returns the free space for the next read, which is never empty. After a call to
    /// [`want`](Self::want), the space has room for the missing bytes of the next reply.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = self.wanted.max(self.end - self.start + 1);
        if self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if wanted > self.buffer.len() {
                self.buffer.resize(wanted.max(2 * self.buffer.len()), 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// Records that a read has filled the first `len` bytes of the [`space`](Self::space).
    #[inline]
    pub fn arrived(&mut self, len: usize) {
        debug_assert!(len <= self.buffer.len() - self.end, "more bytes than the free space");
        self.end += len;
    }

    /// Removes the first `len` received bytes.
    #[inline]
    pub fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.start, "more bytes than were received");
        self.start += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(input: &mut Input, bytes: &[u8]) {
        input.space()[..bytes.len()].copy_from_slice(bytes);
        input.arrived(bytes.len());
    }

    #[test]
    fn the_buffer_has_room_for_the_wanted_bytes() {
        let mut input = Input::new(4);
        assert!(!input.is_ready());
        arrive(&mut input, b"abcd");
        assert!(input.is_ready());
        input.consume(2);
        input.want(100);
        assert!(!input.is_ready());
        assert!(input.space().len() >= 98);
        arrive(&mut input, &[b'x'; 98]);
        assert!(input.is_ready() && input.bytes().starts_with(b"cdx"));
    }

    #[test]
    fn there_is_always_space() {
        let mut input = Input::new(4);
        for _ in 0..100 {
            assert!(!input.space().is_empty());
            arrive(&mut input, b"a");
        }
        assert_eq!(input.bytes(), [b'a'; 100]);
        input.consume(100);
        let len = input.space().len();
        assert!(len >= 100, "the whole buffer is free again: {len}");
    }
}
