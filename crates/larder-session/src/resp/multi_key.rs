//! Commands on several items. They process one key after the other. A command that waits for an
//! item or for the output continues later with the first unanswered key.

use super::batch::Outcome;
use super::single_key::{store, waits};
use crate::Host;
use crate::context::Context;
use crate::session::Session;
use crate::session::resp_state::{FETCHES_MAX, KeyProgress, State};
use larder_operations::{LookupOptions, Remove, RemoveOutcome};
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{ItemsCommand, checked_key};
use larder_store::{Engine, Expiry, HashedKey, Lookup};

/// The maximum number of keys that a command processes in one step. A poll has up to
/// [`Settings::requests_per_poll`](crate::Settings::requests_per_poll) steps.
const KEYS_PER_POLL: usize = 16 << 10;

impl<E: Engine> Session<E> {
    /// Answers a command on several items.
    pub(super) fn resp_items<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        command: &ItemsCommand<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let (words, words_per_key) = command.words();
        let mark = output.len();
        if state.key_progress.keys == 0 {
            if let Err(error) = command.check_keys() {
                reply::error(&error, output);
                return Outcome::Done;
            }
            if let ItemsCommand::MGet(keys) = command {
                reply::array(keys.len(), output);
            }
        }
        let mut rest = words;
        if let Some(last) = (state.key_progress.keys * words_per_key).checked_sub(1) {
            rest.nth(last);
        }
        for answered in 0.. {
            let ahead = rest;
            let Some(bytes) = rest.next() else { break };
            let is_full = !self.pending.is_idle() || output.len() > cx.settings.output_max;
            if answered == KEYS_PER_POLL || answered > 0 && is_full {
                return Outcome::Paused;
            }
            if answered % FETCHES_MAX == 0 {
                for key in ahead.step_by(words_per_key).take(FETCHES_MAX) {
                    let hash = cx.operations.engine.hash(key);
                    cx.operations.engine.announce(hash);
                }
                cx.operations.engine.prefetch_announced();
            }
            let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
            let outcome = match (command, checked_key(bytes)) {
                (ItemsCommand::MSet(_), _) => {
                    let value = rest.next().unwrap_or_default();
                    match store(cx, key, value, (Expiry::Never, &[])) {
                        Some(Ok(())) => Outcome::Done,
                        Some(Err(error)) => {
                            reply::error(&error, output);
                            state.key_progress = KeyProgress::default();
                            return Outcome::Done;
                        }
                        None => waits(state, key),
                    }
                }
                (ItemsCommand::MGet(_), Ok(_)) => self.resp_get(cx, state, key, output),
                (ItemsCommand::MGet(_), Err(_)) => {
                    reply::null(state.version, output);
                    Outcome::Done
                }
                // No item can have such a key.
                (_, Err(_)) => Outcome::Done,
                (command, Ok(_)) => count(cx, state, key, command),
            };
            if outcome != Outcome::Done {
                if state.key_progress.keys == 0 {
                    output.truncate(mark);
                }
                let behind = ahead.step_by(words_per_key).skip(1);
                let room = FETCHES_MAX.saturating_sub(state.waiting.len());
                for key in behind.take(room) {
                    state.waiting.push(cx.operations.engine.hash(key));
                }
                return outcome;
            }
            state.key_progress.keys += 1;
            cx.operations.sample(key);
        }
        match command {
            ItemsCommand::MGet(_) => (),
            ItemsCommand::MSet(_) => reply::ok(output),
            _ => reply::integer(state.key_progress.found, output),
        }
        state.key_progress = KeyProgress::default();
        Outcome::Done
    }
}

/// Executes a command for one key, and counts the item if it was found.
fn count<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    command: &ItemsCommand<'_>,
) -> Outcome {
    let looked = match command {
        ItemsCommand::Del(_) => match cx.operations.remove(key, &Remove::default()) {
            RemoveOutcome::Removed => Lookup::Hit(()),
            RemoveOutcome::Pending => Lookup::Pending,
            RemoveOutcome::NotFound | RemoveOutcome::Exists | RemoveOutcome::OutOfMemory => {
                Lookup::Miss
            }
        },
        ItemsCommand::Touch(_) => {
            // A lookup that changes nothing needs no memory, so it is never refused.
            cx.operations
                .look_up(key, &LookupOptions::default(), false, |_| ())
                .unwrap_or(Lookup::Miss)
        }
        _ => cx.operations.describe(key, |_| ()),
    };
    match looked {
        Lookup::Hit(()) => state.key_progress.found += 1,
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => (),
    }
    Outcome::Done
}
