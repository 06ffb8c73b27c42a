//! The hook before each step of the atomics in `stepped`. Under shuttle, the hook lets the
//! scheduler choose the next thread. In a unit test, the hook can inspect the state that the region
//! would have if the process died there.

#[cfg(not(shuttle))]
pub(crate) use mortal::{at_each_store, before_load, before_store};
#[cfg(shuttle)]
pub(crate) use scheduled::{before_load, before_store};

#[cfg(shuttle)]
mod scheduled {
    pub(crate) fn before_load() {
        shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn before_store() {
        before_load();
    }
}

#[cfg(not(shuttle))]
mod mortal {
    use std::cell::RefCell;

    thread_local! {
        static DEATH: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    pub(crate) fn before_load() {}

    pub(crate) fn before_store() {
        // Skips the hook's own stores, and all stores after the thread's local data was dropped.
        let _ = DEATH.try_with(|death| {
            if let Ok(mut death) = death.try_borrow_mut()
                && let Some(look) = &mut *death
            {
                look();
            }
        });
    }

    /// Calls `look` before each store of this thread from now on. With `None`, stops these calls.
    pub(crate) fn at_each_store(look: Option<Box<dyn FnMut()>>) {
        DEATH.with(|death| *death.borrow_mut() = look);
    }
}
