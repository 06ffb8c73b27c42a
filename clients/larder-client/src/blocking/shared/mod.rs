//! Connections to one server that threads share: requests of several callers leave in one write.
//!
//! No thread belongs to a connection. Of those who wait for replies, one at a time reads, and hands out what others have
//! asked for. Once it has its own reply, another one goes on:
//!
//! ```text
//!   begin() ─▶ queue ─▶ sent by whoever comes, or by the reader with its next turn
//!   finish() ─▶ nobody reads: be the reader, until the own reply has come ─▶ pass that on to one who waits
//!           └─▶ somebody reads: wait for the reply, or to be the next reader
//! ```

mod attempt;
mod connection;
mod slot;
mod state;
mod ticket;

use crate::blocking::stream::Opened;
use crate::blocking::wait::Wait;
use crate::core::operation::Operation;
use crate::core::shared::{CALLS_BUSY, Counted, Lost};
use crate::error::{Error, ErrorKind};
use crate::metrics::CloseReason;
use connection::{Begun, Line};
use slot::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Connections that threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Box<[Slot]>,
    is_closed: AtomicBool,
    wait: Wait,
}

/// A call that was begun.
#[derive(Debug)]
pub(crate) struct Call<'s> {
    slot: &'s Slot,
    attempt: Attempt,
    _counted: Counted<'s>,
}

#[derive(Debug)]
struct Attempt {
    line: Arc<Line>,
    begun: Result<Begun, Lost>,
    /// Whether the connection had answered calls before.
    was_used: bool,
}

impl Shared {
    pub(crate) fn new(connections: usize, wait: Wait) -> Self {
        let slots = (0..connections.max(1)).map(|_| Slot::default()).collect();
        Self { slots, is_closed: AtomicBool::new(false), wait }
    }

    /// Begins an operation over one of the connections, which `open` opens: it is sent without waiting, or with what comes
    /// next.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn begin<O: Operation>(
        &self,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Call<'_>, Error> {
        let slot = self.slot();
        let counted = Counted::new(&slot.calls);
        let attempt = self.begin_at(slot, operation, deadline, open)?;
        Ok(Call { slot, attempt, _counted: counted })
    }

    /// Ends what was begun with the same operation.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn finish<O: Operation>(
        &self,
        call: Call<'_>,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<O::Output, Error> {
        let Call { slot, mut attempt, _counted } = call;
        let mut is_repeated = false;
        loop {
            let Attempt { line, begun, was_used } = attempt;
            let broken = match line.finish(begun, operation, deadline) {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                slot.close(&line, CloseReason::of(broken.error.kind()));
            }
            // The connection has ended meanwhile: a new one says whether the server is there.
            if is_repeated || !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
            is_repeated = true;
            attempt = self.begin_at(slot, operation, deadline, &open)?;
        }
    }

    /// Begins an operation over the connection of a place.
    fn begin_at<O: Operation>(
        &self,
        slot: &Slot,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Attempt, Error> {
        loop {
            let line = self.line(slot, deadline, &open)?;
            let was_used = line.has_answered.load(Ordering::Relaxed);
            match line.begin(operation) {
                // Another call has ended it meanwhile, perhaps because nobody needed it any more.
                Err(lost) if lost.is_echo && Instant::now() < deadline => (),
                begun => return Ok(Attempt { line, begun, was_used }),
            }
        }
    }

    fn line(
        &self,
        slot: &Slot,
        deadline: Instant,
        open: impl Fn() -> Result<Opened, Error>,
    ) -> Result<Arc<Line>, Error> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::definite(ErrorKind::ClientClosed));
        }
        let line = slot.line(deadline, open, &self.wait)?;
        if self.is_closed.load(Ordering::Relaxed) {
            // The client was closed while it was opened. It ends with those who have it.
            slot.close(&line, CloseReason::ClientClosed);
        }
        Ok(line)
    }

    /// The place with the fewest calls. One that is empty is used when all others are busy.
    fn slot(&self) -> &Slot {
        let load = |slot: &&Slot| {
            let calls = slot.calls.load(Ordering::Relaxed);
            // One that has calls is open, or is being opened.
            if calls > 0 || slot.lock().line.is_some() { calls } else { CALLS_BUSY }
        };
        match &*self.slots {
            [one] => one,
            slots => slots.iter().min_by_key(load).expect("there is one"),
        }
    }

    /// Closes the connections, and refuses further calls.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| drop(slot.lock().line.take()));
    }

    /// Connections that are open, those of them that no call uses, and 0 calls that wait for one.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let is_open = |slot: &&Slot| slot.lock().line.as_ref().is_some_and(|line| line.is_open());
        let open = || self.slots.iter().filter(is_open);
        let idle = open().filter(|slot| slot.calls.load(Ordering::Relaxed) == 0).count();
        (open().count(), idle, 0)
    }
}
