//! The memory behind the region: an anonymous mapping, a mapped file, or an allocation. The
//! allocation is for systems without mappings and for Miri, which then tracks the accesses to each
//! byte.

#[cfg(any(not(unix), miri))]
pub(crate) use allocated::Memory;
#[cfg(all(unix, not(miri)))]
pub(crate) use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
    use std::fs::File;
    use std::io;

    #[derive(Debug)]
    pub(crate) struct Memory {
        map: MmapRaw,
        /// The mapped file; `None` for an anonymous mapping.
        file: Option<File>,
    }

    impl Memory {
        /// Maps `len` bytes of zeroes. The system provides pages when they are first accessed.
        pub(crate) fn new(len: usize) -> io::Result<Self> {
            let options = MmapOptions::new().len(len).no_reserve_swap().clone();
            Ok(Self { map: MmapRaw::from(options.map_anon()?), file: None })
        }

        /// Maps the first `len` bytes of a file that is at least this long.
        pub(crate) fn of_file(file: File, len: usize) -> io::Result<Self> {
            Ok(Self { map: MmapOptions::new().len(len).map_raw(&file)?, file: Some(file) })
        }

        #[inline]
        pub(crate) fn start(&self) -> *mut u8 {
            self.map.as_mut_ptr()
        }

        #[inline]
        pub(crate) fn len(&self) -> usize {
            self.map.len()
        }

        pub(crate) fn is_file(&self) -> bool {
            self.file.is_some()
        }

        /// Allocates the file space of a range, so that no later write to it fails. Does nothing
        /// for an anonymous mapping, or on systems other than Linux.
        pub(crate) fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
            let Some(file) = &self.file else { return Ok(()) };
            #[cfg(target_os = "linux")]
            {
                use nix::fcntl::{FallocateFlags, fallocate};
                let signed = |n: usize| n.try_into().map_err(|_| io::ErrorKind::InvalidInput);
                let (offset, len) = (signed(offset)?, signed(len)?);
                loop {
                    match fallocate(file, FallocateFlags::empty(), offset, len) {
                        Err(nix::errno::Errno::EINTR) => (),
                        done => return Ok(done?),
                    }
                }
            }
            #[cfg(not(target_os = "linux"))]
            Ok(drop((file, offset, len)))
        }

        /// Returns pages to the system. Returns true if the range reads as zeroes now. If the
        /// system does not take the pages back, they stay in use.
        ///
        /// # Safety
        /// No other thread reads or writes the range until this function returns. The range starts
        /// and ends at page boundaries.
        pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> bool {
            #[cfg(target_os = "linux")]
            if let Some(file) = &self.file {
                use nix::fcntl::{FallocateFlags, fallocate};
                let hole =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
                    return false;
                };
                return fallocate(file, hole, offset, len).is_ok();
            }
            #[cfg(target_os = "linux")]
            let (advice, zeroes) = (UncheckedAdvice::DontNeed, true);
            #[cfg(not(target_os = "linux"))]
            let (advice, zeroes) = (UncheckedAdvice::Free, false);
            // SAFETY: by the caller's promise, no thread relies on the content of these bytes, and
            // they are whole pages.
            let given = unsafe { self.map.unchecked_advise_range(advice, offset, len) };
            zeroes && given.is_ok()
        }

        /// Makes the system map the pages of a range now, which takes less time than mapping each
        /// page at its first access. Ignores errors. Does nothing on systems other than Linux.
        pub(crate) fn populate(&self, offset: usize, len: usize) {
            #[cfg(target_os = "linux")]
            let populated = self.map.advise_range(memmap2::Advice::PopulateWrite, offset, len);
            #[cfg(not(target_os = "linux"))]
            let populated: io::Result<()> = Ok(drop((offset, len)));
            // On an error, the system maps each page at its first access.
            drop(populated);
        }

        pub(crate) fn use_huge_pages(&self) -> io::Result<()> {
            #[cfg(target_os = "linux")]
            return self.map.advise(memmap2::Advice::HugePage);
            #[cfg(not(target_os = "linux"))]
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

#[cfg(any(not(unix), miri))]
mod allocated {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub(crate) struct Memory {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the memory belongs to no thread. `Memory` does not access it; the rules of `Region`
    // order all accesses.
    unsafe impl Send for Memory {}
    // SAFETY: as for `Send`: `Memory` does not access the memory that it shares.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Allocates `len` bytes of zeroes; `len` is not 0.
        pub(crate) fn new(len: usize) -> io::Result<Self> {
            let refused = || io::Error::from(io::ErrorKind::OutOfMemory);
            let layout = Layout::from_size_align(len, super::super::hardware::page_len())
                .map_err(|_| refused())?;
            assert!(len > 0, "a region has a header page");
            // SAFETY: the length of the layout is not 0.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
            Ok(Self { start, layout })
        }

        /// Always fails: an allocation can't be in a file.
        pub(crate) fn of_file(_: std::fs::File, _: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn start(&self) -> *mut u8 {
            self.start.as_ptr()
        }

        pub(crate) fn is_file(&self) -> bool {
            false
        }

        pub(crate) fn commit(&self, _: usize, _: usize) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn populate(&self, _: usize, _: usize) {}

        pub(crate) fn len(&self) -> usize {
            self.layout.size()
        }

        /// Does nothing: an allocator cannot free a part of an allocation.
        ///
        /// # Safety
        /// The same as for a mapping.
        pub(crate) unsafe fn discard(&self, _: usize, _: usize) -> bool {
            false
        }

        pub(crate) fn use_huge_pages(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: `start` was allocated with this layout, and no reference to the memory
            // outlives the region, which owns this `Memory`.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}
