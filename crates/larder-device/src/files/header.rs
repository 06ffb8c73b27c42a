//! The header of a file. It contains the parameters with which the file was created.
//!
//! ```text
//! word   0-1     2        3-4  5      6      7    8         9
//!        magic   version  id   index  files  len  page_len  checksum of words 0-8
//! ```
//!
//! A word has 64 bits and is little-endian. The rest of the page is zero.

use super::spec::HEADER_LEN;
use crate::transfer;
use std::io;
use std::os::fd::BorrowedFd;

/// The first two words of a header. A file is recognised even if one of the two words is damaged.
const MAGIC: [u64; 2] = [u64::from_le_bytes(*b"Larder's"), u64::from_le_bytes(*b" flash 1")];
/// The format version. Increment it with each change of the layout of headers or pages.
const VERSION: u64 = 1;
const PAGE_LEN: usize = 4096;
const _: () = assert!(PAGE_LEN as u64 == HEADER_LEN);
const CHECKSUM_WORD: usize = 9;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u128,
    /// The index of this file among the device's files, from 0.
    pub(super) index: u64,
    /// The number of files.
    pub(super) files: u64,
    /// The total length of the file's pages in bytes.
    pub(super) len: u64,
    pub(super) page_len: u64,
}

impl Header {
    #[expect(clippy::cast_possible_truncation, reason = "the halves of the id")]
    fn words(&self) -> [u64; CHECKSUM_WORD] {
        let Self { id, index, files, len, page_len } = *self;
        let [magic, more] = MAGIC;
        [magic, more, VERSION, id as u64, (id >> 64) as u64, index, files, len, page_len]
    }

    pub(super) fn to_page(self) -> Box<Page> {
        let words = self.words();
        let mut page = Page::zeroed();
        for (at, word) in words.iter().chain([&checksum(&words)]).enumerate() {
            page.0[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    /// Parses a page. Returns `None` if it is not a header, or if the header is damaged or has
    /// another version.
    pub(super) fn from_page(page: &Page) -> Option<Self> {
        let id = u128::from(page.word(3)) | u128::from(page.word(4)) << 64;
        let [index, files, len, page_len] = [5, 6, 7, 8].map(|at| page.word(at));
        let header = Self { id, index, files, len, page_len };
        (header.to_page().0 == page.0).then_some(header)
    }
}

fn checksum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rapidhash::v3::rapidhash_v3(&bytes)
}

/// The first page of a file, aligned for direct I/O.
#[repr(C, align(4096))]
pub(super) struct Page([u8; PAGE_LEN]);

impl Page {
    fn zeroed() -> Box<Self> {
        Box::new(Self([0; PAGE_LEN]))
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.0[at * 8..].first_chunk().expect("a page has 512 words"))
    }

    /// Returns whether the page is neither empty nor a header of this crate. A page with one of the
    /// two magic words counts as a header, even if it is damaged.
    pub(super) fn is_foreign(&self) -> bool {
        let is_empty = self.0.iter().all(|byte| *byte == 0);
        !is_empty && self.word(0) != MAGIC[0] && self.word(1) != MAGIC[1]
    }

    pub(super) fn read(file: BorrowedFd<'_>, align: usize) -> io::Result<Box<Self>> {
        let mut page = Self::zeroed();
        let into = page.0.as_mut_ptr();
        // SAFETY: `page` has room for as many bytes as its length, and no other reference to it is
        // used until the read returns.
        unsafe { transfer::read_all(file, 0, into, page.0.len(), align) }?;
        Ok(page)
    }

    pub(super) fn write(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the pointer and the length are those of the page, whose bytes are initialised.
        unsafe { transfer::write_all(file, 0, self.0.as_ptr(), self.0.len()) }
    }
}
