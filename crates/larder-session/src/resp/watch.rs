//! `WATCH` and `EXEC`.
//!
//! `EXEC` first compares the versions of all watched items with the versions that `WATCH` recorded.
//! Other connections may change items between the requests of a transaction, so the transaction's
//! first change of each watched item repeats the comparison within the same update.

use super::batch::{Outcome, bounds};
use super::execute::Origin;
use super::single_key::waits;
use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::session::Session;
use crate::session::pending::Pending;
use crate::session::resp_state::{KeyProgress, RequestQueue, State, WATCHED_LEN};
use larder_operations::{Guard, OpContext, Watched, version_of};
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{Arguments, Bounds, CommandError, Read, checked_key, read};
use larder_store::{Access, Engine, Expiry, HashedKey, Lookup};

/// The maximum number of watched keys per connection. `EXEC` looks up all of them.
const WATCHED_MAX: usize = 1024;

/// Executes `WATCH`: records the versions of the items under these keys.
pub(super) fn watch<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    keys: Arguments<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let refused = if state.transaction.is_some() {
        Some(CommandError::WatchInMulti)
    } else if keys.len() > WATCHED_MAX {
        Some(CommandError::KeyCount(WATCHED_MAX))
    } else if { keys }.any(|key| Session::<E>::remote_owner(cx, key).is_some()) {
        Some(CommandError::WatchOfOther)
    } else {
        None
    };
    if let Some(error) = refused {
        state.key_progress = KeyProgress::default();
        reply::error(&error, output);
        return Outcome::Done;
    }
    let answered = state.key_progress.keys;
    for key in keys.skip(answered) {
        state.key_progress.keys += 1;
        let is_known = state.watched.iter().any(|watched| *watched.key == *key);
        // `checked_key` refuses keys that no item can have.
        if checked_key(key).is_err() || is_known {
            continue;
        }
        let hashed = HashedKey { bytes: key, hash: cx.operations.engine.hash(key) };
        let error = match version(cx, hashed) {
            None => {
                state.key_progress.keys -= 1;
                return waits(state, hashed);
            }
            Some(Err(error)) => Some(error),
            Some(Ok(_)) if state.watched.len() == WATCHED_MAX => {
                Some(CommandError::KeyCount(WATCHED_MAX))
            }
            Some(Ok(_)) if !state.reserve(cx.host, key.len() + WATCHED_LEN) => {
                Some(CommandError::OutOfMemory)
            }
            Some(Ok(version)) => {
                state.watched.push(Watched { key: key.into(), version });
                None
            }
        };
        if let Some(error) = error {
            state.key_progress = KeyProgress::default();
            reply::error(&error, output);
            return Outcome::Done;
        }
    }
    state.key_progress = KeyProgress::default();
    reply::ok(output);
    Outcome::Done
}

/// Returns the version of an item. Returns `Some(Ok(None))` if the key has no item, and `None` if
/// the item is on slower storage.
fn version<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
) -> Option<Result<Option<(u64, Expiry)>, CommandError<'static>>> {
    match cx.operations.engine.get(key, Access::Untracked, version_of) {
        Lookup::Pending => None,
        Lookup::Hit((0, _)) => Some(Err(CommandError::WatchWithoutCas)),
        Lookup::Hit(version) => Some(Ok(Some(version))),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => Some(Ok(None)),
    }
}

