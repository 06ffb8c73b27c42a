//! `CLIENT TRACKING`: the connection learns which items have changed since it has read them, so that the client can keep
//! copies. The [`Tracker`] of the server collects the messages; a session writes them between two replies.

use super::batch::{BatchRequest, Outcome, RequestKind};
use crate::Host;
use crate::context::Context;
use crate::route::GroupIndex;
use crate::session::resp_state::State;
use crate::session::tracking_state::Choice;
use larder_operations::{Invalidation, Subscription, SubscriptionOptions, Tracker};
use larder_protocol::reply::resp::{self as reply, MessageForm, Version};
use larder_protocol::resp::{
    Arguments, CommandError, INVALIDATION_CHANNEL, Tracking, TrackingError, TrackingOptions,
    checked_key,
};
use larder_store::Engine;
use std::sync::Arc;

/// The maximum number of prefixes of a connection. Each change of any item compares its key with all prefixes.
const PREFIXES_MAX: usize = 128;

/// Writes the messages that have arrived. The caller calls it between two replies. Returns false if the output has no
/// room for all of them. Otherwise the next message wakes the connection.
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
        // A RESP2 connection without the channel can't receive messages.
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

/// Notes the keys that a request is about to read.
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
                // The keys before these are answered already.
                let answered = state.key_progress.keys;
                for key in request.keys(row).skip(answered) {
                    track_key(tracker, key, subscription);
                }
            }
        }
    }
}

/// Notes a key, unless no item can have it.
fn track_key(tracker: &Tracker, key: &[u8], subscription: &Arc<Subscription>) {
    if checked_key(key).is_ok() {
        tracker.track(key, subscription);
    }
}

/// Notes the keys that the first requests of a batch, those with keys, are about to read at another server.
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

/// Returns whether other groups own some of the keys. All changes of the items of its own group reach a server: it is
/// the leader, or follows it.
pub(super) fn is_sharded<E: Engine, H: Host>(cx: &Context<'_, E, H>) -> bool {
    let map = cx.host.shard_map().filter(|_| cx.settings.forwards);
    map.is_some_and(|map| map.groups() != [GroupIndex::OWN])
}

/// `CLIENT TRACKING`.
pub(super) fn set_tracking<'b, E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
    wanted: &Tracking<'b>,
    output: &mut Vec<u8>,
) -> Outcome {
    let set = match wanted {
        Tracking::Off => {
            if let Some(tracking) = &mut state.tracking {
                tracking.stop(cx.host.tracker());
            }
            state.release(cx.host);
            Ok(())
        }
        Tracking::On(options) => start(cx, connection, state, options, output),
    };
    match set {
        Ok(()) => reply::ok(output),
        Err(Refused::Error(error)) => reply::error(&error, output),
        Err(Refused::Answered) => (),
    }
    Outcome::Done
}

