//! Requests to the coordinator, and the steps of an importing leader.

use super::coordinator::{Answer, Request};
use super::node::{Call, Import, Link, Message, Purpose};
use super::world::World;
use super::{CAS_LEN, WATCHED, number, one_in};
use larder_replica::{Completion, FinishedImport, Migration, Record, Revision};

impl World {
    pub(super) fn send_request(&mut self, n: usize, request: Request, purpose: Purpose) {
        self.nodes[n].call = Some(Call { request, purpose, answer: None });
    }

    /// Sends a request that reads the map, or that revokes a failed release.
    pub(super) fn refresh_map(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.call.is_some() {
            return;
        }
        node.ownership.forget_earlier_release(node.leadership_epoch);
        if let (true, Some(map)) = (node.ownership.has_failed_release(), node.ownership.map())
            && one_in(&self.random, 2)
        {
            let swap = Request::Swap(node.ownership.revision(), map.clone(), Vec::new());
            self.send_request(n, swap, Purpose::RevokeRelease);
        } else {
            let purpose = Purpose::Refresh(node.leadership_epoch);
            self.send_request(n, Request::Read, purpose);
        }
    }

    /// Advances a node's request: it takes effect, receives its reply, or times out.
    pub(super) fn answer(&mut self, n: usize) {
        let Some(mut call) = self.nodes[n].call.take() else { return };
        if self.has_faults && one_in(&self.random, 5 * self.rarity) {
            if call.answer.is_none() && one_in(&self.random, 2) {
                self.late_requests.push(call.request.clone());
            }
            self.handle_timeout(n, &call);
        } else if let Some(answer) = call.answer {
            self.handle_answer(n, call.request, call.purpose, answer);
        } else {
            call.answer = Some(self.coordinator.answer(&call.request));
            self.nodes[n].call = Some(call);
        }
    }

    pub(super) fn handle_timeout(&mut self, n: usize, call: &Call) {
        match (call.purpose, &mut self.nodes[n].import) {
            (Purpose::FinishImport, Some(import)) => {
                import.has_pending_swap |= matches!(call.request, Request::Swap(..));
            }
            (Purpose::StartImport | Purpose::RequestRelease, Some(_)) => self.abandon_import(n),
            _ => (),
        }
    }

    pub(super) fn handle_answer(
        &mut self,
        n: usize,
        request: Request,
        purpose: Purpose,
        answer: Answer,
    ) {
        let node = &mut self.nodes[n];
        let records = match (answer, request) {
            (Answer::Read(((map, revision), records)), _) => {
                node.ownership.update_map(map, revision);
                records
            }
            (Answer::Swapped(Some(revision)), Request::Swap(_, map, _)) => {
                match purpose {
                    Purpose::RevokeRelease => node.ownership.revoke_release(map, revision),
                    _ => drop(node.ownership.update_map(map, revision)),
                }
                match purpose {
                    Purpose::SupersedeSwaps => node.has_pending_swap = false,
                    Purpose::FinishImport => {
                        self.migrations += 1;
                        self.finish_import(n);
                    }
                    _ => (),
                }
                return;
            }
            _ => return,
        };
        match purpose {
            Purpose::Refresh(leadership_epoch) if node.leadership_epoch == leadership_epoch => {
                node.ready = leadership_epoch;
            }
            Purpose::SupersedeSwaps => {
                let map = node.ownership.map().unwrap().clone();
                let swap = Request::Swap(node.ownership.revision(), map, Vec::new());
                self.send_request(n, swap, Purpose::SupersedeSwaps);
            }
            Purpose::StartImport => self.start_import(n, &records),
            Purpose::RequestRelease => self.request_release(n, &records),
            Purpose::FinishImport => self.complete_import(n, &records),
            _ => (),
        }
    }

    pub(super) fn next_migration(&self, n: usize) -> Option<Migration> {
        self.nodes[n].ownership.map()?.next_migration()
    }

    /// Returns the next migration if the node's group is the importing group.
    pub(super) fn next_import(&self, n: usize) -> Option<Migration> {
        self.next_migration(n).filter(|planned| number(&planned.to) == self.nodes[n].group)
    }

