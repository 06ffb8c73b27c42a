//! A cache of any engine behind one type, so that code which is generic over the engine is compiled
//! once for all engines.
//!
//! A call costs an indirect jump. A lease, an upload, a walk and a read from slower storage each
//! cost an allocation. The server's workers therefore use the default engine directly, and all code
//! off their path uses [`Cache`].

mod any_engine;
mod handle;

use crate::cache::CacheControl;
use crate::engine::*;
use any_engine::AnyEngine;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// A cache of any engine.
#[derive(Clone)]
pub struct Cache(Arc<dyn AnyCache>);

impl Cache {
    /// Hides the engine of `cache`.
    pub fn new(cache: impl crate::cache::Cache) -> Self {
        Self(Arc::new(cache))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl crate::cache::Cache for Cache {
    type Engine = Handle;

    fn engine(&self) -> Handle {
        self.0.any_engine()
    }

    fn control(&self) -> &dyn CacheControl {
        self.0.any_control()
    }
}

/// [`crate::cache::Cache`] without its associated type.
trait AnyCache: Send + Sync {
    fn any_engine(&self) -> Handle;
    fn any_control(&self) -> &dyn CacheControl;
}

impl<C: crate::cache::Cache> AnyCache for C {
    fn any_engine(&self) -> Handle {
        Handle(Box::new(self.engine()))
    }

    fn any_control(&self) -> &dyn CacheControl {
        self.control()
    }
}

/// One thread's access to a [`Cache`].
pub struct Handle(Box<dyn AnyEngine>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// A lease of any engine.
pub struct Lease(Box<dyn AnyLease>);

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

    fn may_be_kept(&self) -> bool {
        self.0.may_be_kept()
    }
}

/// [`crate::Lease`] without [`Clone`], which needs a size.
trait AnyLease: Send {
    fn clone_lease(&self) -> Lease;
    fn len(&self) -> usize;
    fn piece(&self, offset: usize) -> &[u8];
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

    fn may_be_kept(&self) -> bool {
        crate::Lease::may_be_kept(self)
    }
}

// The box of an upload contains an `Option<E::Upload>`, which the engine empties when it takes the
// value.
macro_rules! boxed {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(Box<dyn Any + Send>);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

boxed! {
    /// An upload of any engine.
    Upload;
    /// A walk of any engine.
    Walk;
    /// A read of slower storage of any engine.
    PendingRead;
    /// A position for acknowledgements of any engine.
    Position;
}
