//! Reads through a ring (io_uring).

use crate::{Device, Target};
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of ring entries that the system allows.
const DEPTH_MAX: usize = 32 << 10;
/// The maximum length of one read in bytes. It is a power of two below the system's maximum.
const READ_MAX: usize = 1 << 30;
/// The maximum number of retries of a read that failed temporarily.
const RETRIES_MAX: u32 = 64;
/// The maximum number of immediate retries of a system call that failed temporarily.
const ENTER_RETRIES_MAX: u32 = 64;
/// The maximum number of registered files. Reads from other files take slightly longer.
const FILES_MAX: usize = 64;
/// Dropping a ring waits for its reads with a system call. If the call fails, the ring waits this
/// long before it calls again.
const PAUSE: Duration = Duration::from_millis(1);

/// The reads of one thread.
pub(crate) struct Ring {
    /// The system's ring. It uses the descriptors of `device`, so it must be dropped first. For
    /// this reason it is declared before `device`.
    ring: IoUring,
    device: Arc<dyn Device>,
    /// The slots of the reads. A completion contains the index of its read's slot.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Registered descriptors, in the order of their registration.
    files: Vec<RawFd>,
    has_files: bool,
    /// Whether [`Ring::reap`] has to submit reads: reads that [`Ring::submit`] could not pass to
    /// the system, or retried reads.
    is_behind: bool,
}

struct Slot {
    /// The target of the slot's read; `None` if the slot is free.
    target: Option<Arc<dyn Target>>,
    /// The number of bytes that were already read.
    done: usize,
    retries: u32,
}

impl Ring {
    /// Returns a ring for `depth` concurrent reads. `depth` is clamped to the range from 1 to
    /// [`DEPTH_MAX`].
    ///
    /// # Errors
    /// The system does not support rings, or does not allow this process to use them.
    pub(crate) fn new(device: Arc<dyn Device>, depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = build(u32::try_from(depth).unwrap_or(1).next_power_of_two())?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Some sandboxes allow a process to create rings, but not to use them.
        ring.submit()?;
        let files_max = u32::try_from(FILES_MAX).expect("FILES_MAX fits 32 bits");
        let has_files = ring.submitter().register_files_sparse(files_max).is_ok();
        let slot = || Slot { target: None, done: 0, retries: 0 };
        Ok(Self {
            ring,
            device,
            slots: std::iter::repeat_with(slot).take(depth).collect(),
            free: (0..u32::try_from(depth).unwrap_or(1)).rev().collect(),
            files: Vec::new(),
            has_files,
            is_behind: false,
        })
    }

    pub(crate) fn start<T: Target>(&mut self, target: Arc<T>) -> Result<(), Arc<T>> {
        let Some(slot) = self.free.pop() else { return Err(target) };
        self.slots[slot as usize] = Slot { target: Some(target), done: 0, retries: 0 };
        self.push(slot);
        Ok(())
    }

    pub(crate) fn submit(&mut self) {
        let mut retries = 0;
        while !self.ring.submission().is_empty() && retries < ENTER_RETRIES_MAX {
            match self.ring.submit() {
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(_) => {
                    retries += 1;
                    std::thread::yield_now();
                }
            }
        }
        self.is_behind = !self.ring.submission().is_empty();
    }

    pub(crate) fn reap(&mut self) -> usize {
        let has_deferred_work = self.ring.submission().taskrun();
        if has_deferred_work {
            // Reads have completed, but the system posts their completions only when this thread
            // makes a system call.
            let _ = self.enter(0);
        }
        let mut count = 0;
        // Take one completion at a time. Otherwise the panic of a target could lose other
        // completions.
        while let Some((number, result)) = self.next_completion() {
            count += usize::from(self.end(number, result));
        }
        if self.is_behind {
            self.submit();
        }
        count
    }

