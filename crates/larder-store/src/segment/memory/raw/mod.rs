//! The region: memory that is addressed by offsets. All access to it goes through the functions of
//! [`Region`]. Other files contain `unsafe` too: `item::record`, `large_value::{builder, chain}`,
//! `write::writer`, `update::change`, `reclaim::decommission`, `restart::{attach, image}`, `flash_read::device_read`
//! and `flash_write::{block_writer, demotion, page_reclaim}` call the unsafe ones to read, write and discard
//! bytes, each with the reason why it may.
//!
//! The safety of all this depends on three rules.
//! 1. *Words*: headers, CAS and expiries of items, the index and the segment table are read and written
//!    through atomics only.
//! 2. *Bytes*: keys and values are written by the one handle that owns the open segment, the upload or
//!    the free block, before an index word with their location is stored with `Release`; after that they
//!    do not change until the segment is recycled or their place becomes a free block (`free_lists`).
//! 3. *Recycling*: a segment is recycled, and a free block written to, only after no index word refers to
//!    it and every epoch pin that could have seen one has ended (or no index word ever referred to it). A
//!    reader of bytes holds such a pin, or the lock of the key's stripe, without which its index word
//!    does not change, or a lease. Or it owns the sealed segment, which is closed then: no free block in
//!    it is taken. In a block that was taken before, the header of the dead record stays until the new
//!    record is complete, and nobody reads the bytes of a record that its header says is dead.

#[cfg(not(loom))]
mod mapped;
#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod system;

#[cfg(not(loom))]
pub(crate) use mapped::Region;
#[cfg(loom)]
pub(crate) use modelled::Region;

/// Prefetches the cache line of `pointer`.
#[inline]
pub(crate) fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that the program could observe.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above: the instruction only hints, and reads and writes no register but `pointer`.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{pointer}]",
            pointer = in(reg) pointer,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = pointer;
}

/// The length of a cache line in bytes, on nearly all processors.
pub(crate) const CACHE_LINE: usize = 64;

/// Prefetches a cache line that will be written, so that no other core has it meanwhile.
#[inline]
pub(crate) fn prefetch_for_write<T>(pointer: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect that the program could observe, and processors
    // without this instruction execute it as none.
    unsafe {
        std::arch::asm!(
            "prefetchw [{pointer}]",
            pointer = in(reg) pointer,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above: the instruction only hints, and reads and writes no register but `pointer`.
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{pointer}]",
            pointer = in(reg) pointer,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(any(all(target_arch = "x86_64", not(miri)), target_arch = "aarch64")))]
    let _ = pointer;
}

/// The length of the system's pages in bytes: memory is given back in units of this.
#[cfg(unix)]
pub(crate) fn page_len() -> usize {
    let page_len = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    // The longest pages of any processor, for systems that do not say.
    page_len.ok().flatten().and_then(|len| usize::try_from(len).ok()).unwrap_or(64 << 10)
}

/// The length of WebAssembly's pages in bytes.
#[cfg(not(unix))]
pub(crate) fn page_len() -> usize {
    64 << 10
}
