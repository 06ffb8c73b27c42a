//! `RENAME`, `RENAMENX` and `COPY`, which move or copy the item of one key to another key. Each
//! step changes one item, so between two steps, other clients may see both items or change either
//! item.

use super::batch::Outcome;
use super::single_key::{is_binary, refusal, waits};
use crate::Host;
use crate::context::Context;
use crate::session::resp_state::{KeyProgress, State};
use larder_operations::{CopiedItem, Edit, Store, StoreMode, StoreOutcome, has_value};
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{CommandError, CopyItem, CopyKind};
use larder_store::{Engine, HashedKey, Lookup};

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Done,
    /// The other key already has an item.
    Exists,
    Missing,
}

/// The reason why a command stops before it is complete.
pub(super) enum Stop<'k> {
    /// The command waits for the item of this key.
    Wait(HashedKey<'k>),
    Error(CommandError<'static>),
}

/// Executes the command in one or more steps, and writes its reply.
pub(super) fn run<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    command: &CopyItem<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    if let CopyKind::Copy { database, .. } = command.kind {
        // All databases contain the same items, so equal keys have the same item.
        let error = match cx.settings.has_resp_database(database) {
            false => Some(CommandError::DatabaseRange),
            true => (command.from == command.to).then_some(CommandError::SameKey),
        };
        if let Some(error) = error {
            reply::error(&error, output);
            return Outcome::Done;
        }
    }
    let hashed = |bytes| HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
    let (from, to) = (hashed(command.from), hashed(command.to));
    let mut is_stored = state.key_progress.keys > 0;
    let copied = copy(cx, command, (from, to), &mut is_stored);
    state.key_progress = KeyProgress::default();
    let copied = match copied {
        Ok(copied) => copied,
        Err(Stop::Wait(key)) => {
            state.key_progress.keys = is_stored.into();
            return waits(state, key);
        }
        Err(Stop::Error(error)) => {
            reply::error(&error, output);
            return Outcome::Done;
        }
    };
    match (copied, command.kind) {
        (Copied::Missing, CopyKind::Rename | CopyKind::RenameNx) => {
            reply::error(&CommandError::NoSuchKey, output);
        }
        (_, CopyKind::Rename) => reply::ok(output),
        (copied, _) => reply::integer((copied == Copied::Done).into(), output),
    }
    cx.operations.sample(from);
    cx.operations.sample(to);
    Outcome::Done
}

fn find<'k, E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'k>,
) -> Result<Option<CopiedItem>, Stop<'k>> {
    match cx.operations.copy(key) {
        Ok(Lookup::Hit(item)) => Ok(Some(item)),
        Ok(Lookup::Miss | Lookup::Expired | Lookup::Flushed) => Ok(None),
        Ok(Lookup::Pending) => Err(Stop::Wait(key)),
        Err(_) => Err(Stop::Error(CommandError::OutOfMemory)),
    }
}

/// Copies an item. If the command is a rename, also removes the old item. `is_stored` states
/// whether an earlier attempt of this command has stored the new item. This function sets
/// `is_stored` after it has stored the item.
fn copy<'k, E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    command: &CopyItem<'_>,
    (from, to): (HashedKey<'k>, HashedKey<'k>),
    is_stored: &mut bool,
) -> Result<Copied, Stop<'k>> {
    let replaces = matches!(command.kind, CopyKind::Rename | CopyKind::Copy { replaces: true, .. });
    loop {
        let Some(item) = find(cx, from)? else {
            return Ok(if *is_stored { Copied::Done } else { Copied::Missing });
        };
        if from.bytes == to.bytes {
            return Ok(if replaces { Copied::Done } else { Copied::Exists });
        }
        let op = Store {
            mode: if replaces || *is_stored { StoreMode::Set } else { StoreMode::Add },
            value: &item.value,
            value_len: item.value.len(),
            client_flags: item.client_flags,
            expiry: item.expiry,
            binary_key: is_binary(to.bytes),
            ..Store::default()
        };
        match cx.operations.store(to, &op, &mut None) {
            StoreOutcome::Stored { .. } => *is_stored = true,
            StoreOutcome::Pending => return Err(Stop::Wait(to)),
            StoreOutcome::NotStored => return Ok(Copied::Exists),
            refused => return Err(Stop::Error(refusal(refused))),
        }
        if matches!(command.kind, CopyKind::Copy { .. }) {
            return Ok(Copied::Done);
        }
        if let Removal::Gone = remove_if(cx, from, &item.value)? {
            return Ok(Copied::Done);
        }
    }
}

/// The result of a removal.
pub(super) enum Removal {
    /// The key had no item, or this call has removed the item.
    Gone,
    /// The item has another value, because another client has changed it.
    Changed,
}

/// Removes an item if it has this value.
pub(super) fn remove_if<'k, E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'k>,
    value: &[u8],
) -> Result<Removal, Stop<'k>> {
    let edited = cx.operations.edit(key, is_binary(key.bytes), |item| match item {
        Some(item) if has_value(item, value) => (Edit::Remove, Removal::Gone),
        Some(_) => (Edit::Keep, Removal::Changed),
        None => (Edit::Keep, Removal::Gone),
    });
    match edited {
        Ok(removed) => removed.ok_or(Stop::Wait(key)),
        Err(_) => Err(Stop::Error(CommandError::OutOfMemory)),
    }
}
