//! The steps of an exporting leader, and the removal of items that belong to other groups.

use super::WATCHED;
use super::node::{Link, Message};
use super::world::World;
use larder_replica::Migration;

impl World {
    /// Runs the next step of each export connection of a node.
    pub(super) fn run_exporter(&mut self, n: usize) {
        for link in 0..self.links.len() {
            let Link {
                exporter,
                is_closed,
                has_importer_left,
                leadership,
                is_release_requested,
                has_released,
                has_sent_barrier,
                ..
            } = self.links[link];
            if exporter != n || is_closed {
                continue;
            }
            let node = &mut self.nodes[n];
            let leads = node.leadership_epoch == Some(leadership) && node.ready == Some(leadership);
            if has_importer_left || !leads {
                self.end_export(link);
            } else if is_release_requested && !has_released {
                let Migration { slots, to, .. } = &self.links[link].planned;
                if node.ownership.release(slots, to, leadership) {
                    self.links[link].has_released = true;
                } else {
                    self.end_export(link);
                }
            } else if has_released && !has_sent_barrier && node.batch.is_none() {
                let cas_end = self.nodes[n].next_cas;
                self.links[link].sent.push_back(Message::Barrier(cas_end));
                self.links[link].has_sent_barrier = true;
            }
        }
    }

    pub(super) fn end_export(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.is_closed = true;
        if link.has_released {
            self.nodes[link.exporter].ownership.close_release();
        }
    }

    /// Closes all export connections of a node.
    pub(super) fn close_links(&mut self, n: usize) {
        for link in 0..self.links.len() {
            if self.links[link].exporter == n && !self.links[link].is_closed {
                self.end_export(link);
            }
        }
    }

    /// Removes the items of slots that other groups own. Does nothing if the node does not lead, if
    /// it imports slots, or if the next planned migration is an import by its group.
    pub(super) fn remove_foreign_items(&mut self, n: usize) {
        let Some(leadership) = self.nodes[n].leadership_epoch else { return };
        // A swap without a reply may already have completed a planned import.
        let is_idle = self.nodes[n].import.is_none() && self.next_import(n).is_none();
        if self.is_serving(n, leadership) && is_idle {
            self.remove(n);
        }
    }

    pub(super) fn remove(&mut self, n: usize) {
        let own = self.nodes[n].ownership.slots();
        for (i, slot) in WATCHED.iter().enumerate() {
            if !own.contains(*slot) && self.nodes[n].items[i].is_some() {
                self.change(n, i, None);
            }
        }
    }
}
