//! `CLIENT TRACKING`. A connection receives messages about changes of the items that it has read,
//! so its client can keep copies of these items. The server's [`Tracker`] collects the messages. A
//! session writes them between two replies.

use super::batch::{BatchRequest, Outcome, RequestKind};
use crate::Host;
use crate::context::Context;
use crate::session::resp_state::State;
use crate::session::tracking_state::{Choice, prefixes_memory};
use larder_operations::{Invalidation, Subscription, SubscriptionOptions, Tracker};
use larder_protocol::reply::resp::{self as reply, MessageForm, Version};
use larder_protocol::resp::{
    Arguments, CommandError, INVALIDATION_CHANNEL, Tracking, TrackingError, TrackingOptions,
    checked_key,
};
use larder_store::Engine;
use std::sync::Arc;

/// The maximum number of prefixes per connection. On each change of an item, the tracker compares
/// the key with all prefixes.
const PREFIXES_MAX: usize = 128;

/// Writes the arrived messages. The session must be between two replies. Returns false if the
/// output has no room for all messages. After the function returns true, the next message wakes the
/// connection.
pub(super) fn write_messages<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &mut State,
    output: &mut Vec<u8>,
) -> bool {
    let Some(tracking) = &state.tracking else { return true };
    let Some(inbox) = &tracking.inbox else { return true };
    let form = match state.version {
        Version::Resp3 => Some(MessageForm::Push),
        Version::Resp2 => tracking.is_subscribed.then_some(MessageForm::Channel),
    };
    while output.len() <= cx.settings.output_max {
        let Some(message) = inbox.next(cx.waker) else { return true };
        // A RESP2 connection cannot receive messages unless it subscribes to the channel.
        let Some(form) = form else { continue };
        match message {
            Invalidation::Keys(keys) => {
                reply::invalidate(form, keys.iter().map(|key| &**key), output);
            }
            Invalidation::All => reply::invalidate_all(form, output),
            Invalidation::Broken => {
                let target = tracking.subscription.as_ref().map(|of| of.options().receiver);
                if let (Some(target), MessageForm::Push) = (target, form) {
                    reply::redirect_broken(target, output);
                }
            }
        }
    }
    false
}

/// Tracks the keys that a request is about to read.
pub(super) fn track<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &State,
    request: &BatchRequest<'_>,
) {
    let Some(subscription) = state.tracking.as_ref().and_then(|tracking| tracking.tracks()) else {
        return;
    };
    let Some(tracker) = cx.host.tracker() else { return };
    match &request.kind {
        RequestKind::Get(key, _) => track_key(tracker, key, subscription),
        RequestKind::Set(..) => (),
        RequestKind::Request(request) => {
            let Ok((row, verb)) = request.row() else { return };
            if row.needs_owner() && !verb.changes_items() {
                // The session has already answered the earlier keys of the request.
                let answered = state.key_progress.keys;
                for key in request.keys(row).skip(answered) {
                    track_key(tracker, key, subscription);
                }
            }
        }
    }
}

/// Tracks a key. Ignores a key that is empty or too long for an item.
fn track_key(tracker: &Tracker, key: &[u8], subscription: &Arc<Subscription>) {
    if checked_key(key).is_ok() {
        tracker.track(key, subscription);
    }
}

/// Tracks the keys that the requests at the start of a batch are about to read from other servers.
/// Stops at the first request without keys.
pub(super) fn track_batch<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &State,
    batch: &[BatchRequest<'_>],
) {
    if state.transaction.is_some() {
        return;
    }
    let has_keys = |ready: &&BatchRequest<'_>| match &ready.kind {
        RequestKind::Get(..) | RequestKind::Set(..) => true,
        RequestKind::Request(request) => request.row().is_ok_and(|(row, _)| row.needs_owner()),
    };
    batch.iter().take_while(has_keys).for_each(|ready| track(cx, state, ready));
}

/// Executes `CLIENT TRACKING`.
pub(super) fn set_tracking<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
    wanted: &Tracking<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let old = state.tracking.as_ref().and_then(|tracking| tracking.subscription.clone());
    let set = match wanted {
        Tracking::Off => {
            if let Some(tracking) = &mut state.tracking {
                tracking.stop(cx.host.tracker());
            }
            Ok(())
        }
        Tracking::On(options) => {
            let old_prefixes = old.as_ref().map_or(&[][..], |old| old.prefixes());
            check(cx, state, options, old_prefixes)
                .and_then(|()| start(cx, connection, state, options, old.as_ref()))
        }
    };
    state.release(cx.host);
    match set {
        Ok(()) => reply::ok(output),
        Err(error) => reply::error(&error, output),
    }
    Outcome::Done
}

