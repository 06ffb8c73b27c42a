//! A handle's reads from flash: reads under way, and finished reads whose items its batch uses.

use crate::segment::flash::pending_read::{ItemRead, find};
use crate::segment::flash::tier::Flash;
use crate::segment::index::word::IndexWord;
use larder_device::Reader;
#[cfg(unix)]
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A read that a request waits for.
#[derive(Debug)]
pub struct PendingRead(pub(crate) Arc<dyn ItemRead>);

/// The reads of a handle.
#[derive(Debug, Default)]
pub(crate) struct BatchReads {
    reader: Option<Reader>,
    /// Reads whose items the current batch uses.
    pub(crate) delivered: Vec<Arc<dyn ItemRead>>,
    /// Whether the caller polls the reader's descriptor.
    is_polled: bool,
}

impl BatchReads {
    pub(crate) fn reader(&mut self, flash: &Flash) -> &mut Reader {
        let is_polled = self.is_polled;
        self.reader.get_or_insert_with(|| {
            let device = Arc::clone(&flash.device);
            let new = if is_polled { Reader::new } else { Reader::threaded };
            new(device, flash.depth, &flash.pool)
        })
    }

    /// Returns the descriptor that becomes readable when reads end. The caller polls it, and then
    /// calls [`BatchReads::drive`]. Returns `None` if threads do the reads.
    #[cfg(unix)]
    pub(crate) fn poll(&mut self, flash: &Flash) -> Option<RawFd> {
        self.is_polled = true;
        let fd = self.reader(flash).fd().map(|fd| fd.as_raw_fd());
        if fd.is_none() {
            (self.reader, self.is_polled) = (None, false);
        }
        fd
    }

    /// If any read is under way, submits the started reads and completes the finished reads.
    pub(crate) fn drive(&mut self) {
        if let Some(reader) = self.reader.as_mut().filter(|reader| reader.under_way() > 0) {
            reader.submit();
            reader.reap();
        }
    }

    pub(crate) fn submit(&mut self) {
        if let Some(reader) = self.reader.as_mut().filter(|_| !self.is_polled) {
            reader.submit();
        }
    }

    /// Returns the delivered read of this item, or `None` if no read has delivered it.
    pub(crate) fn find(&self, word: IndexWord) -> Option<&Arc<dyn ItemRead>> {
        find(&self.delivered, word)
    }

    /// Returns whether the handle may start another read.
    pub(crate) fn has_room(&mut self, flash: &Flash) -> bool {
        self.reader(flash).under_way() < flash.depth
    }

    /// Ends the batch's use of the delivered items.
    pub(crate) fn end_batch(&mut self) {
        self.delivered.drain(..).for_each(|read| read.leave());
    }
}
