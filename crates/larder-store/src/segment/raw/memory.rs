//! The memory behind the region: an anonymous mapping, or an allocation on systems without one and under
//! Miri, which then knows who may touch which byte of it.

#[cfg(any(not(unix), miri))]
pub(super) use allocated::Memory;
#[cfg(all(unix, not(miri)))]
pub(super) use mapped::Memory;

#[cfg(all(unix, not(miri)))]
mod mapped {
    use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
    use std::io;

    #[derive(Debug)]
    pub(in super::super) struct Memory(MmapRaw);

    impl Memory {
        /// Maps `len` bytes of zeroes. Pages are taken from the system as they are touched.
        pub(in super::super) fn new(len: usize) -> io::Result<Self> {
            let options = MmapOptions::new().len(len).no_reserve_swap().clone();
            Ok(Self(MmapRaw::from(options.map_anon()?)))
        }

        #[inline]
        pub(in super::super) fn start(&self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        #[inline]
        pub(in super::super) fn len(&self) -> usize {
            self.0.len()
        }

        /// Gives pages back to the system, which may refuse them: they are used as before then.
        ///
        /// # Safety
        /// Nobody else reads or writes the place meanwhile, and it begins and ends at pages.
        pub(in super::super) unsafe fn discard(&self, offset: usize, len: usize) {
            #[cfg(target_os = "linux")]
            let advice = UncheckedAdvice::DontNeed;
            #[cfg(not(target_os = "linux"))]
            let advice = UncheckedAdvice::Free;
            // SAFETY: by the caller's promise nobody depends on what these bytes are.
            let given = unsafe { self.0.unchecked_advise_range(advice, offset, len) };
            drop(given);
        }

        pub(in super::super) fn use_huge_pages(&self) -> io::Result<()> {
            #[cfg(target_os = "linux")]
            return self.0.advise(memmap2::Advice::HugePage);
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
    pub(in super::super) struct Memory {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: it is plain memory; `Region` says who may read and write which part of it.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Allocates `len` bytes of zeroes; `len` is not 0.
        pub(in super::super) fn new(len: usize) -> io::Result<Self> {
            let refused = || io::Error::from(io::ErrorKind::OutOfMemory);
            let layout =
                Layout::from_size_align(len, super::super::page_len()).map_err(|_| refused())?;
            assert!(len > 0, "a region has a header page");
            // SAFETY: the layout has a length.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
            Ok(Self { start, layout })
        }

        pub(in super::super) fn start(&self) -> *mut u8 {
            self.start.as_ptr()
        }

        pub(in super::super) fn len(&self) -> usize {
            self.layout.size()
        }

        /// Does nothing: an allocator takes no part of an allocation back.
        ///
        /// # Safety
        /// As for a mapping.
        pub(in super::super) unsafe fn discard(&self, _: usize, _: usize) {}

        pub(in super::super) fn use_huge_pages(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: it was allocated with this layout and is not used any more.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}