    /// Starts the node's next import, runs a step of the current import, or abandons it.
    pub(super) fn run_importer(&mut self, n: usize) {
        let Some(leadership) = self.nodes[n].leadership_epoch else {
            return self.abandon_import(n);
        };
        if !self.is_serving(n, leadership) {
            return self.abandon_import(n);
        }
        if self.nodes[n].call.is_some() {
            return;
        }
        let Some(import) = &self.nodes[n].import else {
            if self.nodes[n].has_pending_swap {
                return self.send_request(n, Request::Read, Purpose::SupersedeSwaps);
            }
            let Some(planned) = self.next_import(n) else { return };
            self.nodes[n].import = Some(Import {
                planned,
                leadership,
                link: None,
                has_items: false,
                revision: None,
                barrier: None,
                has_pending_swap: false,
            });
            return self.send_request(n, Request::Read, Purpose::StartImport);
        };
        if import.leadership != leadership {
            return self.abandon_import(n);
        }
        let group = self.nodes[n].group;
        let (has_items, revision, barrier) = (import.has_items, import.revision, import.barrier);
        let Some((link, ..)) = import.link else { return self.abandon_import(n) };
        if let Some(cas_end) = barrier {
            // The exporter may have extended its range of CAS values since the importer requested
            // the release.
            if !self.raise_cas(n, cas_end) {
                return self.abandon_import(n);
            }
            self.wait_for_followers(group);
            return self.send_request(n, Request::Read, Purpose::FinishImport);
        }
        if has_items && revision.is_none() && one_in(&self.random, 3) {
            self.wait_for_followers(group);
            return self.send_request(n, Request::Read, Purpose::RequestRelease);
        }
        let slots = &import.planned.slots;
        let has_one = WATCHED.iter().any(|slot| slots.contains(*slot) && self.has(n, *slot));
        match self.links[link].sent.pop_front() {
            Some(_) if has_one => self.abandon_import(n),
            Some(Message::Item(i, value)) => self.change(n, i, value),
            Some(Message::SyncEnd) => self.nodes[n].import.as_mut().unwrap().has_items = true,
            Some(Message::Barrier(cas_end)) => {
                self.nodes[n].import.as_mut().unwrap().barrier = Some(cas_end);
            }
            None if self.links[link].is_closed => self.abandon_import(n),
            None => (),
        }
    }

    pub(super) fn start_import(&mut self, n: usize, records: &[(Record, Revision)]) {
        let Some(import) = &self.nodes[n].import else { return };
        let (planned, leadership) = (import.planned.clone(), import.leadership);
        if self.next_migration(n).as_ref() != Some(&planned) || !self.is_serving(n, leadership) {
            return self.abandon_import(n);
        }
        let record = &records[number(&planned.from)].0;
        let exporter = self.nodes.iter().position(|node| node.process == record.leader).unwrap();
        let node = &self.nodes[exporter];
        let leads = node.leadership_epoch.is_some() && node.leadership_epoch == node.ready;
        let accepts = leads && self.next_migration(exporter).as_ref() == Some(&planned);
        // In this model, each election starts a new leadership, so the record's epoch identifies
        // the leadership.
        if !accepts || node.leadership_epoch != Some(record.epoch) {
            return self.abandon_import(n);
        }
        let exporter_leadership = node.leadership_epoch.unwrap();
        let exporter_items = node.items;
        self.remove(n);
        let in_slots =
            |i: &usize| planned.slots.contains(WATCHED[*i]) && exporter_items[*i].is_some();
        let copy = (0..WATCHED.len()).filter(in_slots).map(|i| Message::Item(i, exporter_items[i]));
        let sent = copy.chain([Message::SyncEnd]).collect();
        self.links.push(Link {
            exporter,
            leadership: exporter_leadership,
            planned,
            sent,
            is_release_requested: false,
            has_released: false,
            has_sent_barrier: false,
            has_importer_left: false,
            is_closed: false,
        });
        let link = self.links.len() - 1;
        let import = self.nodes[n].import.as_mut().unwrap();
        import.link = Some((link, record.leader.clone(), record.epoch));
    }

