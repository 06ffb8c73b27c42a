//! Atomics that call a function before each step. In model checks under shuttle, the function lets
//! the scheduler run another thread. In tests of restarts, the function simulates the death of the
//! process.

use super::steps::{before_load, before_store};
use std::sync::atomic::Ordering;

macro_rules! atomics {
    ($($name:ident $number:ty),*) => {$(
        /// An atomic with the same layout as its counterpart in `std`, so that mapped memory can
        /// contain it.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(std::sync::atomic::$name);

        #[allow(dead_code, reason = "every type has all methods")]
        impl $name {
            pub(crate) fn new(number: $number) -> Self {
                Self(std::sync::atomic::$name::new(number))
            }

            pub(crate) fn load(&self, order: Ordering) -> $number {
                before_load();
                self.0.load(order)
            }

            pub(crate) fn store(&self, number: $number, order: Ordering) {
                before_store();
                self.0.store(number, order);
            }

            pub(crate) fn swap(&self, number: $number, order: Ordering) -> $number {
                before_store();
                self.0.swap(number, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $number,
                new: $number,
                ok: Ordering,
                not: Ordering,
            ) -> Result<$number, $number> {
                before_store();
                self.0.compare_exchange(old, new, ok, not)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                old: $number,
                new: $number,
                ok: Ordering,
                not: Ordering,
            ) -> Result<$number, $number> {
                self.compare_exchange(old, new, ok, not)
            }

            pub(crate) fn fetch_update(
                &self,
                ok: Ordering,
                not: Ordering,
                f: impl FnMut($number) -> Option<$number>,
            ) -> Result<$number, $number> {
                before_store();
                self.0.fetch_update(ok, not, f)
            }

            atomics!(@fetch $number: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
        }
    )*};
    (@fetch $number:ty: $($verb:ident)*) => {$(
        pub(crate) fn $verb(&self, number: $number, order: Ordering) -> $number {
            before_store();
            self.0.$verb(number, order)
        }
    )*};
}

atomics!(AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
