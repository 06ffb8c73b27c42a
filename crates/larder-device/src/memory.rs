//! A simulated device in memory. Tests can switch its faults on and off at any time.

use crate::Device;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The length of a sector in bytes. Torn writes end at a sector boundary, and offsets, lengths and
/// addresses must be multiples of the sector length.
const SECTOR_LEN: usize = 512;

/// The faults of a [`Memory`]. With a rate of n, a fault affects one in n reads or writes at
/// random. With a rate of 0, it affects no reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The maximum delay of each read, write and sync.
    pub delay_max: Duration,
    /// The rate of reads that fail with EIO.
    pub read_errors: u32,
    /// The rate of reads that return only part of the bytes, and fail with `UnexpectedEof`.
    pub short_reads: u32,
    /// The rate of reads that return one flipped bit. The stored bytes do not change.
    pub flipped_bits: u32,
    /// The rate of writes that fail with EIO and write nothing.
    pub write_errors: u32,
    /// The rate of writes that write only the first sectors, or none, and fail with EIO.
    pub torn_writes: u32,
    /// Whether torn writes report success.
    pub torn_unnoticed: bool,
    /// The offset and the length, in bytes, of a defective range. Reads and writes that overlap the
    /// range fail with EIO.
    pub defect: Option<(u64, u64)>,
    /// Whether all writes fail with ENOSPC.
    pub is_full: bool,
    /// Whether reads, writes and syncs hang until a test switches this fault off.
    pub hangs: bool,
}

