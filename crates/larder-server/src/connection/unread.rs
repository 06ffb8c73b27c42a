//! Input that a conversation has not consumed.

/// A full buffer grows by at least its capacity divided by this number, so that few short pushes
/// copy the bytes. The capacity does not double, because all connections share a small amount of
/// memory.
const GROWTH_SHARE: usize = 8;

/// Input that a conversation has not consumed. Consuming a few bytes is fast even if many bytes
/// remain, because most calls do not move the remaining bytes.
#[derive(Debug, Default)]
pub(super) struct Unread {
    bytes: Vec<u8>,
    /// The number of consumed bytes at the start. They are removed when they make up more than half
    /// of the buffer.
    consumed: usize,
}

impl Unread {
    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.consumed..).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let growth = self.growth(bytes.len());
        if growth > 0 {
            self.remove_consumed();
            self.bytes.reserve_exact(growth);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the maximum number of bytes by which the capacity grows if `len` bytes are pushed.
    /// Returns 0 if the bytes fit.
    pub(super) fn growth(&self, len: usize) -> usize {
        let capacity = self.bytes.capacity();
        if self.bytes.len() + len <= capacity { 0 } else { len.max(capacity / GROWTH_SHARE) }
    }

    /// Removes `len` bytes from the start.
    pub(super) fn consume(&mut self, len: usize) {
        self.consumed += len;
        if self.is_empty() {
            *self = Self::default();
        } else if self.consumed > self.bytes.len() / 2 {
            self.remove_consumed();
            self.bytes.shrink_to(2 * self.bytes.len());
        }
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    fn remove_consumed(&mut self) {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_bytes_are_removed_and_their_memory_is_freed() {
        let mut unread = Unread::default();
        unread.push(&[1; 1000]);
        (0..1000_u16).for_each(|number| unread.push(&number.to_le_bytes()));
        unread.consume(1000);
        for number in 0..999_u16 {
            assert_eq!(unread.as_slice()[..2], number.to_le_bytes());
            unread.consume(2);
            assert!(
                unread.capacity() <= 4 * unread.as_slice().len() + 2000 * usize::from(number < 500)
            );
        }
        unread.push(b"x");
        assert_eq!(unread.as_slice(), [231, 3, b'x']);
        unread.consume(3);
        assert_eq!((unread.is_empty(), unread.capacity()), (true, 0));
    }
}