    /// Makes a leader draw only CAS values of at least `floor`. If few reserved values are left
    /// above `floor`, reserves more. Returns whether this succeeds.
    pub(super) fn raise_cas(&mut self, n: usize, floor: u64) -> bool {
        let next = self.nodes[n].next_cas.max(floor);
        let is_reserved =
            next == self.nodes[n].next_cas || next + CAS_LEN / 2 < self.nodes[n].cas_end;
        let is_raised = is_reserved || self.reserve_cas(n, next + CAS_LEN);
        if is_raised {
            self.nodes[n].next_cas = next;
        }
        is_raised
    }

    /// Extends a leader's CAS values in its group's record. Returns false if the group has another
    /// leader.
    pub(super) fn reserve_cas(&mut self, n: usize, end: u64) -> bool {
        let node = &mut self.nodes[n];
        let group_state = &self.coordinator.groups[node.group];
        if group_state.record.leader != node.process
            || node.leadership_epoch != Some(group_state.since)
        {
            return false;
        }
        let revision = self.coordinator.next();
        let group_state = &mut self.coordinator.groups[node.group];
        let to = end.max(node.cas_end);
        (group_state.record.cas.to, group_state.revision, node.cas_end) = (to, revision, to);
        true
    }

    pub(super) fn request_release(&mut self, n: usize, records: &[(Record, Revision)]) {
        let planned = self.next_migration(n);
        let revision = self.nodes[n].ownership.revision();
        let Some(import) = &mut self.nodes[n].import else { return };
        if planned.as_ref() != Some(&import.planned) {
            return self.abandon_import(n);
        }
        let Some((link, ..)) = import.link else { return };
        let from = number(&import.planned.from);
        import.revision = Some(revision);
        if !self.raise_cas(n, records[from].0.cas.to) {
            return self.abandon_import(n);
        }
        self.links[link].is_release_requested = true;
    }

    pub(super) fn complete_import(&mut self, n: usize, records: &[(Record, Revision)]) {
        let node = &self.nodes[n];
        let Some(import) = &node.import else { return };
        let (Some((_, exporter, epoch)), Some(revision)) = (&import.link, import.revision) else {
            return;
        };
        let exporter = (exporter, *epoch);
        let importer = (&node.process, import.leadership);
        let finished = FinishedImport { migration: &import.planned, revision, exporter, importer };
        let map = (node.ownership.map().unwrap(), node.ownership.revision());
        let record_of = |group: &str| {
            let (record, revision) = &records[number(group)];
            Some((record, *revision))
        };
        match finished.completion(map, record_of) {
            Completion::ReplaceMap(map, records) => {
                self.send_request(
                    n,
                    Request::Swap(revision, map, records.to_vec()),
                    Purpose::FinishImport,
                );
            }
            Completion::AlreadyDone | Completion::Refused(_) => self.finish_import(n),
        }
    }

    /// Abandons an import. If a swap of the import has no reply yet, the swap stays pending.
    pub(super) fn abandon_import(&mut self, n: usize) {
        let Some(import) = &self.nodes[n].import else { return };
        let has_pending_swap = import.has_pending_swap;
        self.finish_import(n);
        self.nodes[n].has_pending_swap |= has_pending_swap;
    }

    pub(super) fn finish_import(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some(import) = node.import.take() else { return };
        // The last request of the import may still take effect.
        let is_of_import = |call: &mut Call| {
            matches!(
                call.purpose,
                Purpose::StartImport | Purpose::RequestRelease | Purpose::FinishImport
            )
        };
        if let Some(call) = node.call.take_if(is_of_import) {
            node.has_pending_swap |= matches!(call.request, Request::Swap(..));
            if call.answer.is_none() {
                self.late_requests.push(call.request);
            }
        }
        if let Some((link, ..)) = import.link {
            self.links[link].has_importer_left = true;
        }
    }

    pub(super) fn fail_import(&mut self, n: usize) {
        if one_in(&self.random, 3) {
            self.abandon_import(n);
        }
    }
}
