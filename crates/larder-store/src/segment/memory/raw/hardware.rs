//! The processor's cache lines, and the system's pages.

/// The length of a cache line in bytes, on nearly all processors.
pub(crate) const CACHE_LINE: usize = 64;

/// Prefetches the cache line of `pointer`.
#[inline]
pub(crate) fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that the program could observe.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is a hint without an effect that the program could observe. It reads
    // the register of `pointer` and writes none.
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

/// Prefetches the cache line of `pointer` for writing. The prefetch removes the line from other
/// cores' caches.
#[cfg(not(loom))]
#[inline]
pub(crate) fn prefetch_for_write<T>(pointer: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address has no effect that the program could observe, and
    // processors without this instruction ignore it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{pointer}]",
            pointer = in(reg) pointer,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is a hint without an effect that the program could observe. It reads
    // the register of `pointer` and writes none.
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

/// Returns the length of the system's pages in bytes. Memory is returned to the system in whole
/// pages.
#[cfg(unix)]
pub(crate) fn page_len() -> usize {
    let page_len = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    // If the system reports no length, use 64 KiB, the length of the longest pages of any
    // processor.
    page_len.ok().flatten().and_then(|len| usize::try_from(len).ok()).unwrap_or(64 << 10)
}

/// Returns the length of WebAssembly's pages in bytes.
#[cfg(not(unix))]
pub(crate) fn page_len() -> usize {
    64 << 10
}