/// Checks the options of `CLIENT TRACKING ON`. `old_prefixes` are the prefixes that the connection
/// already tracks.
fn check<'p, E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &State,
    options: &TrackingOptions<'p>,
    old_prefixes: &'p [Box<[u8]>],
) -> Result<(), CommandError<'p>> {
    let tracking = state.tracking.as_deref().filter(|tracking| tracking.is_on());
    let choice = tracking.map_or(Choice::All, |tracking| tracking.choice);
    let given = || options.prefixes().take(PREFIXES_MAX + 1).count();
    let refused = if options.redirect.is_some_and(|target| !cx.host.is_connected(target)) {
        TrackingError::NoRedirectTarget
    } else if tracking.is_some() && old_prefixes.is_empty() == options.broadcast {
        TrackingError::SwitchesBroadcast
    } else if options.broadcast && (options.opt_in || options.opt_out) {
        TrackingError::OptionWithBroadcast
    } else if options.opt_in && options.opt_out {
        TrackingError::OptInWithOptOut
    } else if choice == Choice::OptOut && options.opt_in
        || choice == Choice::OptIn && options.opt_out
    {
        TrackingError::SwitchesOption
    } else if old_prefixes.len() + given() > PREFIXES_MAX {
        TrackingError::TooManyPrefixes
    } else {
        return overlap(options, old_prefixes).map_or(Ok(()), Err);
    };
    Err(CommandError::Tracking(refused))
}

/// Starts tracking with these options, or changes the options of `old`, the current subscription.
/// [`check`] must have accepted the options.
fn start<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
    options: &TrackingOptions<'_>,
    old: Option<&Arc<Subscription>>,
) -> Result<(), CommandError<'static>> {
    let mut prefixes = old.map_or(Vec::new(), |old| old.prefixes().to_vec());
    prefixes.extend(options.prefixes().map(Box::from));
    if options.broadcast && options.prefixes().next().is_none() {
        // The empty prefix matches all keys. Unlike the prefixes of the request, the empty prefix
        // may overlap with other prefixes.
        prefixes.push(Box::default());
        prefixes.dedup();
    }
    if !state.reserve(cx.host, prefixes_memory(&prefixes)) {
        return Err(CommandError::OutOfMemory);
    }
    // This fails only if the host has no tracker. larderd always has a tracker.
    let tracker =
        cx.host.start_tracking().ok_or(CommandError::Tracking(TrackingError::NoTracker))?;
    let receiver = options.redirect.unwrap_or(connection);
    let no_loop = options.no_loop;
    let wanted = SubscriptionOptions { connection, receiver, no_loop, is_node: false };
    let tracking = state.tracking.get_or_insert_default();
    tracking.choice = match options {
        TrackingOptions { opt_in: true, .. } => Choice::OptIn,
        TrackingOptions { opt_out: true, .. } => Choice::OptOut,
        _ => Choice::All,
    };
    tracking.inbox = Some(tracker.inbox(connection));
    match old.filter(|old| old.prefixes() == prefixes) {
        Some(old) if old.options() == wanted => return Ok(()),
        Some(old) => tracker.set_options(old, wanted),
        None => {
            // Start the new subscription before the old subscription ends, so that no change goes
            // unreported.
            tracking.subscription = Some(tracker.subscribe(wanted, prefixes));
            if let Some(old) = old {
                tracker.unsubscribe(old);
            }
        }
    }
    if options.broadcast {
        cx.host.request_changes();
    }
    if receiver != connection && !cx.host.is_connected(receiver) {
        // The receiver was open during `check` and has closed since. Its inbox did not exist yet
        // when it closed, so remove the inbox here.
        tracker.close(receiver);
    }
    Ok(())
}

/// Returns an error if a prefix in `options` overlaps with another prefix. Two prefixes overlap if
/// one of them starts with the other.
fn overlap<'p>(
    options: &TrackingOptions<'p>,
    old_prefixes: &'p [Box<[u8]>],
) -> Option<CommandError<'p>> {
    let overlaps = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    for (at, prefix) in options.prefixes().enumerate() {
        if let Some(other) = old_prefixes.iter().find(|other| overlaps(prefix, other)) {
            return Some(CommandError::OverlappingPrefixes { prefix, other, is_tracked: true });
        }
        let mut later_prefixes = options.prefixes().skip(at + 1);
        if let Some(other) = later_prefixes.find(|other| overlaps(prefix, other)) {
            return Some(CommandError::OverlappingPrefixes { prefix, other, is_tracked: false });
        }
    }
    None
}

