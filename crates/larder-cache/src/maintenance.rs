//! The cache's own thread: it advances the clock and removes expired items.

use crate::core::Core;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

/// If work is left after a time slice of maintenance, the thread pauses for this time, so
/// maintenance uses about a tenth of a core.
const PAUSE: Duration = Duration::from_millis(20);

/// Starts the thread. It stops after the last clone of the cache is dropped.
pub(crate) fn start(core: &Arc<Core>, wake: Receiver<()>) -> io::Result<()> {
    let core = Arc::downgrade(core);
    thread::Builder::new().name("larder-cache".to_owned()).spawn(move || run(&core, &wake))?;
    Ok(())
}

fn run(core: &Weak<Core>, wake: &Receiver<()>) {
    let mut pause = Duration::ZERO;
    while wake.recv_timeout(pause) != Err(RecvTimeoutError::Disconnected) {
        let Some(core) = core.upgrade() else { return };
        // If a listener panics, the panic hook reports it. The thread must continue, because it
        // advances the clock.
        let more = catch_unwind(AssertUnwindSafe(|| core.maintain())).unwrap_or(true);
        pause = if more { PAUSE } else { core.clock.until_next() };
    }
}