/// The result of a refused command.
enum Refused {
    Error(CommandError<'static>),
    /// The error is written.
    Answered,
}

impl From<TrackingError> for Refused {
    fn from(error: TrackingError) -> Self {
        Self::Error(CommandError::Tracking(error))
    }
}

fn start<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
    options: &TrackingOptions<'_>,
    output: &mut Vec<u8>,
) -> Result<(), Refused> {
    let redirect = options.redirect;
    if redirect.is_some_and(|target| !cx.host.is_connected(target)) {
        return Err(TrackingError::NoRedirectTarget.into());
    }
    let before = state.tracking.as_deref();
    let old = before.and_then(|tracking| tracking.subscription.clone());
    let old_prefixes = old.as_ref().map_or(&[][..], |old| old.prefixes());
    if old.is_some() && old_prefixes.is_empty() == options.broadcast {
        return Err(TrackingError::SwitchesBroadcast.into());
    }
    if options.broadcast && (options.opt_in || options.opt_out) {
        return Err(TrackingError::OptionWithBroadcast.into());
    }
    if options.opt_in && options.opt_out {
        return Err(TrackingError::OptInWithOptOut.into());
    }
    match before.map_or(Choice::All, |tracking| tracking.choice) {
        Choice::OptOut if options.opt_in => return Err(TrackingError::SwitchesOption.into()),
        Choice::OptIn if options.opt_out => return Err(TrackingError::SwitchesOption.into()),
        _ => (),
    }
    if old_prefixes.len() + options.prefixes().take(PREFIXES_MAX + 1).count() > PREFIXES_MAX {
        return Err(TrackingError::TooManyPrefixes.into());
    }
    let mut prefixes: Vec<Box<[u8]>> = options.prefixes().map(Into::into).collect();
    if options.broadcast && prefixes.is_empty() && !old_prefixes.iter().any(|old| old.is_empty()) {
        // All keys. Later prefixes overlap with this one, but it may follow others.
        prefixes.push(Box::default());
    }
    let given = options.prefixes().count();
    if let Some(error) = overlap(prefixes.get(..given).unwrap_or_default(), old_prefixes) {
        reply::error(&error, output);
        return Err(Refused::Answered);
    }
    prefixes.splice(..0, old_prefixes.iter().cloned());
    let len: usize = prefixes.iter().map(|prefix| prefix.len() + size_of::<Box<[u8]>>()).sum();
    if !state.reserve(cx.host, len) {
        return Err(Refused::Error(CommandError::OutOfMemory));
    }
    if is_sharded(cx) {
        return Err(TrackingError::Sharded.into());
    }
    let Some(tracker) = cx.host.start_tracking() else {
        return Err(TrackingError::Sharded.into());
    };
    let wanted = SubscriptionOptions {
        connection,
        receiver: redirect.unwrap_or(connection),
        no_loop: options.no_loop,
    };
    let is_redirected = wanted.receiver != connection;
    let tracking = state.tracking.get_or_insert_default();
    tracking.choice = match options {
        TrackingOptions { opt_in: true, .. } => Choice::OptIn,
        TrackingOptions { opt_out: true, .. } => Choice::OptOut,
        _ => Choice::All,
    };
    tracking.inbox = Some(tracker.inbox(connection));
    match &old {
        Some(old) if *old.options() == wanted && old.prefixes() == prefixes => (),
        _ => tracking.subscription = Some(tracker.subscribe(wanted, prefixes)),
    }
    if is_redirected && !cx.host.is_connected(wanted.receiver) {
        // It has closed since, before it had an inbox that could be closed.
        tracker.close(wanted.receiver);
    }
    if let Some(old) = old
        && !tracking.subscription.as_ref().is_some_and(|new| Arc::ptr_eq(new, &old))
    {
        tracker.unsubscribe(&old);
        if old.prefixes().is_empty() {
            // The new subscription does not know the keys that the connection has read.
            old.send_all();
        }
    }
    state.release(cx.host);
    Ok(())
}

/// Returns the error of a prefix that is the start of another one.
fn overlap<'p>(prefixes: &'p [Box<[u8]>], tracked: &'p [Box<[u8]>]) -> Option<CommandError<'p>> {
    let overlaps = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    for (at, prefix) in prefixes.iter().enumerate() {
        if let Some(other) = tracked.iter().find(|other| overlaps(prefix, other)) {
            return Some(CommandError::OverlappingPrefixes { prefix, other, is_tracked: true });
        }
        let behind = prefixes.get(at + 1..).unwrap_or_default();
        if let Some(other) = behind.iter().find(|other| overlaps(prefix, other)) {
            return Some(CommandError::OverlappingPrefixes { prefix, other, is_tracked: false });
        }
    }
    None
}

/// `CLIENT CACHING`.
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

/// Returns the number of the connection that receives the messages: 0 for this one, -1 without tracking.
pub(super) fn receiver(state: &State) -> i64 {
    let subscription = state.tracking.as_ref().and_then(|tracking| tracking.subscription.as_ref());
    match subscription.map(|of| of.options()) {
        None => -1,
        Some(of) if of.receiver == of.connection => 0,
        Some(of) => of.receiver.cast_signed(),
    }
}

/// `CLIENT TRACKINGINFO`.
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

/// Lets a connection receive the messages of others: it has asked for its number, or subscribes to the channel.
pub(super) fn open_inbox<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    connection: u64,
    state: &mut State,
) {
    if let Some(tracker) = cx.host.tracker() {
        state.tracking.get_or_insert_default().inbox = Some(tracker.inbox(connection));
    }
}

/// `SUBSCRIBE`. The only channel is that of invalidation messages.
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

/// `UNSUBSCRIBE`.
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
