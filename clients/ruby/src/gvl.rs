//! Functions that wait without Ruby's global VM lock (GVL), so that other threads can run.
//!
//! `Thread#kill`, `Thread#raise`, `Timeout.timeout` and signals interrupt a wait: Ruby raises an
//! exception from the waiting function with a long jump over all frames. `protect` catches the jump
//! here. The exception is stored until the Rust frames have returned, and is then raised again.

use magnus::Error;
use magnus::rb_sys::protect;
use rb_sys::{Qnil, VALUE, timeval};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{from_mut, from_ref, null_mut};
use std::thread::{self, Thread};
use std::time::Duration;

thread_local! {
    /// The exception that interrupted a call. While the exception is stored here, the thread holds
    /// the GVL and runs no Ruby code, so the garbage collector cannot free it.
    static PENDING: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Returns whether a wait of this call was interrupted. If so, the call must not wait again.
pub(crate) fn is_pending() -> bool {
    PENDING.with_borrow(Option::is_some)
}

/// The error of an interrupted wait: an exception is pending, and the call must return.
#[derive(Debug)]
pub(crate) struct Pending;

/// Removes and returns the exception that interrupted a wait. Returns `None` if no wait was
/// interrupted.
pub(crate) fn take_pending() -> Option<Error> {
    PENDING.take()
}

fn keep(error: Error) -> Pending {
    PENDING.replace(Some(error));
    Pending
}

/// The socket events to wait for, as Ruby's constants.
pub(crate) const READ: c_int = rb_sys::RB_WAITFD_IN as c_int;
pub(crate) const WRITE: c_int = rb_sys::RB_WAITFD_OUT as c_int;

/// Releases the GVL and waits up to `time` for a socket to become ready. With a fiber scheduler,
/// other fibers run during the wait.
///
/// # Errors
/// The wait was interrupted.
#[expect(deprecated, reason = "its successors need an IO object for each socket")]
pub(crate) fn wait_for(fd: BorrowedFd<'_>, events: c_int, time: Duration) -> Result<(), Pending> {
    let secs = time.as_secs().try_into().unwrap_or(i64::MAX);
    let mut time = timeval { tv_sec: secs, tv_usec: time.subsec_micros().into() };
    let wait = || {
        // SAFETY: the thread is Ruby's and has the GVL; `fd` is borrowed, so its socket is open;
        // `time` outlives the call. The long jump of an exception skips no frame that has values to
        // drop.
        unsafe { rb_sys::rb_wait_for_single_fd(fd.as_raw_fd(), events, &raw mut time) };
        Qnil.into()
    };
    protect(wait).map(drop).map_err(keep)
}

/// Runs `work` without the GVL. `work` must not call Ruby. An interrupt unparks the thread.
///
/// # Errors
/// The call was interrupted. `work` may not have run.
pub(crate) fn without(mut work: impl FnMut() + Send) -> Result<(), Pending> {
    unsafe extern "C" fn work_on(data: *mut c_void) -> *mut c_void {
        // SAFETY: `data` points to `work` of the enclosing function, which outlives the call and is
        // not used otherwise during it.
        let work = unsafe { &mut *data.cast::<&mut (dyn FnMut() + Send)>() };
        work();
        null_mut()
    }
    unsafe extern "C" fn unpark(data: *mut c_void) {
        // SAFETY: `data` points to `thread` of the enclosing function. Ruby calls this function
        // only before `rb_thread_call_without_gvl` returns, so `thread` is still valid.
        unsafe { &*data.cast::<Thread>() }.unpark();
    }
    let thread = thread::current();
    let mut work: &mut (dyn FnMut() + Send) = &mut work;
    let data = from_mut(&mut work).cast::<c_void>();
    let thread = from_ref(&thread).cast_mut().cast::<c_void>();
    let call = || {
        // SAFETY: the thread is Ruby's and has the GVL. `data` and `thread` point to variables that
        // outlive the call. A panic in `work_on` aborts the process, because it cannot unwind from
        // an `extern "C"` function. The long jump of an exception skips no frame that has values to
        // drop.
        unsafe { rb_sys::rb_thread_call_without_gvl(Some(work_on), data, Some(unpark), thread) };
        Qnil.into()
    };
    protect(call).map(drop).map_err(keep)
}

/// Returns whether the thread has a fiber scheduler. A scheduler runs other fibers while one fiber
/// waits.
pub(crate) fn has_fibers() -> bool {
    scheduler() != Qnil.into()
}

fn scheduler() -> VALUE {
    // SAFETY: the thread is Ruby's and has the GVL. `rb_fiber_scheduler_current` raises no
    // exceptions.
    unsafe { rb_sys::rb_fiber_scheduler_current() }
}

/// Suspends this fiber for `time`, and returns true. Returns false at once if the thread has no
/// fiber scheduler.
///
/// # Errors
/// The wait was interrupted.
pub(crate) fn let_fibers_run(time: Duration) -> Result<bool, Pending> {
    if !has_fibers() {
        return Ok(false);
    }
    let sleep = || {
        // SAFETY: the thread is Ruby's and has the GVL. The long jump of an exception skips no
        // frame that has values to drop.
        let time = unsafe { rb_sys::rb_float_new(time.as_secs_f64()) };
        // SAFETY: the thread is Ruby's and has the GVL; it has a scheduler, and `time` is a Ruby
        // number. The long jump of an exception skips no frame that has values to drop.
        unsafe { rb_sys::rb_fiber_scheduler_kernel_sleep(scheduler(), time) }
    };
    protect(sleep).map(|_| true).map_err(keep)
}
