//! Atomics and locks for model checks under shuttle: before each step the scheduler may run another
//! thread.

pub(in super::super) use shuttle::sync::{Mutex, MutexGuard};
pub(in super::super) use std::sync::atomic::Ordering;

/// Lets the scheduler choose the next thread.
fn step() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

pub(in super::super) fn fence(_: Ordering) {
    step();
}

pub(in super::super) fn wait_a_little(_: u32) {
    shuttle::thread::yield_now();
}

pub(in super::super) fn wait_for_others(_: u32) {
    shuttle::thread::yield_now();
}

macro_rules! atomics {
    ($($name:ident $number:ty),*) => {$(
        /// An atomic of `std`, so that it can be laid over mapped memory.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(in super::super) struct $name(std::sync::atomic::$name);

        #[allow(dead_code, reason = "all have the methods that any of them needs")]
        impl $name {
            pub(in super::super) fn new(number: $number) -> Self {
                Self(std::sync::atomic::$name::new(number))
            }

            pub(in super::super) fn load(&self, _: Ordering) -> $number {
                step();
                self.0.load(Ordering::SeqCst)
            }

            pub(in super::super) fn store(&self, number: $number, _: Ordering) {
                step();
                self.0.store(number, Ordering::SeqCst);
            }

            pub(in super::super) fn swap(&self, number: $number, _: Ordering) -> $number {
                step();
                self.0.swap(number, Ordering::SeqCst)
            }

            pub(in super::super) fn compare_exchange(
                &self,
                old: $number,
                new: $number,
                _: Ordering,
                _: Ordering,
            ) -> Result<$number, $number> {
                step();
                self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            }

            pub(in super::super) fn compare_exchange_weak(
                &self,
                old: $number,
                new: $number,
                ok: Ordering,
                not: Ordering,
            ) -> Result<$number, $number> {
                self.compare_exchange(old, new, ok, not)
            }

            pub(in super::super) fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                f: impl FnMut($number) -> Option<$number>,
            ) -> Result<$number, $number> {
                step();
                self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, f)
            }

            atomics!(@fetch $number: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
        }
    )*};
    (@fetch $number:ty: $($verb:ident)*) => {$(
        pub(in super::super) fn $verb(&self, number: $number, _: Ordering) -> $number {
            step();
            self.0.$verb(number, Ordering::SeqCst)
        }
    )*};
}

atomics!(AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
