//! A cache of any engine behind one type, so that code which is generic over the engine is compiled
//! once for all engines.
//!
//! A call costs an indirect jump. A lease, an upload, a walk, a read from slower storage and a
//! position for acknowledgements each cost an allocation. The server's workers therefore use the
//! default engine directly. Code that runs less often uses [`Cache`].

mod any_engine;
mod handle;
mod values;

pub use handle::Handle;
pub use values::{Lease, PendingRead, Position, Upload, Walk};

use crate::cache::CacheControl;
use std::fmt;
use std::sync::Arc;

/// A cache of any engine, behind a trait object.
#[derive(Clone)]
pub struct Cache(Arc<dyn AnyCache>);

impl Cache {
    /// Wraps `cache` in a trait object, which hides the engine's type.
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

/// [`crate::cache::Cache`] without its associated type, so that it can be a trait object.
trait AnyCache: Send + Sync {
    fn any_engine(&self) -> Handle;
    fn any_control(&self) -> &dyn CacheControl;
}

impl<C: crate::cache::Cache> AnyCache for C {
    fn any_engine(&self) -> Handle {
        Handle::new(self.engine())
    }

    fn any_control(&self) -> &dyn CacheControl {
        self.control()
    }
}
