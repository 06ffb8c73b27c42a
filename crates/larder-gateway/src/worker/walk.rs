//! Walks over the items of the cache.

use super::CacheItems;
use super::memory::CountGuard;
use crate::items::{ListedItem, Page};
use larder_store::{WalkPosition, WalkState, Walks};
use std::future::poll_fn;
use std::task::Poll;
use tokio::task::yield_now;

/// About how many items are looked at in one step of a walk.
const ITEMS_PER_STEP: usize = 256;

impl CacheItems {
    /// Looks at items step by step, with a batch for each, so that memory can be used again in between.
    pub(super) async fn walk(&self, place: u64, items: usize) -> Option<Page> {
        let _active = CountGuard::new(&self.active, 1);
        let mut walk = self.with_engine(|engine| engine.walk_from(place));
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
                    // Steps through an empty index count, too.
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