/// Executes `CLIENT CACHING`.
pub(super) fn set_caching(
    state: &mut State,
    caches: Option<bool>,
) -> Result<(), CommandError<'static>> {
    let tracking = state.tracking.as_mut().filter(|tracking| tracking.is_on());
    let refused = match (tracking, caches) {
        (None, _) => TrackingError::CachingWithoutOption,
        (Some(_), None) => return Err(CommandError::Syntax),
        (Some(tracking), Some(true)) if tracking.choice != Choice::OptIn => {
            TrackingError::CachingWithoutOptIn
        }
        (Some(tracking), Some(false)) if tracking.choice != Choice::OptOut => {
            TrackingError::CachingWithoutOptOut
        }
        (Some(tracking), Some(_)) => {
            tracking.is_reversed = true;
            return Ok(());
        }
    };
    Err(CommandError::Tracking(refused))
}

/// Returns the number of the connection that receives the messages: 0 if it is this connection, and
/// -1 without tracking.
pub(super) fn receiver(state: &State) -> i64 {
    let subscription = state.tracking.as_ref().and_then(|tracking| tracking.subscription.as_ref());
    match subscription.map(|of| of.options()) {
        None => -1,
        Some(of) if of.receiver == of.connection => 0,
        Some(of) => of.receiver.cast_signed(),
    }
}

/// Executes `CLIENT TRACKINGINFO`.
pub(super) fn show_tracking(state: &State, output: &mut Vec<u8>) {
    let tracking = state.tracking.as_deref();
    let subscription = tracking.and_then(|tracking| tracking.subscription.as_ref());
    let (Some(tracking), Some(subscription)) = (tracking, subscription) else {
        return reply::tracking_info(state.version, &["off"], -1, &[], output);
    };
    let choice = match (tracking.choice, tracking.is_reversed) {
        (Choice::All, _) => &[][..],
        (Choice::OptIn, false) => &["optin"],
        (Choice::OptIn, true) => &["optin", "caching-yes"],
        (Choice::OptOut, false) => &["optout"],
        (Choice::OptOut, true) => &["optout", "caching-no"],
    };
    let prefixes = subscription.prefixes();
    let mut flags = vec!["on"];
    flags.extend((!prefixes.is_empty()).then_some("bcast"));
    flags.extend(choice);
    flags.extend(subscription.options().no_loop.then_some("noloop"));
    flags.extend(subscription.is_broken().then_some("broken_redirect"));
    reply::tracking_info(state.version, &flags, receiver(state), prefixes, output);
}

/// Opens the connection's inbox, because other connections may redirect their messages to it. The
/// session calls this function when the client requests the connection's number or subscribes to
/// the channel.
pub(super) fn open_inbox<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
) {
    if let Some(tracker) = cx.host.tracker() {
        state.tracking.get_or_insert_default().inbox = Some(tracker.inbox(connection));
    }
}

/// Executes `SUBSCRIBE`. The channel of invalidation messages is the only channel.
pub(super) fn subscribe<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
    channels: Arguments<'_>,
    output: &mut Vec<u8>,
) {
    if !{ channels }.all(is_channel) {
        return reply::error(&CommandError::Tracking(TrackingError::Channel), output);
    }
    open_inbox(cx, connection, state);
    state.tracking.get_or_insert_default().is_subscribed = true;
    for channel in channels {
        reply::subscription(state.version, "subscribe", Some(channel), 1, output);
    }
}

/// Executes `UNSUBSCRIBE`.
pub(super) fn unsubscribe(state: &mut State, channels: Arguments<'_>, output: &mut Vec<u8>) {
    let version = state.version;
    let mut was_subscribed = false;
    if let Some(tracking) = &mut state.tracking
        && (channels.len() == 0 || { channels }.any(is_channel))
    {
        was_subscribed = std::mem::take(&mut tracking.is_subscribed);
    }
    if channels.len() == 0 {
        let channel = was_subscribed.then_some(INVALIDATION_CHANNEL);
        return reply::subscription(version, "unsubscribe", channel, 0, output);
    }
    let count = usize::from(state.is_subscribed());
    for channel in channels {
        reply::subscription(version, "unsubscribe", Some(channel), count, output);
    }
}

fn is_channel(channel: &[u8]) -> bool {
    channel == INVALIDATION_CHANNEL
}
