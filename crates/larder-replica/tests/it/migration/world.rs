//! The simulation: its steps, its faults, and the guarantees that it checks.

use super::coordinator::{Coordinator, GroupState, Request};
use super::node::{Acknowledged, Link, Message, Node};
use super::{
    CAS_LEN, GROUPS, LEASE, MARGIN, NODES, RECOVERY_STEPS, STEPS, WATCHED, index, name, one_in,
};
use crate::seeds::Random;
use larder_replica::{CasRange, Ownership, Process, Record, ShardMap};

pub(super) struct World {
    pub(super) random: Random,
    pub(super) time: u64,
    pub(super) has_faults: bool,
    /// Where a fault is possible, its probability is 1 divided by this number or by a multiple of
    /// it.
    pub(super) rarity: u64,
    pub(super) coordinator: Coordinator,
    /// Requests that may still take effect after they have timed out or their import has ended.
    pub(super) late_requests: Vec<Request>,
    pub(super) nodes: Vec<Node>,
    /// For each group, the changes that its follower lacks.
    pub(super) behind: Vec<Vec<(usize, Option<u64>)>>,
    pub(super) links: Vec<Link>,
    pub(super) acknowledged: [Acknowledged; WATCHED.len()],
    pub(super) trace: u64,
    pub(super) migrations: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let rarity = 1 << random.below(5);
        let mut nodes = Vec::new();
        for group in 0..GROUPS {
            for node in 0..NODES {
                let process = Process { node: format!("{group}-{node}"), incarnation: 1 };
                let items = if group == 0 { [Some(0); WATCHED.len()] } else { Default::default() };
                nodes.push(Node {
                    group,
                    process,
                    ownership: Ownership::new(&name(group)),
                    leadership_epoch: None,
                    ready: None,
                    next_cas: 1,
                    cas_end: 0,
                    serves_until: 0,
                    paused_until: 0,
                    items,
                    batch: None,
                    call: None,
                    import: None,
                    has_pending_swap: false,
                });
            }
        }
        let group_state = |group: usize| {
            let leader = nodes[group * NODES].process.clone();
            let cas = CasRange { from: 1, to: 1 };
            let record = Record { epoch: 1, leader, in_sync: Vec::new(), cas, unclean_after: None };
            GroupState { record, revision: 1, since: 1, until: 0, cas_end_of_members: 1 }
        };
        let groups = (0..GROUPS).map(group_state).collect();
        let map = (ShardMap::single_group("0"), 1);
        Self {
            random,
            time: 1,
            has_faults: true,
            rarity,
            coordinator: Coordinator { last: 1, map, groups },
            late_requests: Vec::new(),
            nodes,
            behind: vec![Vec::new(); GROUPS],
            links: Vec::new(),
            acknowledged: [Acknowledged::default(); WATCHED.len()],
            trace: seed,
            migrations: 0,
        }
    }

    /// Runs the simulation to its end. Returns a hash of all events, and the number of completed
    /// migrations.
    pub(super) fn run(mut self) -> (u64, u64) {
        for _ in 0..STEPS {
            self.step();
        }
        self.has_faults = false;
        self.nodes.iter_mut().for_each(|node| node.paused_until = 0);
        for _ in 0..RECOVERY_STEPS {
            // Without faults, no lease expires.
            (0..self.nodes.len()).for_each(|n| self.renew(n));
            self.step();
            let is_quiet =
                self.late_requests.is_empty() && self.coordinator.map.0.next_migration().is_none();
            let is_answered = |slot: &u16| (0..self.nodes.len()).any(|n| self.answers(n, *slot));
            if is_quiet && WATCHED.iter().all(is_answered) {
                return (self.trace, self.migrations);
            }
        }
        panic!("the migrations do not complete, or a slot has no leader that answers");
    }

    pub(super) fn record(&mut self, event: u64) {
        let mixed = (self.trace ^ event).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace = mixed ^ (mixed >> 32);
    }

    /// Returns whether a node may answer requests in this leadership.
    pub(super) fn is_serving(&self, n: usize, leadership: u32) -> bool {
        let node = &self.nodes[n];
        let is_ready = node.leadership_epoch == Some(leadership) && node.ready == Some(leadership);
        is_ready && self.time < node.serves_until
    }

    /// Returns whether a node's group owns a slot, according to the node's own map and releases.
    pub(super) fn has(&self, n: usize, slot: u16) -> bool {
        let ownership = &self.nodes[n].ownership;
        ownership.owner_of(slot).is_none_or(|owner| owner == ownership.group())
    }

    pub(super) fn answers(&self, n: usize, slot: u16) -> bool {
        let leads = self.nodes[n].leadership_epoch.is_some_and(|since| self.is_serving(n, since));
        leads && self.has(n, slot)
    }

    pub(super) fn check(&self) {
        for (i, slot) in WATCHED.iter().enumerate() {
            let answering: Vec<usize> =
                (0..self.nodes.len()).filter(|n| self.answers(*n, *slot)).collect();
            assert!(answering.len() <= 1, "{answering:?} answer for slot {slot}");
            for n in answering {
                let has = self.nodes[n].items[i];
                assert_eq!(
                    has,
                    self.acknowledged[i].value(),
                    "the value of slot {slot} at node {n}"
                );
            }
        }
    }

    pub(super) fn step(&mut self) {
        self.time += self.random.below(8);
        let mut n = index(&self.random, self.nodes.len());
        // In half of the steps, choose a leader, because most kinds of steps apply only to leaders.
        if one_in(&self.random, 2) {
            let leader = &self.coordinator.groups[n / NODES].record.leader;
            n = self.nodes.iter().position(|node| node.process == *leader).unwrap();
        }
        let choice = self.random.below(100);
        self.record(choice << 8 | n as u64);
        let is_paused = self.time < self.nodes[n].paused_until;
        match choice {
            0..12 => self.elect(n / NODES),
            12..24 if !is_paused => self.renew(n),
            24..32 if !is_paused => self.refresh_map(n),
            32..44 if !is_paused => self.answer(n),
            44..56 if !is_paused => (0..=self.random.below(4)).for_each(|_| self.run_importer(n)),
            56..64 if !is_paused => self.run_exporter(n),
            64..74 if !is_paused => self.start_write(),
            74..84 if !is_paused => self.finish_write(n),
            84..88 if one_in(&self.random, 2 * self.rarity) => self.carry_out_late(),
            88..91 => self.follow(n / NODES),
            91 if !is_paused => self.note_leader(n),
            92 if !is_paused => self.remove_foreign_items(n),
            93..99 if !self.has_faults || !one_in(&self.random, self.rarity) => (),
            93 => {
                self.nodes[n].paused_until = self.time + self.random.below(2 * LEASE);
            }
            94 => self.fail_import(n),
            95 => self.stop_leading(n),
            96 => self.close_links(n),
            98 if one_in(&self.random, 8) => self.time += LEASE,
            99 if self.has_faults => self.plan(),
            _ => (),
        }
        self.check();
    }

    /// Elects a new leader for a group whose leader has no lease.
    pub(super) fn elect(&mut self, group: usize) {
        if self.time <= self.coordinator.groups[group].until {
            return;
        }
        let n = group * NODES + index(&self.random, NODES);
        let (revision, until) = (self.coordinator.next(), self.time + LEASE);
        let group_state = &mut self.coordinator.groups[group];
        let epoch = group_state.record.epoch + 1;
        let leader = self.nodes[n].process.clone();
        let from = group_state.record.cas.to.max(group_state.cas_end_of_members);
        let cas = CasRange { from, to: from + CAS_LEN };
        group_state.record =
            Record { epoch, leader, in_sync: Vec::new(), cas, unclean_after: None };
        (group_state.revision, group_state.since, group_state.until) = (revision, epoch, until);
        let node = &mut self.nodes[n];
        (node.leadership_epoch, node.ready) = (Some(epoch), None);
        (node.next_cas, node.cas_end) = (cas.from, cas.to);
        node.serves_until = until - MARGIN;
        // Before a node starts to follow or to lead, it waits until its batches have ended.
        node.batch = None;
        // The other node becomes the follower and has the same items.
        self.behind[group].clear();
        let items = node.items;
        for other in group * NODES..(group + 1) * NODES {
            self.nodes[other].items = items;
        }
    }

    pub(super) fn renew(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let group_state = &mut self.coordinator.groups[node.group];
        let leads = group_state.record.leader == node.process
            && node.leadership_epoch == Some(group_state.since);
        if leads && self.time <= group_state.until {
            group_state.until = self.time + LEASE;
            node.serves_until = group_state.until - MARGIN;
        }
    }

    /// Ends a node's leadership if the coordinator has another leader.
    pub(super) fn note_leader(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if self.coordinator.groups[node.group].record.leader != node.process {
            node.leadership_epoch = None;
        }
    }

    /// With a probability of 1/4, ends the lease of a leader early, as in a leadership transfer.
    pub(super) fn stop_leading(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let group_state = &mut self.coordinator.groups[node.group];
        if group_state.record.leader == node.process && one_in(&self.random, 4) {
            (node.serves_until, group_state.until) = (self.time, self.time);
        }
    }

    pub(super) fn plan(&mut self) {
        let mut map = self.coordinator.map.0.clone();
        let group = name(index(&self.random, GROUPS));
        let planned = match self.random.below(16) {
            0 => map.cancel() > 0,
            1..5 => map.plan_drain(&group).is_ok(),
            5..10 => map.plan_migration(&group, None).is_ok(),
            _ => map.plan_migration(&group, Some(1 + index(&self.random, 3000))).is_ok(),
        };
        if planned {
            self.coordinator.map = (map, self.coordinator.next());
        }
    }

    pub(super) fn carry_out_late(&mut self) {
        if !self.late_requests.is_empty() {
            let request =
                self.late_requests.swap_remove(index(&self.random, self.late_requests.len()));
            self.coordinator.answer(&request);
        }
    }

    /// Applies a random number of the leader's outstanding changes at the follower.
    pub(super) fn follow(&mut self, group: usize) {
        let len = index(&self.random, self.behind[group].len() + 1);
        let changes: Vec<_> = self.behind[group].drain(..len).collect();
        self.apply_to_followers(group, &changes);
    }

    /// Applies all of the leader's outstanding changes at the follower.
    pub(super) fn wait_for_followers(&mut self, group: usize) {
        let changes = std::mem::take(&mut self.behind[group]);
        self.apply_to_followers(group, &changes);
    }

    pub(super) fn apply_to_followers(&mut self, group: usize, changes: &[(usize, Option<u64>)]) {
        let leader = self.coordinator.groups[group].record.leader.clone();
        for node in
            self.nodes.iter_mut().filter(|node| node.group == group && node.process != leader)
        {
            changes.iter().for_each(|(i, value)| node.items[*i] = *value);
        }
    }

    /// Changes an item of a leader, and sends the change on the connections that export its slot.
    pub(super) fn change(&mut self, n: usize, i: usize, value: Option<u64>) {
        self.nodes[n].items[i] = value;
        self.behind[self.nodes[n].group].push((i, value));
        for link in self.links.iter_mut().filter(|link| link.exporter == n && !link.is_closed) {
            if link.planned.slots.contains(WATCHED[i]) {
                link.sent.push_back(Message::Item(i, value));
            }
        }
    }

    /// Draws a CAS value; `None` if the leader has no values left. A leader with few values left
    /// reserves more at the coordinator, or extends its range with its members' acknowledgements as
    /// if the coordinator did not reply.
    fn draw(&mut self, n: usize) -> Option<u64> {
        let cas = self.nodes[n].next_cas;
        if self.nodes[n].cas_end.saturating_sub(cas) < CAS_LEN / 2 {
            if one_in(&self.random, 2) {
                self.reserve_cas(n, cas + CAS_LEN);
            } else {
                let node = &mut self.nodes[n];
                let group_state = &mut self.coordinator.groups[node.group];
                // After a later election, this leader cannot extend its range: the members of the
                // new record do not acknowledge a higher end of the range.
                if node.leadership_epoch == Some(group_state.since) {
                    node.cas_end = node.cas_end.max(cas + CAS_LEN);
                    group_state.cas_end_of_members =
                        group_state.cas_end_of_members.max(node.cas_end);
                }
            }
        }
        // Skip some values, as if other writers had drawn them.
        let left = self.nodes[n].cas_end.checked_sub(cas).filter(|left| *left > 0)?;
        self.nodes[n].next_cas = cas + 1 + self.random.below(left);
        Some(cas)
    }

    /// Starts a write to a random slot at the leader that answers for it.
    pub(super) fn start_write(&mut self) {
        let i = index(&self.random, WATCHED.len());
        let answers = |n: &usize| self.answers(*n, WATCHED[i]);
        let leader = (0..self.nodes.len()).find(answers);
        if let Some(n) = leader {
            self.nodes[n].batch.get_or_insert(i);
        }
    }

    pub(super) fn finish_write(&mut self, n: usize) {
        let Some(i) = self.nodes[n].batch.take() else { return };
        if self.time >= self.nodes[n].serves_until {
            return;
        }
        let is_removed = one_in(&self.random, 3);
        let Some(cas) = self.draw(n) else { return };
        let Acknowledged { change, cas: last, .. } = self.acknowledged[i];
        let group = self.nodes[n].group;
        assert!(cas > last, "group {group} gives the CAS value {cas} after {last}");
        self.acknowledged[i] = Acknowledged { change: change + 1, is_removed, cas };
        self.change(n, i, self.acknowledged[i].value());
        self.wait_for_followers(group);
    }
}