    /// Returns the slot and the system's result of the next completed read, or `None` if no other
    /// read has completed.
    fn next_completion(&mut self) -> Option<(u32, i32)> {
        let entry = self.ring.completion().next()?;
        let number = u32::try_from(entry.user_data()).expect("the number of a slot");
        Some((number, entry.result()))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Processes a completion. Finishes a read that is complete or has failed, and returns true.
    /// Starts the rest of an incomplete read, or retries a read that failed temporarily, and
    /// returns false.
    fn end(&mut self, number: u32, result: i32) -> bool {
        let align = self.device.align();
        let slot = &mut self.slots[number as usize];
        let target = slot.target.as_ref().expect("a finished read has a target");
        let parameters = target.parameters();
        let result = match usize::try_from(result) {
            Ok(0) if parameters.len > slot.done => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                slot.done += read;
                if slot.done >= parameters.len {
                    Ok(())
                } else if slot.done.is_multiple_of(align) {
                    return self.begin_again(number);
                } else {
                    // A direct read stops at an unaligned offset only at the end of the file.
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
            Err(_) if is_temporary(result) && slot.retries < RETRIES_MAX => {
                slot.retries += 1;
                return self.begin_again(number);
            }
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        let target = slot.target.take().expect("the slot has a target, see above");
        self.free.push(number);
        target.finish(result);
        true
    }

    fn begin_again(&mut self, number: u32) -> bool {
        self.push(number);
        self.is_behind = true;
        false
    }

    /// Pushes a read, or its rest, into the ring.
    fn push(&mut self, number: u32) {
        let slot = &self.slots[number as usize];
        let parameters = slot.target.as_ref().expect("a started read has a target").parameters();
        let offset = parameters.offset + slot.done as u64;
        let into = parameters.into.wrapping_add(slot.done);
        let len = u32::try_from((parameters.len - slot.done).min(READ_MAX))
            .expect("READ_MAX is a gibibyte, which fits 32 bits");
        let (fd, offset) = self.device.descriptor(offset).unwrap_or((-1, 0));
        let read = match self.registered(fd) {
            Some(index) => opcode::Read::new(types::Fixed(index), into, len),
            None => opcode::Read::new(types::Fd(fd), into, len),
        };
        let entry = read.offset(offset).build().user_data(u64::from(number));
        // SAFETY: by the promise of `Target`, only this read uses the bytes until `finish` is
        // called. `end` calls `finish` when the read has completed. The slot keeps the target and
        // the device keeps the descriptor open until then, because dropping the ring waits for all
        // reads.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each slot");
    }

    /// Returns the index of a registered file, after registering the file if necessary. Returns
    /// `None` if the file cannot be registered.
    fn registered(&mut self, fd: RawFd) -> Option<u32> {
        let known = self.files.iter().position(|file| *file == fd);
        let index = known.unwrap_or(self.files.len());
        let number = u32::try_from(index).ok()?;
        if known.is_none() {
            if !self.has_files || index >= FILES_MAX || fd < 0 {
                return None;
            }
            self.has_files = self.ring.submitter().register_files_update(number, &[fd]).is_ok();
            self.has_files.then(|| self.files.push(fd))?;
        }
        Some(number)
    }

    /// Calls the system even if there is nothing to submit, and waits until `wanted` reads have
    /// completed.
    fn enter(&mut self, wanted: u32) -> io::Result<usize> {
        const GETEVENTS: u32 = 1;
        let to_submit = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
        // SAFETY: the entries of the ring are reads whose targets the slots keep alive, and the
        // call has no argument.
        unsafe { self.ring.submitter().enter::<()>(to_submit, wanted, GETEVENTS, None) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.under_way() > 0 {
            if self.reap() == 0 && self.enter(1).is_err_and(|error| !is_interrupted(&error)) {
                std::thread::sleep(PAUSE);
            }
        }
        // Unregister the files, because the system frees the ring only some time later. Until then,
        // registered files would stay locked.
        let _ = self.ring.submitter().unregister_files();
    }
}

fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Returns whether a failed read should be retried.
fn is_temporary(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

/// Returns a ring that does not interrupt its thread when a read completes, if the kernel supports
/// this (5.19). Such a ring saves about a fifth of a read's processor time when many reads are
/// pending.
///
/// `SINGLE_ISSUER` is not set: it would bind the ring to one thread, and a reader may move to
/// another thread. Measurements also showed no gain from binding it. `DEFER_TASKRUN` is not set:
/// with it, the ring's descriptor did not become readable for edge-triggered polling (Linux 6.18).
fn build(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    builder.build(entries).or_else(|_| IoUring::new(entries))
}