/// A device in memory. Clones share the device, so a test can control the faults through a clone.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    id: Mutex<Option<u128>>,
    bytes: RwLock<Vec<u8>>,
    faults: Mutex<Faults>,
    changed: Condvar,
    random: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Memory {
    /// Returns a device of `len` zeros without faults. `seed` determines which reads and writes the
    /// faults will affect.
    ///
    /// # Panics
    /// `len` is not a multiple of 512.
    #[must_use]
    pub fn new(len: usize, seed: u64) -> Self {
        assert!(len.is_multiple_of(SECTOR_LEN), "{len} bytes are not whole sectors");
        let shared = Shared {
            id: Mutex::default(),
            bytes: RwLock::new(vec![0; len]),
            faults: Mutex::default(),
            changed: Condvar::new(),
            random: AtomicU64::new(seed),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns an independent device with the current content of this device, and without faults.
    #[must_use]
    pub fn copy(&self) -> Self {
        let bytes = self.shared.bytes.read().unwrap_or_else(PoisonError::into_inner).clone();
        let shared = Shared {
            id: Mutex::new(self.id()),
            bytes: RwLock::new(bytes),
            faults: Mutex::default(),
            changed: Condvar::new(),
            random: AtomicU64::new(self.shared.draw()),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the current faults.
    pub fn faults(&self) -> Faults {
        *self.shared.faults()
    }

    /// Replaces the faults. The new faults also affect reads, writes and syncs that are currently
    /// delayed or hang.
    pub fn set_faults(&self, faults: Faults) {
        *self.shared.faults() = faults;
        self.shared.changed.notify_all();
    }

    /// Returns the number of reads that were started.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }

    /// Returns the number of writes that were started.
    pub fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len", &self.len())
            .field("faults", &self.faults())
            .field("reads", &self.reads())
            .field("writes", &self.writes())
            .finish()
    }
}

impl Shared {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates the duration of a read, write or sync. Returns the faults that apply to it.
    #[expect(clippy::cast_possible_truncation, reason = "delays are short")]
    fn wait(&self) -> Faults {
        let delay_max = self.faults().delay_max.as_nanos() as u64;
        if delay_max > 0 {
            std::thread::sleep(Duration::from_nanos(self.draw() % (delay_max + 1)));
        }
        let released = self.changed.wait_while(self.faults(), |faults| faults.hangs);
        *released.unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides at random whether a fault happens, with a probability of one in `rate`.
    fn happens(&self, rate: u32) -> bool {
        rate > 0 && self.draw().is_multiple_of(u64::from(rate))
    }

    /// Returns a random number below `end`.
    fn below(&self, end: usize) -> usize {
        usize::try_from(self.draw() % end as u64).expect("below a length")
    }

    /// Returns a random number (a Weyl sequence through SplitMix64's finaliser, Steele et al.
    /// 2014).
    fn draw(&self) -> u64 {
        let weyl = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (weyl ^ (weyl >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Faults {
    /// Returns whether the `len` bytes at `offset` overlap the defective range.
    fn has_defect(&self, offset: usize, len: usize) -> bool {
        let (from, to) = (offset as u64, (offset + len) as u64);
        self.defect.is_some_and(|(start, length)| from < start + length && start < to)
    }
}

/// Refuses empty ranges and unaligned offsets, addresses and lengths, as direct I/O does. Returns
/// the offset as `usize`.
fn check(offset: u64, address: usize, len: usize) -> io::Result<usize> {
    let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    if [offset, address, len].iter().all(|number| number.is_multiple_of(SECTOR_LEN)) && len > 0 {
        Ok(offset)
    } else {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }
}

impl Device for Memory {
    fn len(&self) -> u64 {
        self.shared.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn align(&self) -> usize {
        SECTOR_LEN
    }

    fn descriptor(&self, _offset: u64) -> Option<(RawFd, u64)> {
        None
    }

    unsafe fn read(&self, offset: u64, into: *mut u8, len: usize) -> io::Result<()> {
        let shared = &*self.shared;
        shared.reads.fetch_add(1, Ordering::Relaxed);
        let offset = check(offset, into.addr(), len)?;
        let faults = shared.wait();
        if faults.has_defect(offset, len) || shared.happens(faults.read_errors) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let is_short = shared.happens(faults.short_reads);
        let read_len = if is_short { shared.below(len) } else { len };
        let bytes = shared.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let from = bytes.get(offset..).and_then(|rest| rest.get(..len));
        let from = from.ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: `from` has `len` bytes. By the caller's promise, `into` has space for `len`
        // bytes, and no other thread uses them. `read_len` is at most `len`.
        unsafe { into.copy_from_nonoverlapping(from.as_ptr(), read_len) };
        if shared.happens(faults.flipped_bits) && read_len > 0 {
            let (at, bit) = (shared.below(read_len), shared.below(8));
            // SAFETY: `at` is below `read_len`, and that many bytes were written.
            let wrong = unsafe { into.add(at) };
            // SAFETY: the byte was written above, and no other thread uses it.
            unsafe { *wrong ^= 1 << bit };
        }
        if is_short { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> io::Result<()> {
        let shared = &*self.shared;
        shared.writes.fetch_add(1, Ordering::Relaxed);
        let offset = check(offset, from.addr(), len)?;
        let faults = shared.wait();
        if faults.is_full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if faults.has_defect(offset, len) || shared.happens(faults.write_errors) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let is_torn = shared.happens(faults.torn_writes);
        let sectors = len / SECTOR_LEN;
        let written = if is_torn { shared.below(sectors) * SECTOR_LEN } else { len };
        let mut bytes = shared.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let into = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..len));
        let into = into.ok_or(io::ErrorKind::InvalidInput)?;
        for (at, word) in into[..written].chunks_exact_mut(size_of::<u64>()).enumerate() {
            // SAFETY: `from` has `len` bytes, and `written` is at most `len`.
            let value = unsafe { from.cast::<AtomicU64>().add(at) };
            // SAFETY: `check` has verified the alignment. By the caller's promise, the bytes are
            // initialised, and other threads change them only through atomics.
            let value = unsafe { &*value }.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        match is_torn && !faults.torn_unnoticed {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }

    fn id(&self) -> Option<u128> {
        *self.shared.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_id(&self, id: u128) -> io::Result<()> {
        *self.shared.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.shared.wait();
        Ok(())
    }
}
