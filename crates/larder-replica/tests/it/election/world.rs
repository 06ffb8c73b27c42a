//! The coordinator, the faults and the checks.

use super::nodes::*;
use crate::seeds::Random;
use larder_replica::{
    Command, DoubtPolicy, GroupView, LEADER_LEASE, Member, MemberSettings, Millis, Process, Record,
    Role,
};
use std::collections::BTreeMap;

/// Returns the member's next request to the coordinator. `next_cas` is the first CAS value that the
/// member's process has not drawn.
fn next_command(member: &mut Member, now: Millis, next_cas: u64) -> Option<Command> {
    member.note_next_cas(now, next_cas);
    member.next(now)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let unclean_after = (random.below(2) == 0).then(|| 1000 + random.below(2000));
        let nodes = (0..NODES).map(|number| Node {
            name: format!("n{number}"),
            pace: 990 + random.below(21),
            offset: random.below(1_000_000),
            member: None,
            request: None,
            paused_until: 0,
            next_heartbeat: 0,
            next_lease: 0,
            read_state: None,
            renewed: None,
            connected: None,
            next_connect: 0,
            changes: Changes::new(),
            followers: BTreeMap::new(),
            ready_epoch: None,
            next_cas: 1,
        });
        let nodes = nodes.collect();
        let mut world = Self {
            random,
            unclean_after,
            was_unclean: false,
            time: 0,
            nodes,
            record: None,
            revision: 0,
            deposed: BTreeMap::new(),
            promised: BTreeMap::new(),
            leases: BTreeMap::new(),
            is_coordinator_down: false,
            is_coordinator_cut: [false; NODES],
            is_cut: [[false; NODES]; NODES],
            messages: Vec::new(),
            next_change: 0,
            acknowledged: Changes::new(),
            drawn: BTreeMap::new(),
            second_failure: None,
            strays: Vec::new(),
            trace: seed,
        };
        (0..NODES).for_each(|number| world.start(number));
        world
    }

    pub(super) fn run(mut self) -> u64 {
        while self.time < FAULTS {
            self.fault();
            self.step();
        }
        self.is_coordinator_down = false;
        self.is_coordinator_cut = [false; NODES];
        self.is_cut = [[false; NODES]; NODES];
        for number in 0..NODES {
            self.nodes[number].paused_until = 0;
            if self.nodes[number].member.is_none() {
                self.start(number);
            }
        }
        let mut serving = 0;
        while self.time < FAULTS + RECOVERY {
            self.step();
            let leads = (0..NODES).filter(|number| self.may_answer(*number)).count();
            serving = if leads == 1 { serving + STEP } else { 0 };
        }
        assert!(serving > 0, "no leader {RECOVERY} ms after the last fault: {:?}", self.record);
        while self.time < FAULTS + RECOVERY + QUIET {
            self.step();
        }
        let in_sync = self.record.iter().flat_map(|record| &record.in_sync);
        let mut in_sync: Vec<Process> = in_sync.cloned().collect();
        in_sync.sort();
        let all: Vec<Process> = self.nodes.iter().filter_map(Node::process).collect();
        assert_eq!(in_sync, all, "members in sync after {QUIET} ms");
        self.trace
    }

    pub(super) fn note(&mut self, event: u64) {
        let mixed = (self.trace ^ event).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace = mixed ^ (mixed >> 32);
    }

    pub(super) fn start(&mut self, number: usize) {
        let (incarnation, unclean_after) = (self.random.below(u64::MAX), self.unclean_after);
        let node = &mut self.nodes[number];
        let me = Process { node: node.name.clone(), incarnation };
        node.member =
            Some(Member::new(MemberSettings { me, doubt: DoubtPolicy::Stop, unclean_after }));
        (node.request, node.connected, node.next_lease) = (None, None, 0);
        (node.read_state, node.renewed) = (None, None);
        (node.changes, node.ready_epoch) = (Changes::new(), None);
        // With a probability of 1/2, the counter survives the restart, as in a process that
        // restores its items from a memory region.
        if self.random.below(2) == 0 {
            node.next_cas = 1;
        }
        node.followers.clear();
    }

    pub(super) fn fault(&mut self) {
        if let Some((_, number)) = self.second_failure.take_if(|(at, _)| *at <= self.time) {
            self.nodes[number].member = None;
        }
        let number = self.random.below(NODES as u64) as usize;
        let other = self.random.below(NODES as u64) as usize;
        match self.random.below(4000) {
            0..6 => self.nodes[number].member = None,
            6..30 if self.nodes[number].member.is_none() => self.start(number),
            30..40 => {
                let time = 100 + self.random.below(4000);
                self.nodes[number].paused_until = self.time + time;
            }
            40..60 => self.is_coordinator_cut[number] = !self.is_coordinator_cut[number],
            60..80 => self.is_cut[number][other] = !self.is_cut[number][other],
            80..90 => {
                let cut = !self.is_cut[number][other];
                (self.is_cut[number][other], self.is_cut[other][number]) = (cut, cut);
            }
            90..96 => self.is_coordinator_down = !self.is_coordinator_down,
            // A leader tries to transfer its leadership.
            99..110 => self.transfer(number, other),
            // The coordinator drops leases too early, as after a change of its own leader.
            96..99 => self.leases.clear(),
            _ => (),
        }
    }

    pub(super) fn transfer(&mut self, number: usize, other: usize) {
        let node = &mut self.nodes[number];
        let now = node.clock(self.time);
        let Some(member) = &mut node.member else { return };
        let candidates = member.start_transfer(now, None);
        if let Some(next) = candidates.get(other % candidates.len().max(1)) {
            // The members that have all changes stay in sync. This leader is one of them.
            let has_all = |process: &&Process| {
                node.followers.get(process).is_some_and(|of| of.changes.is_superset(&node.changes))
            };
            if !has_all(&next) {
                return;
            }
            let named = member.named_in_sync();
            let others = named.iter().filter(has_all).filter(|process| *process != next);
            let me = member.me().clone();
            let in_sync = std::iter::once(next).chain(others).chain([&me]).cloned().collect();
            member.note_next_cas(now, node.next_cas);
            member.transfer_to(in_sync);
        }
    }

    pub(super) fn step(&mut self) {
        self.time += STEP;
        let time = self.time;
        self.leases.retain(|_, (_, ends)| *ends > time);
        let strays = std::mem::take(&mut self.strays);
        let (arrived, under_way) = strays.into_iter().partition(|(arrives, ..)| *arrives <= time);
        self.strays = under_way;
        let arrived: Vec<(u64, usize, Command)> = arrived;
        arrived
            .into_iter()
            .for_each(|(_, requester, command)| drop(self.answer(requester, command)));
        for number in 0..NODES {
            self.arrive(number);
            if self.is_awake(number) {
                self.poll_member(number);
                self.lead(number);
                self.renew_lease(number);
                self.send_heartbeats(number);
                self.connect(number);
            }
        }
        self.deliver();
        for number in 0..NODES {
            self.check(number);
        }
    }

    pub(super) fn is_awake(&self, number: usize) -> bool {
        self.nodes[number].member.is_some() && self.nodes[number].paused_until <= self.time
    }

    pub(super) fn reaches_coordinator(&self, number: usize) -> bool {
        !self.is_coordinator_down && !self.is_coordinator_cut[number]
    }

    /// Delivers a request to the coordinator, which answers it. By then, the node may be paused or
    /// stopped.
    pub(super) fn arrive(&mut self, number: usize) {
        let is_reached = self.reaches_coordinator(number);
        let Some(request) = &self.nodes[number].request else { return };
        if request.answer.is_some() || request.arrives > self.time || !is_reached {
            return;
        }
        let command = request.command.clone();
        let answer = self.answer(number, command);
        let arrives = self.time + self.random.below(200);
        if let Some(request) = &mut self.nodes[number].request {
            request.answer = Some((arrives, answer));
        }
    }

    /// Returns the processes with a lease, as a map from the node to the incarnation.
    fn live(&self) -> BTreeMap<String, u64> {
        let leases = self.leases.iter();
        leases.map(|(node, (incarnation, _))| (node.clone(), *incarnation)).collect()
    }

    pub(super) fn answer(&mut self, requester: usize, command: Command) -> Answer {
        match command {
            Command::Read => Answer::Read(GroupView {
                record: self.record.clone(),
                revision: self.revision,
                live: self.live(),
                ..GroupView::default()
            }),
            Command::Swap(revision, _) if revision != self.revision => Answer::Swapped(None),
            Command::Swap(_, record) => {
                self.check_record(requester, &record);
                self.note(record.epoch.into());
                self.revision += 1;
                self.record = Some(record);
                Answer::Swapped(Some(self.revision))
            }
        }
    }

    /// Checks the record of a swap before the swap takes effect: its epoch, and that its leader has
    /// all acknowledged changes and breaks no election promise.
    pub(super) fn check_record(&mut self, requester: usize, record: &Record) {
        assert!(record.in_sync.contains(&record.leader) && record.is_valid());
        let Some(before) = &self.record else { return assert_eq!(record.epoch, 1) };
        if record.leader == before.leader {
            return assert_eq!(record.epoch, before.epoch);
        }
        assert_eq!(record.epoch, before.epoch + 1, "one leader in each epoch");
        let has_items = before.in_sync.contains(&record.leader);
        let none_runs = before
            .in_sync
            .iter()
            .all(|process| self.nodes.iter().all(|node| node.process().as_ref() != Some(process)));
        let is_unclean = !has_items && !none_runs && before.unclean_after.is_some();
        assert!(has_items || none_runs || is_unclean, "{record:?} after {before:?}");
        self.was_unclean |= is_unclean;
        if none_runs || is_unclean {
            self.acknowledged.clear();
            // All members in sync have ended, so no process knows which values the leader has drawn
            // without the coordinator.
            self.drawn.retain(|start, _| *start < before.cas.to);
            self.drawn.values_mut().for_each(|end| *end = (*end).min(before.cas.to));
        } else {
            let next =
                self.nodes.iter().find(|node| node.process().as_ref() == Some(&record.leader));
            // If the process has ended by now, it leads until the other members notice its end.
            if let Some(next) = next {
                let lost: Vec<&u64> = self.acknowledged.difference(&next.changes).collect();
                assert!(lost.is_empty(), "{record:?} after {before:?}: without {lost:?}");
            }
        }
        let runs = |process: &Process| {
            self.nodes.iter().any(|node| node.process().as_ref() == Some(process))
        };
        let promised =
            self.promised.get(&record.leader).filter(|(epoch, _)| *epoch == before.epoch);
        let promised = promised.map_or(0, |(_, until)| *until);
        let is_transfer = self.nodes[requester].name == before.leader.node;
        assert!(
            !runs(&before.leader) || self.time >= promised || is_transfer || is_unclean,
            "{record:?}: the member stands for election in spite of its promise"
        );
        self.deposed.insert(before.leader.clone(), self.time);
    }

    pub(super) fn poll_member(&mut self, number: usize) {
        let (delay, stray_delay) = (self.random.below(150), self.random.below(3000));
        let (time, strays) = (self.time, &mut self.strays);
        let node = &mut self.nodes[number];
        let now = node.clock(time);
        let Some(member) = &mut node.member else { return };
        if let Some(request) = node.request.take() {
            match request.answer {
                Some((arrives, answer)) if arrives <= time => match answer {
                    Answer::Read(view) => {
                        node.read_state = Some((view.revision, view.live.clone()));
                        member.handle_view(now, Some(view));
                    }
                    Answer::Swapped(revision) => member.handle_swap(now, Some(revision)),
                },
                answer if request.times_out <= time => match request.command {
                    Command::Read => {
                        node.read_state = None;
                        member.handle_view(now, None);
                    }
                    Command::Swap(..) => {
                        member.handle_swap(now, None);
                        if answer.is_none() {
                            strays.push((time + stray_delay, number, request.command));
                        }
                    }
                },
                answer => node.request = Some(PendingRequest { answer, ..request }),
            }
        }
        if node.request.is_none()
            && let Some(command) = next_command(member, now, node.next_cas)
        {
            let is_unchanged = node.renewed.as_ref().is_some_and(|(at, state)| {
                node.read_state.as_ref() == Some(state) && time - at < RENEWAL_AGE_MAX
            });
            if command == Command::Read && is_unchanged && member.skip_read(now) {
                return;
            }
            let (arrives, times_out) = (time + delay, time + REQUEST_TIMEOUT);
            node.request = Some(PendingRequest { command, arrives, answer: None, times_out });
        }
    }

    pub(super) fn renew_lease(&mut self, number: usize) {
        let is_reached = self.reaches_coordinator(number);
        let node = &mut self.nodes[number];
        if node.next_lease > self.time {
            return;
        }
        if !is_reached {
            node.renewed = None;
            return;
        }
        node.next_lease = self.time + LEASE_RENEWAL_INTERVAL;
        if let Some(process) = node.process() {
            self.leases.insert(process.node, (process.incarnation, self.time + LEASE));
        }
        let state = (self.revision, self.live());
        let node = &mut self.nodes[number];
        if let Some(member) = &mut node.member
            && node.read_state.as_ref().is_some_and(|before| *before != state)
        {
            member.read_soon();
        }
        node.renewed = Some((self.time, state));
    }

    pub(super) fn may_answer(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        let now = node.clock(self.time);
        self.is_awake(number)
            && node.member.as_ref().is_some_and(|member| {
                matches!(member.role(), Role::Leader { .. }) && now < member.serves_until()
            })
    }

    /// Checks that a node that answers requests either leads, or was replaced at most one leader
    /// lease ago (one second, plus 3 % for clock rates and steps).
    pub(super) fn check(&mut self, number: usize) {
        if !self.may_answer(number) {
            return;
        }
        self.note(number as u64);
        let process = self.nodes[number].process().expect("a node that answers runs");
        let leads = self.record.as_ref().is_some_and(|record| record.leader == process);
        let deposed = self.deposed.get(&process).copied();
        let is_late = deposed.is_some_and(|at| self.time > at + LEADER_LEASE * 102 / 100 + STEP);
        assert!(
            leads || !is_late,
            "{process:?} answers {} ms after it was replaced",
            self.time - deposed.unwrap_or(0)
        );
    }
}
