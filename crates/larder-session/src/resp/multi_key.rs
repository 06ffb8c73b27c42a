//! Commands on several items. A command processes its keys in order. If the command has to wait for
//! an item or for room in the output, it later continues with the first unanswered key.

use super::batch::Outcome;
use super::copy_item::{Stop, remove_if};
use super::single_key::{is_binary, store, waits};
use crate::Host;
use crate::context::Context;
use crate::session::Session;
use crate::session::resp_state::{FETCHES_MAX, KeyProgress, State};
use larder_operations::{LookupOptions, Remove, RemoveOutcome, Store, StoreMode, StoreOutcome};
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{Arguments, CommandError, ItemsCommand, checked_key};
use larder_store::{Engine, Expiry, HashedKey, Lookup};

/// The maximum number of keys that a command processes in one step. A poll runs up to
/// [`Settings::requests_per_poll`](crate::Settings::requests_per_poll) steps.
const KEYS_PER_POLL: usize = 16 << 10;

/// The maximum number of keys in an `MSETNX`. The session executes this command in one step.
const ADDED_MAX: usize = 1024;

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
                // No item can have an invalid key, so the command does not count this key.
                (_, Err(_)) => Outcome::Done,
                (command, Ok(_)) => count(cx, state, key, command),
            };
            if outcome != Outcome::Done {
                if state.key_progress.keys == 0 {
                    output.truncate(mark);
                }
                let later_keys = ahead.step_by(words_per_key).skip(1);
                let room = FETCHES_MAX.saturating_sub(state.waiting.len());
                for key in later_keys.take(room) {
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

/// Executes `MSETNX`: adds items if none of their keys has an item. Each update adds one item, so
/// other clients may see some of the items before the command has added all of them. If another
/// client adds one of the items first, the command removes the items that it has added.
pub(super) fn add<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    words: Arguments<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    if words.len() > 2 * ADDED_MAX {
        reply::error(&CommandError::KeyCount(ADDED_MAX), output);
        return Outcome::Done;
    }
    let mut pairs = Vec::new();
    let mut rest = words;
    while let (Some(bytes), Some(value)) = (rest.next(), rest.next()) {
        pairs.push((HashedKey { bytes, hash: cx.operations.engine.hash(bytes) }, value));
    }
    let mut progress = Progress::of(state.key_progress, pairs.len());
    let added = add_all(cx, &pairs, &mut progress);
    state.key_progress = KeyProgress::default();
    match added {
        Ok(added) => reply::integer(added.into(), output),
        Err(Stop::Wait(key)) => {
            state.key_progress = progress.kept();
            return waits(state, key);
        }
        Err(Stop::Error(error)) => reply::error(&error, output),
    }
    pairs.iter().for_each(|(key, _)| cx.operations.sample(*key));
    Outcome::Done
}

/// The progress of `MSETNX`.
struct Progress {
    /// The number of keys that were looked up.
    checked: usize,
    /// The number of items that the command has added and not removed again.
    added: usize,
    /// The reason why the command removes the added items again; `None` while it adds items.
    end: Option<End>,
}

/// The reason why `MSETNX` adds nothing.
#[derive(Clone, Copy)]
enum End {
    /// Another client has added one of the items.
    Exists = 1,
    OutOfMemory,
    TooLarge,
}

impl Progress {
    /// Restores the progress of a command with `keys` keys from `kept`. If the command has not
    /// waited yet, `kept` is the default.
    fn of(kept: KeyProgress, keys: usize) -> Self {
        let end = [End::Exists, End::OutOfMemory, End::TooLarge];
        let end = end.into_iter().find(|end| *end as i64 == kept.found);
        Self { checked: kept.keys.min(keys), added: kept.keys.saturating_sub(keys), end }
    }

    /// Returns the progress to store while the command waits.
    fn kept(&self) -> KeyProgress {
        // A single number encodes both counts, because the command looks up all keys before it adds
        // the first item.
        KeyProgress { keys: self.checked + self.added, found: self.end.map_or(0, |end| end as i64) }
    }
}

/// Adds all items. After a failure, removes the added items again. Returns whether the items were
/// added. After [`Stop::Wait`], the caller calls the function again with the same `progress`.
fn add_all<'k, E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    pairs: &[(HashedKey<'k>, &[u8])],
    progress: &mut Progress,
) -> Result<bool, Stop<'k>> {
    while let Some((key, _)) = pairs.get(progress.checked) {
        match cx.operations.describe(*key, |_| ()) {
            Lookup::Hit(()) => return Ok(false),
            Lookup::Pending => return Err(Stop::Wait(*key)),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => progress.checked += 1,
        }
    }
    while progress.end.is_none() {
        let (before, rest) = pairs.split_at(progress.added.min(pairs.len()));
        let Some((key, value)) = rest.first() else { return Ok(true) };
        // If a key occurs twice, store its last value.
        let is_again = before.iter().any(|(other, _)| other.bytes == key.bytes);
        let op = Store {
            mode: if is_again { StoreMode::Set } else { StoreMode::Add },
            value,
            value_len: value.len(),
            binary_key: is_binary(key.bytes),
            ..Store::default()
        };
        match cx.operations.store(*key, &op, &mut None) {
            StoreOutcome::Stored { .. } => progress.added += 1,
            StoreOutcome::NotStored => progress.end = Some(End::Exists),
            StoreOutcome::Pending => return Err(Stop::Wait(*key)),
            StoreOutcome::OutOfMemory | StoreOutcome::NoCas => {
                progress.end = Some(End::OutOfMemory);
            }
            _ => progress.end = Some(End::TooLarge),
        }
    }
    while let Some((key, value)) = progress.added.checked_sub(1).and_then(|at| pairs.get(at)) {
        remove_if(cx, *key, value)?;
        progress.added -= 1;
    }
    match progress.end {
        Some(End::OutOfMemory) => Err(Stop::Error(CommandError::OutOfMemory)),
        Some(End::TooLarge) => Err(Stop::Error(CommandError::TooLarge)),
        Some(End::Exists) | None => Ok(false),
    }
}

/// Executes a command for one key. If the key has an item, increments the count of found items.
fn count<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    command: &ItemsCommand<'_>,
) -> Outcome {
    let lookup = match command {
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
    match lookup {
        Lookup::Hit(()) => state.key_progress.found += 1,
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => (),
    }
    Outcome::Done
}
