//! S3-FIFO (Yang et al., SOSP 2023), item by item, with what Larder's engine does differently.
//!
//! ```text
//!            ┌─ asked for again ─▶ main ─▶ kept while its counter is above 0, which it costs one
//! new ─▶ small
//!            └─ else dropped ─▶ ghosts ─▶ returns to main
//! ```

use super::contents::Contents;
use super::queue::Queue;
use super::{Policy, Request};

/// What can be turned. [`Tuning::default`] is what Larder's engine does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The small queue's share of the capacity.
    pub small_share: f64,
    /// Ghosts for each item held.
    pub ghost_share: f64,
    /// Where an item's counter of hits ends.
    pub hits_max: u8,
    /// Keys dropped from main leave ghosts too.
    pub main_ghosts: bool,
    /// Items over 2 (8) times the mean size need 1 (2) hits more to reach main.
    pub size_aware: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        let (small_share, ghost_share) = (0.1, 0.9);
        Self { small_share, ghost_share, hits_max: 3, main_ghosts: true, size_aware: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    hits: u8,
    home: Home,
}

/// A small queue for what is new, a main one for what has proved itself, and ghosts.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: u64,
    tuning: Tuning,
    contents: Contents<Mark>,
    small: Queue,
    small_used: u64,
    main: Queue,
    ghosts: Queue,
}

impl S3Fifo {
    /// An empty cache of so many bytes.
    #[must_use]
    pub fn new(capacity: u64, tuning: Tuning) -> Self {
        Self {
            capacity,
            tuning,
            contents: Contents::new(),
            small: Queue::default(),
            small_used: 0,
            main: Queue::default(),
            ghosts: Queue::default(),
        }
    }

    fn remove_expired(&mut self, now_ms: u64) {
        while let Some((key, entry)) = self.contents.remove_expired(now_ms) {
            match entry.mark.home {
                Home::Small => {
                    self.small.remove(key);
                    self.small_used -= entry.size;
                }
                Home::Main => {
                    self.main.remove(key);
                }
            }
        }
    }

    fn insert(&mut self, request: &Request) {
        let size = u64::from(request.size);
        if size > self.capacity {
            return;
        }
        let returns = self.ghosts.remove(request.key);
        while self.used() + size > self.capacity {
            self.evict();
        }
        let home = if returns { Home::Main } else { Home::Small };
        self.contents.insert(request, Mark { hits: 0, home });
        if returns {
            self.main.push(request.key);
        } else {
            self.small.push(request.key);
            self.small_used += size;
        }
    }

    /// Drops an item, moves one to main, or lowers the counter of one there.
    fn evict(&mut self) {
        let small_capacity = self.tuning.small_share * self.capacity as f64;
        if self.small_used as f64 > small_capacity || self.main.is_empty() {
            self.leave_small();
        } else {
            self.leave_main();
        }
    }

    fn leave_small(&mut self) {
        let Some(key) = self.small.pop() else { return };
        let mean = self.used() as f64 / self.contents.len() as f64;
        let Some(entry) = self.contents.get_mut(key) else { return };
        self.small_used -= entry.size;
        if entry.mark.hits >= hits_wanted(self.tuning, entry.size as f64 / mean) {
            entry.mark = Mark { hits: 0, home: Home::Main };
            self.main.push(key);
        } else {
            self.drop_item(key, true);
        }
    }

    fn leave_main(&mut self) {
        let Some(key) = self.main.pop() else { return };
        let Some(entry) = self.contents.get_mut(key) else { return };
        if entry.mark.hits > 0 {
            entry.mark.hits -= 1;
            self.main.push(key);
        } else {
            self.drop_item(key, self.tuning.main_ghosts);
        }
    }

    fn drop_item(&mut self, key: u32, remember: bool) {
        self.contents.remove(key);
        if remember {
            self.ghosts.push(key);
        }
        let most = self.tuning.ghost_share * self.contents.len() as f64;
        while self.ghosts.len() as f64 > most {
            self.ghosts.pop();
        }
    }
}

/// Hits that take an item of so many mean sizes to main.
fn hits_wanted(tuning: Tuning, mean_sizes: f64) -> u8 {
    match mean_sizes {
        _ if !tuning.size_aware => 1,
        large if large > 8.0 => 3,
        medium if medium > 2.0 => 2,
        _ => 1,
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, request: &Request) -> bool {
        self.remove_expired(request.now_ms);
        if let Some(entry) = self.contents.get_mut(request.key) {
            entry.mark.hits = (entry.mark.hits + 1).min(self.tuning.hits_max);
            return true;
        }
        self.insert(request);
        false
    }

    fn used(&self) -> u64 {
        self.contents.used()
    }
}
