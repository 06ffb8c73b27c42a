//! The input buffer of a connection.

use crate::load::items::values::typical_len;
use crate::settings::Settings;

/// The input buffer. `start..end` contains the received bytes that are not parsed yet.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Input {
    /// Returns a buffer of 4 to 64 KiB, sized for the replies to a full pipeline. This size counts
    /// values of more than 4 KiB as 4 KiB. The buffer grows if a reply does not fit.
    pub(super) fn for_replies(settings: &Settings) -> Self {
        let sizes = settings.key_spaces.iter().map(|space| &space.data_size);
        let value_len = sizes.map(typical_len).max().unwrap_or(typical_len(&settings.data_size));
        let reply_len = value_len * settings.multi_get + 64;
        let len = (reply_len * settings.pipeline).clamp(4 << 10, 64 << 10);
        Self { buffer: vec![0; len], start: 0, end: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the free space for the next read, at least one byte. Enlarges a full buffer.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}
