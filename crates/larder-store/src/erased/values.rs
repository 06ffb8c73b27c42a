//! The engine's values that callers own: leases, uploads, walks, reads and positions.

use std::any::Any;
use std::fmt;

/// A type-erased lease on a large value.
pub struct Lease(pub(super) Box<dyn AnyLease>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        self.0.clone_lease()
    }
}

impl crate::Lease for Lease {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, offset: usize) -> &[u8] {
        self.0.piece(offset)
    }

    fn memory(&self) -> usize {
        self.0.memory()
    }

    fn may_be_kept(&self) -> bool {
        self.0.may_be_kept()
    }
}

/// [`crate::Lease`] without the supertrait [`Clone`], so that it can be a trait object.
pub(super) trait AnyLease: Send {
    fn clone_lease(&self) -> Lease;
    fn len(&self) -> usize;
    fn piece(&self, offset: usize) -> &[u8];
    fn memory(&self) -> usize;
    fn may_be_kept(&self) -> bool;
}

impl<L: crate::Lease + Send + 'static> AnyLease for L {
    fn clone_lease(&self) -> Lease {
        Lease(Box::new(self.clone()))
    }

    fn len(&self) -> usize {
        crate::Lease::len(self)
    }

    fn piece(&self, offset: usize) -> &[u8] {
        crate::Lease::piece(self, offset)
    }

    fn memory(&self) -> usize {
        crate::Lease::memory(self)
    }

    fn may_be_kept(&self) -> bool {
        crate::Lease::may_be_kept(self)
    }
}

// The box of an upload contains an `Option<E::Upload>`, which the engine empties when it takes the
// value.
macro_rules! boxed {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(pub(super) Box<dyn Any + Send>);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

boxed! {
    /// A type-erased upload.
    Upload;
    /// A type-erased walk.
    Walk;
    /// A type-erased pending read from slower storage.
    PendingRead;
    /// A type-erased position for acknowledgements.
    Position;
}
