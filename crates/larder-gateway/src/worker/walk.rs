//! Walks over the cache's items, for key lists.

use super::CacheItems;
use super::memory::CountGuard;
use crate::items::{ListedItem, Page};
use larder_store::{WalkPosition, WalkState, Walks};
use std::future::poll_fn;
use std::task::Poll;
use tokio::task::yield_now;

/// The approximate number of items in one step of a walk.
const ITEMS_PER_STEP: usize = 256;

impl CacheItems {
    /// Lists about `items` items from `cursor` on. Returns `None` if there are more items, but the
    /// engine cannot continue a walk later. Each step is a batch of its own, so that the engine can
    /// reuse memory between steps.
    pub(super) async fn walk(&self, cursor: u64, items: usize) -> Option<Page> {
        let _active = CountGuard::new(&self.active, 1);
        let mut walk = self.with_engine(|engine| engine.walk_from(cursor));
        let (mut found, mut left) = (Vec::new(), items);
        loop {
            let state = poll_fn(|task| {
                let state = self.with_context(|cx| {
                    let (now, mut seen) = (cx.now, 0);
                    let step = left.min(ITEMS_PER_STEP);
                    let state =
                        cx.engine.continue_walk(&mut walk, step, task.waker(), |key, item| {
                            seen += 1;
                            let ttl = item.attributes.expiry.left(now);
                            found.push(ListedItem {
                                key: key.to_vec(),
                                value_len: item.value.len(),
                                ttl,
                            });
                        });
                    // A step that finds no items counts as one item, so that a walk over an empty
                    // index terminates.
                    left = left.saturating_sub(seen.max(1));
                    state
                });
                if state == WalkState::Waiting { Poll::Pending } else { Poll::Ready(state) }
            })
            .await;
            if state == WalkState::End {
                return Some(Page { items: found, next: None });
            }
            if left == 0 {
                match self.with_engine(|engine| engine.walk_position(&walk)) {
                    WalkPosition::At(next) => return Some(Page { items: found, next: Some(next) }),
                    WalkPosition::Unsettled => (),
                    WalkPosition::Unsupported => return None,
                }
            }
            yield_now().await;
        }
    }
}