impl<E: Engine> Session<E> {
    /// Executes `EXEC`: moves the requests since `MULTI` to the queue. The session answers the
    /// queue next.
    pub(super) fn execute_transaction<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let refused = match &state.transaction {
            None => Some(CommandError::ExecWithoutMulti),
            Some(kept) => kept.has_failed.then_some(CommandError::Aborted),
        };
        if let Some(error) = refused {
            if state.transaction.take().is_some() {
                state.watched = Vec::new();
            }
            state.release(cx.host);
            reply::error(&error, output);
            return Outcome::Done;
        }
        let is_unchanged = match Self::watched_are_unchanged(cx, state) {
            Ok(is_unchanged) => is_unchanged,
            Err(outcome) => return outcome,
        };
        let (kept, watched) = (state.transaction.take(), std::mem::take(&mut state.watched));
        let Some(kept) = kept.filter(|_| is_unchanged) else {
            state.release(cx.host);
            reply::null_array(state.version, output);
            return Outcome::Done;
        };
        let guard = (!watched.is_empty() && kept.count > 0).then(|| Box::new(Guard::new(watched)));
        if guard.is_none() {
            reply::array(kept.count, output);
        }
        let (requests, is_headless) = (kept.requests, guard.is_some());
        state.queue = RequestQueue { requests, at: 0, is_transaction: true, guard, is_headless };
        Outcome::Done
    }

    /// Returns whether this server owns all watched keys and their items still have the recorded
    /// versions. Returns `Err` if `EXEC` has to wait for one of the items.
    fn watched_are_unchanged<H: Host>(
        cx: &mut Context<'_, E, H>,
        state: &mut State,
    ) -> Result<bool, Outcome> {
        while let Some(noted) = state.watched.get(state.key_progress.keys) {
            let hashed =
                HashedKey { bytes: &noted.key, hash: cx.operations.engine.hash(&noted.key) };
            let is_here = Self::remote_owner(cx, &noted.key).is_none();
            match version(cx, hashed) {
                None => {
                    let hash = hashed.hash;
                    return Err(waits(state, HashedKey { bytes: &[], hash }));
                }
                Some(Ok(found)) if is_here && found == noted.version => {
                    state.key_progress.keys += 1
                }
                Some(_) => {
                    state.key_progress = KeyProgress::default();
                    return Ok(false);
                }
            }
        }
        state.key_progress = KeyProgress::default();
        Ok(true)
    }

    /// Answers the next request of a transaction with watched items.
    pub(super) fn answer_guarded<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        (queue, guard): (&mut RequestQueue, Box<Guard>),
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let rest = queue.requests.get(queue.at..).unwrap_or_default();
        let bounds = bounds(cx, state);
        let first = match read(rest, &bounds) {
            Read::Request { consumed, .. } => rest.get(..consumed).unwrap_or_default(),
            _ => rest,
        };
        let start = output.len();
        if queue.is_headless {
            reply::array(count_requests(rest, &bounds), output);
        }
        let body = output.len();
        // Do not forward the request, because another server would change the item without the
        // comparison.
        let has_moved = guard.watches_any(|key| Self::remote_owner(cx, key).is_some());
        let step = if has_moved {
            Step::advance(0)
        } else {
            let OpContext { counters, limits, now, observer, .. } = cx.operations;
            let engine = &mut *cx.operations.engine;
            let guard = Some(&*guard);
            let operations = OpContext { engine, counters, limits, now, observer, guard };
            let Context { host, settings, waker, .. } = *cx;
            let mut guarded = Context { operations, host, settings, waker };
            self.answer_requests(&mut guarded, state, first, poll, output, Origin::Transaction)
        };
        if has_moved || guard.is_violated() {
            let has_begun = std::mem::take(&mut state.key_progress) != KeyProgress::default();
            let is_sent_in_part = has_begun && has_moved && !queue.is_headless;
            // Other servers are executing parts of the command, and their replies would reach this
            // connection.
            let is_scattered = !matches!(self.pending, Pending::Idle | Pending::Send(_));
            if is_sent_in_part || is_scattered {
                return Step::finish(0, Next::Close);
            }
            // The refused command may have started to send a large value, or may have stored tags
            // while it waited.
            self.pending = Pending::Idle;
            let _ = self.take_kept_tags();
            if queue.is_headless && !guard.has_changed() {
                output.truncate(start);
                reply::null_array(state.version, output);
            } else {
                output.truncate(body);
                for _ in 0..count_requests(rest, &bounds) {
                    reply::error(&CommandError::WatchedItemChanged, output);
                }
            }
            return Step::advance(rest.len());
        }
        if output.len() > body || !self.pending.is_idle() {
            queue.is_headless = false;
        } else if queue.is_headless {
            output.truncate(start);
        }
        queue.guard = Some(guard);
        step
    }
}

fn count_requests(mut rest: &[u8], bounds: &Bounds) -> usize {
    let mut count = 0;
    while let Read::Request { consumed, .. } = read(rest, bounds) {
        count += 1;
        rest = rest.get(consumed..).unwrap_or_default();
    }
    count
}
