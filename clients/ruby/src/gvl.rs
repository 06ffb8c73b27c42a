//! WaitCondition without Ruby's global VM lock (GVL), so that other threads run.
//!
//! A thread that waits can be interrupted: by `Thread#kill`, `Thread#raise`, `Timeout.timeout` or a signal. Ruby raises
//! the exception from the function that waits, by a jump over all frames. Here the jump ends at once (`protect`); the
//! exception is kept until the frames of Rust have returned, and then it is raised again.

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
    /// The exception of the call that was interrupted. From its being put here until it is taken the GVL is held and no
    /// Ruby code runs, so the garbage collector needs not see it.
    static PENDING: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Whether a wait of this call was ended: it has to be given up, without any further wait.
pub(crate) fn is_pending() -> bool {
    PENDING.with_borrow(Option::is_some)
}

/// The call has to be given up: an exception is pending.
#[derive(Debug)]
pub(crate) struct Pending;

/// The exception that ended a wait.
pub(crate) fn take_pending() -> Option<Error> {
    PENDING.take()
}

fn keep(error: Error) -> Pending {
    PENDING.replace(Some(error));
    Pending
}

/// What a socket is waited for, as Ruby has it.
pub(crate) const READ: c_int = rb_sys::RB_WAITFD_IN as c_int;
pub(crate) const WRITE: c_int = rb_sys::RB_WAITFD_OUT as c_int;

/// Waits until a socket is ready, at most for `time`. If the thread has a fiber scheduler, other fibers run meanwhile.
#[expect(deprecated, reason = "its successors want an IO object for each socket")]
pub(crate) fn wait_for(fd: BorrowedFd<'_>, events: c_int, time: Duration) -> Result<(), Pending> {
    let secs = time.as_secs().try_into().unwrap_or(i64::MAX);
    let mut time = timeval { tv_sec: secs, tv_usec: time.subsec_micros().into() };
    let wait = || {
        // SAFETY: the thread is Ruby's and has the GVL; the socket is open as long as it is borrowed. The jump of an
        // exception passes no frame with anything to drop.
        unsafe { rb_sys::rb_wait_for_single_fd(fd.as_raw_fd(), events, &raw mut time) };
        Qnil.into()
    };
    protect(wait).map(drop).map_err(keep)
}

/// Does work that needs nothing of Ruby without the GVL. An interrupt unparks the thread.
pub(crate) fn without(mut work: impl FnMut() + Send) -> Result<(), Pending> {
    unsafe extern "C" fn work_on(data: *mut c_void) -> *mut c_void {
        // SAFETY: `data` is the closure below, which outlives the call, and nobody else has it.
        let work = unsafe { &mut *data.cast::<&mut (dyn FnMut() + Send)>() };
        work();
        null_mut()
    }
    unsafe extern "C" fn unpark(data: *mut c_void) {
        // SAFETY: `data` is the thread below. Ruby calls this only while it waits.
        unsafe { &*data.cast::<Thread>() }.unpark();
    }
    let thread = thread::current();
    let mut work: &mut (dyn FnMut() + Send) = &mut work;
    let data = from_mut(&mut work).cast::<c_void>();
    let thread = from_ref(&thread).cast_mut().cast::<c_void>();
    let call = || {
        // SAFETY: the thread is Ruby's and has the GVL; both pointers are valid until this returns. A panic of the
        // closure ends the process. The jump of an exception passes no frame with anything to drop.
        unsafe { rb_sys::rb_thread_call_without_gvl(Some(work_on), data, Some(unpark), thread) };
        Qnil.into()
    };
    protect(call).map(drop).map_err(keep)
}

/// Whether the thread has a fiber scheduler, so that other fibers run while one waits.
pub(crate) fn has_fibers() -> bool {
    scheduler() != Qnil.into()
}

fn scheduler() -> VALUE {
    // SAFETY: the thread is Ruby's and has the GVL. This raises nothing.
    unsafe { rb_sys::rb_fiber_scheduler_current() }
}

/// Lets the other fibers of the thread run for `time`, if it has a fiber scheduler; otherwise returns false.
pub(crate) fn let_fibers_run(time: Duration) -> Result<bool, Pending> {
    if !has_fibers() {
        return Ok(false);
    }
    let sleep = || {
        // SAFETY: as above; this makes a number.
        let time = unsafe { rb_sys::rb_float_new(time.as_secs_f64()) };
        // SAFETY: as above; the jump of an exception passes no frame with anything to drop.
        unsafe { rb_sys::rb_fiber_scheduler_kernel_sleep(scheduler(), time) }
    };
    protect(sleep).map(|_| true).map_err(keep)
}
