//! `Watch`: events of items.

use super::memory::RequestMemory;
use super::pb;
use super::pb::watch_response::Part;
use crate::server_view::ServerView;
use crate::web::app::App;
use crate::web::connections::LongLivedResponse;
use futures_util::stream::unfold;
use larder_operations::{
    EVENT_QUEUE_LEN_MAX, EventFilter, EventKind, EventKinds, EventQueue, OwnedEvent, WatchEntry,
};
use larder_store::KEY_LEN_MAX;
use prost_types::Duration;
use std::future::poll_fn;
use std::sync::Arc;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

/// A registered watcher. Dropping it unregisters its queue.
struct Watcher {
    view: Arc<dyn ServerView>,
    queue: Arc<EventQueue>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.view.unwatch(&self.queue);
    }
}

/// Registers a watcher, and returns the stream of its events.
///
/// # Errors
/// The filter is invalid, the server does not allow watchers, there are too many watchers, or the
/// queue would exceed the memory limit.
pub(super) async fn watch(
    app: &App,
    memory: &RequestMemory,
    request: pb::WatchRequest,
) -> Result<Response<BoxStream<pb::WatchResponse>>, Status> {
    if request.prefix.len() > KEY_LEN_MAX {
        let text = format!("The prefix is too long: keys have at most {KEY_LEN_MAX} bytes.");
        return Err(Status::invalid_argument(text));
    }
    let queue = Arc::new(EventQueue::new(filter(&request)?, app.view.random()));
    if !app.view.watch_allowed() {
        return Err(Status::permission_denied("This server does not allow watchers (-W)."));
    }
    memory.require(app, EVENT_QUEUE_LEN_MAX).await?;
    if !app.view.watch(&queue) {
        return Err(Status::resource_exhausted("There are too many watchers already."));
    }
    let watcher = Watcher { view: Arc::clone(&app.view), queue };
    let state = (watcher, app.stopping.clone());
    let events = unfold(state, async |(watcher, mut stopping)| {
        let next = tokio::select! {
            watched = poll_fn(|cx| watcher.queue.poll_next(cx)) => Ok(answer(watched)),
            // `wait_for` fails if the server panicked and dropped the sender.
            _ = stopping.wait_for(|stops| *stops) => return None,
        };
        Some((next, (watcher, stopping)))
    });
    let mut response = Response::new(Box::pin(events) as BoxStream<_>);
    response.extensions_mut().insert(LongLivedResponse);
    Ok(response)
}

fn filter(request: &pb::WatchRequest) -> Result<EventFilter, Status> {
    let kinds = request.kinds().map(|kind| match kind {
        pb::EventKind::Unspecified => {
            Err(Status::invalid_argument("There is no such kind of event."))
        }
        pb::EventKind::Hit => Ok(EventKind::Hit),
        pb::EventKind::Miss => Ok(EventKind::Miss),
        pb::EventKind::Stored => Ok(EventKind::Stored),
        pb::EventKind::Removed => Ok(EventKind::Removed),
        pb::EventKind::Evicted => Ok(EventKind::Evicted),
    });
    let kinds = kinds
        .into_iter()
        .try_fold(EventKinds::default(), |all, kind| Ok::<_, Status>(all.with(kind?)))?;
    let kinds = if kinds == EventKinds::default() { EventKinds::ALL } else { kinds };
    Ok(EventFilter { kinds, prefix: request.prefix.to_vec(), one_in: request.one_in })
}

fn answer(watched: WatchEntry) -> pb::WatchResponse {
    let part = match watched {
        WatchEntry::Lost(lost) => Part::Lost(lost),
        WatchEntry::Event(OwnedEvent { kind, key, value_len, ttl, time }) => {
            let kind = match kind {
                EventKind::Hit => pb::EventKind::Hit,
                EventKind::Miss => pb::EventKind::Miss,
                EventKind::Stored => pb::EventKind::Stored,
                EventKind::Removed => pb::EventKind::Removed,
                EventKind::Evicted => pb::EventKind::Evicted,
            };
            Part::Event(pb::Event {
                kind: kind.into(),
                key: key.into_vec().into(),
                length: value_len as u64,
                ttl: ttl.map(|secs| Duration { seconds: secs.into(), nanos: 0 }),
                time: Some(time.into()),
            })
        }
    };
    pb::WatchResponse { part: Some(part) }
}
