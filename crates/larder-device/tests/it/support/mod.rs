//! Buffers for direct I/O, and reads whose completion tests can wait for.
#![allow(dead_code, reason = "no test uses all of it")]

use larder_device::{Device, FileSpec, Files, FilesError, Opening, ReadParameters, Target};
use std::cell::UnsafeCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub(crate) const PAGE_LEN: u64 = 64 << 10;
/// A time limit that is much longer than any wait of a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Block([u8; 4096]);

/// Bytes at an address that is aligned for direct I/O.
pub(crate) struct Buffer {
    blocks: UnsafeCell<Box<[Block]>>,
    len: usize,
}

// SAFETY: only one read or write at a time uses the bytes. The test uses the bytes only after this
// read or write has completed.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let blocks = vec![Block([0; 4096]); len.div_ceil(4096)].into_boxed_slice();
        Self { blocks: UnsafeCell::new(blocks), len }
    }

    /// Returns a buffer in which each 64-bit word contains its own offset on the device.
    pub(crate) fn numbered(offset: u64, len: usize) -> Self {
        let mut buffer = Self::new(len);
        for (at, word) in buffer.bytes_mut().chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(offset + at as u64 * 8).to_le_bytes());
        }
        buffer
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        // SAFETY: the box itself never changes. Only the bytes in it do.
        unsafe { (*self.blocks.get()).as_ptr().cast_mut().cast() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: no read is under way when tests call this, and all bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is borrowed mutably, and all bytes are initialised.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }

    pub(crate) fn write(&self, device: &dyn Device, offset: u64) -> io::Result<()> {
        // SAFETY: the buffer has `len` initialised bytes.
        unsafe { device.write(offset, self.pointer(), self.len) }
    }

    pub(crate) fn read(&self, device: &dyn Device, offset: u64) -> io::Result<()> {
        // SAFETY: the buffer has `len` bytes, which no other thread uses.
        unsafe { device.read(offset, self.pointer(), self.len) }
    }
}

/// A read whose completion a test can wait for.
pub(crate) struct Read {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    result: Mutex<Option<io::Result<()>>>,
    ended: Condvar,
}

impl Read {
    pub(crate) fn new(offset: u64, len: usize) -> Arc<Self> {
        let (result, ended) = (Mutex::default(), Condvar::new());
        Arc::new(Self { buffer: Buffer::new(len), offset, result, ended })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.result.lock().unwrap().is_some()
    }

    /// Waits for the end of the read, and returns its result.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let result = self.result.lock().unwrap();
        let wait = self.ended.wait_timeout_while(result, LONG, |result| result.is_none());
        let (mut result, _) = wait.unwrap();
        result.take().expect("the read ends")
    }

    /// Returns whether the bytes equal those of [`Buffer::numbered`].
    pub(crate) fn is_right(&self) -> bool {
        self.buffer.bytes() == Buffer::numbered(self.offset, self.buffer.len).bytes()
    }
}

// SAFETY: tests read the buffer only after the end of the read.
unsafe impl Target for Read {
    fn parameters(&self) -> ReadParameters {
        ReadParameters { offset: self.offset, into: self.buffer.pointer(), len: self.buffer.len }
    }

    fn finish(self: Arc<Self>, result: io::Result<()>) {
        let before = self.result.lock().unwrap().replace(result);
        assert!(before.is_none(), "a read ends once");
        self.ended.notify_all();
    }
}

/// Creates a temporary folder in the build directory. The system's temporary directory is often in
/// memory, where direct I/O may be refused.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn specs(folder: &Path, sizes: &[u64]) -> Vec<FileSpec> {
    let path = |index| -> PathBuf { folder.join(format!("flash{index}")) };
    sizes.iter().enumerate().map(|(i, &bytes)| FileSpec { path: path(i), bytes }).collect()
}

/// Opens files. Waits up to 100 ms until no other process uses them.
pub(crate) fn open(specs: &[FileSpec]) -> Result<Files, FilesError> {
    let opening = Opening { patience: Duration::from_millis(100), ..Opening::default() };
    Files::open(specs, PAGE_LEN, &opening)
}

/// Returns files whose pages all contain the bytes of [`Buffer::numbered`].
pub(crate) fn filled(specs: &[FileSpec]) -> Arc<Files> {
    let files = open(specs).unwrap();
    for offset in (0..files.len()).step_by(usize::try_from(PAGE_LEN).unwrap()) {
        Buffer::numbered(offset, usize::try_from(PAGE_LEN).unwrap()).write(&files, offset).unwrap();
    }
    Arc::new(files)
}

/// A generator of pseudorandom numbers. The sequence is the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
