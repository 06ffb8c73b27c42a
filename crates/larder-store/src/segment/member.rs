//! What the cache knows of each of its handles: what the others have to see, and what a handle leaves
//! here between two batches, so that others can use it when memory is short.

use super::cas::CasBlock;
use super::epoch::PinSlot;
use super::evacuation::Evacuation;
use super::open_segment::Open;
use super::stats::HandleStats;
use super::sync::Mutex;
use crate::eviction::KeepLimit;
use std::sync::{Arc, PoisonError};

/// A handle, as the others see it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Member {
    pub(super) pin: PinSlot,
    pub(super) stats: HandleStats,
    idle: Mutex<Option<Box<Writing>>>,
}

/// What a handle writes with. A handle that is in a batch and has written in it has this for itself;
/// otherwise it lies with its [`Member`], and others may take of it.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Segments that are appended to, at most one of a kind.
    pub(super) open: Vec<Open>,
    /// The segment that is being emptied.
    pub(super) evacuation: Option<Evacuation>,
    keep_limit: Option<KeepLimit>,
    pub(super) cas: CasBlock,
    /// Index words taken less words given up, not yet told to the others.
    pub(super) slots: isize,
}

impl Writing {
    /// What bounds how much main keeps in a row.
    pub(super) fn keep_limit(&mut self, segment_len: usize) -> &mut KeepLimit {
        self.keep_limit.get_or_insert_with(|| KeepLimit::new(segment_len))
    }
}

impl Member {
    pub(super) fn new(classes: usize) -> Self {
        Self { pin: PinSlot::default(), stats: HandleStats::new(classes), idle: Mutex::default() }
    }

    /// Takes what was left here, for this handle to write with.
    pub(super) fn take_writing(&self) -> Box<Writing> {
        self.idle(|idle| idle.take()).unwrap_or_default()
    }

    /// Leaves it here until the next batch.
    pub(super) fn leave_writing(&self, writing: Box<Writing>) {
        self.idle(|idle| *idle = Some(writing));
    }

    /// Lets another handle take of what lies here; `None` if nothing does.
    pub(super) fn with_idle<R>(&self, f: impl FnOnce(&mut Writing) -> R) -> Option<R> {
        self.idle(|idle| idle.as_deref_mut().map(f))
    }

    fn idle<R>(&self, f: impl FnOnce(&mut Option<Box<Writing>>) -> R) -> R {
        // Nothing panics while it is held; were it so, its content would still be whole.
        f(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pin slot of a member, for the one handle that it belongs to.
#[derive(Debug)]
pub(super) struct Own(pub(super) Arc<Member>);

impl AsRef<PinSlot> for Own {
    fn as_ref(&self) -> &PinSlot {
        &self.0.pin
    }
}
