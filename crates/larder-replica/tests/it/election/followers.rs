//! The model of leaders and followers: connections, syncs, changes and acknowledgements.

use super::nodes::*;
use larder_replica::{ElectionPromise, Millis, PROMISE_TIME, Process, Role};
use std::collections::BTreeSet;

impl World {
    /// If the node leads and answers requests, makes a change, and acknowledges changes that all
    /// members in sync have.
    pub(super) fn lead(&mut self, number: usize) {
        let answers = self.may_answer(number);
        let node = &mut self.nodes[number];
        let now = node.clock(self.time);
        let Some(member) = &mut node.member else { return };
        let Role::Leader { starts_empty, .. } = member.role() else {
            node.ready_epoch = None;
            return;
        };
        if node.ready_epoch != member.leadership_epoch() {
            node.ready_epoch = member.leadership_epoch();
            node.followers.clear();
            if starts_empty {
                node.changes.clear();
            }
            member.note_ready(now);
            if self.time < FAULTS && self.random.below(4) == 0 {
                self.second_failure = Some((self.time + self.random.below(600), number));
            }
            // Close the connections of the followers: the senders of an earlier leadership have
            // ended.
            let leader = node.process();
            let closes =
                |node: &&mut Node| node.connected.as_ref().map(|of| &of.leader) == leader.as_ref();
            self.nodes.iter_mut().filter(closes).for_each(|node| node.connected = None);
            return;
        }
        // If a member that was out of sync has replaced this leader, this leader's changes are
        // lost.
        let leads = self.record.as_ref().map(|record| &record.leader) == Some(member.me());
        if !answers || self.was_unclean && !leads {
            return;
        }
        let joins = node.followers.iter().filter(|(_, of)| of.ends.is_some() && !of.has_joined);
        let joining: Vec<Process> = joins.map(|(process, _)| process.clone()).collect();
        let named = member.named_in_sync();
        let known = node.followers.keys().chain(&named).collect::<BTreeSet<_>>();
        let required: Vec<&Process> = known
            .into_iter()
            .filter(|process| {
                member.may_be_in_sync(process.incarnation, now) || joining.contains(process)
            })
            .collect();
        let nothing = Changes::new();
        let changes_of =
            |process: &&Process| node.followers.get(*process).map_or(&nothing, |of| &of.changes);
        let has =
            |change: &&u64| required.iter().all(|process| changes_of(process).contains(change));
        self.acknowledged.extend(node.changes.iter().filter(has).copied().collect::<Vec<_>>());
        if self.random.below(10) == 0 {
            node.changes.insert(self.next_change);
            self.next_change += 1;
            self.draw(number);
        }
    }

    /// Makes the leader draw some of its CAS values, and checks that no leader has drawn them
    /// before.
    fn draw(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(member) = &node.member else { return };
        let values = member.cas_values();
        let start = node.next_cas.max(values.start);
        let left = values.end.saturating_sub(start);
        if left == 0 {
            return;
        }
        let len = match self.random.below(8) {
            0 => left,
            1 => 1 + self.random.below(left),
            _ => 1 + self.random.below(left.min(1000)),
        };
        node.next_cas = start + len;
        if self.was_unclean {
            return;
        }
        let last = self.drawn.range(..start + len).next_back();
        assert!(
            last.is_none_or(|(_, end)| *end <= start),
            "n{number} draws from {start} to {} again, after {last:?}",
            start + len
        );
        self.drawn.insert(start, start + len);
    }

    pub(super) fn send(&mut self, from: usize, to: usize, message: Message) {
        if !self.is_cut[from][to] {
            let arrives = self.time + self.random.below(60);
            self.messages.push((arrives, from, to, message));
        }
    }

    /// Sends a node's heartbeat to each follower that is connected to the node.
    pub(super) fn send_heartbeats(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(leader) = node.process() else { return };
        if node.next_heartbeat > self.time {
            return;
        }
        node.next_heartbeat = self.time + HEARTBEAT_INTERVAL;
        let (now, changes) = (node.clock(self.time), node.changes.clone());
        let cas_end = node.member.as_ref().map_or(0, |member| member.heartbeat_cas_end(now));
        for other in 0..NODES {
            let follower = self.nodes[other].process();
            let connected = self.nodes[other].connected.as_ref();
            let is_connected = connected.is_some_and(|connected| connected.leader == leader);
            let Some(follower) = follower.filter(|_| is_connected) else { continue };
            let node = &mut self.nodes[number];
            let Some(member) = &mut node.member else { continue };
            if node.followers.get(&follower).is_some_and(|of| of.is_full_sync) {
                // A full sync starts only when the member is no longer in sync.
                member.exclude(&follower);
                if member.may_be_in_sync(follower.incarnation, now) {
                    let leader = leader.clone();
                    let heartbeat =
                        Message::Heartbeat { leader, sent: now, changes: None, cas_end };
                    self.send(number, other, heartbeat);
                    continue;
                }
            }
            let (leader, changes) = (leader.clone(), Some(changes.clone()));
            self.send(number, other, Message::Heartbeat { leader, sent: now, changes, cas_end });
        }
    }

    /// Connects a follower to the leader in its view.
    pub(super) fn connect(&mut self, number: usize) {
        let time = self.time;
        let node = &mut self.nodes[number];
        let Some(member) = &mut node.member else { return };
        let Role::Follower { leader, .. } = member.role() else {
            node.connected = None;
            return;
        };
        if node.connected.as_ref().is_some_and(|connected| connected.leader != leader) {
            node.connected = None;
        }
        if node.next_connect > time {
            return;
        }
        node.next_connect = time + CONNECT_INTERVAL;
        let Some(to) = (0..NODES).find(|other| self.nodes[*other].name == leader.node) else {
            return;
        };
        let is_cut = self.is_cut[number][to] || self.is_cut[to][number];
        let target = self.nodes[to].process();
        let node = &mut self.nodes[number];
        let Some(member) = &mut node.member else { return };
        match target {
            // No message arrives, and the connection times out.
            _ if is_cut => {
                if node
                    .connected
                    .as_ref()
                    .is_some_and(|connected| connected.since + LEADER_SILENCE_TIMEOUT < time)
                {
                    node.connected = None;
                }
            }
            None => {
                node.connected = None;
                member.note_refusal(&leader);
            }
            Some(process) if process == leader => {
                let me = member.me().clone();
                if node.connected.is_none() {
                    member.note_connected();
                    self.accept(number, to, me, process);
                }
            }
            Some(_) => {
                node.connected = None;
                member.note_replaced(&leader);
            }
        }
    }

    /// Connects a follower to a leader that is ready. The leader drops any earlier connection of
    /// the follower.
    pub(super) fn accept(&mut self, number: usize, to: usize, follower: Process, leader: Process) {
        let (since, is_full_sync) = (self.time, self.random.below(4) == 0);
        let target = &mut self.nodes[to];
        let leads = target.member.as_ref().is_some_and(|member| {
            member.leadership_epoch().is_some() && target.ready_epoch == member.leadership_epoch()
        });
        if !leads || target.paused_until > since {
            return;
        }
        let state = FollowerState { since, is_full_sync, ..FollowerState::default() };
        target.followers.insert(follower, state);
        let connected = Connection { leader, since, is_full_sync, has_started: false };
        self.nodes[number].connected = Some(connected);
    }

    /// Stores a leader's changes at a follower. Returns whether the sync is complete, or `None` if
    /// the follower refuses the sync.
    pub(super) fn sync(&mut self, number: usize, changes: Changes) -> Option<bool> {
        let half: Changes = changes.iter().filter(|_| self.random.below(2) == 0).copied().collect();
        let node = &mut self.nodes[number];
        let (member, connected) = (node.member.as_mut()?, node.connected.as_mut()?);
        if !connected.has_started {
            connected.has_started = match connected.is_full_sync {
                true => member.start_full_sync(),
                false => member.may_start_delta_sync(),
            };
            if !connected.has_started {
                node.connected = None;
                member.read_soon();
                return None;
            }
            if connected.is_full_sync {
                node.changes.clear();
            }
            node.changes.extend(half);
        }
        let is_complete = connected.since + SYNC_TIME < self.time;
        if is_complete {
            node.changes = changes;
            member.end_sync();
        }
        Some(is_complete)
    }

    /// Handles a follower's acknowledgement at its leader.
    pub(super) fn note_ack(
        &mut self,
        to: usize,
        ack: (Process, u64),
        synced: Option<(Millis, Changes)>,
        promise: Option<ElectionPromise>,
    ) {
        let node = &mut self.nodes[to];
        let now = node.clock(self.time);
        let (Some(member), (follower, since)) = (&mut node.member, ack) else { return };
        let Some(state) = node.followers.get_mut(&follower).filter(|of| of.since == since) else {
            return;
        };
        let synced_until = synced.and_then(|(sent, changes)| {
            state.is_full_sync = false;
            state.changes = changes;
            let ends = state.ends.get_or_insert_with(|| node.changes.clone());
            state.has_joined |= state.changes.is_superset(ends);
            state.has_joined.then_some(sent)
        });
        member.note_ack(now, &follower, synced_until, promise);
    }

    pub(super) fn deliver(&mut self) {
        let (time, mut later) = (self.time, Vec::new());
        for (arrives, from, to, message) in std::mem::take(&mut self.messages) {
            if arrives > time || self.nodes[to].paused_until > time {
                later.push((arrives, from, to, message));
                continue;
            }
            match message {
                Message::Heartbeat { leader, sent, changes, cas_end } => {
                    let connected = self.nodes[to].connected.clone();
                    let Some(connected) = connected.filter(|of| of.leader == leader) else {
                        continue;
                    };
                    let is_synced = match changes {
                        Some(changes) => self.sync(to, changes),
                        // The follower may be synced with an earlier leader. The current leader
                        // ignores that.
                        None => Some(false),
                    };
                    let Some(is_synced) = is_synced else { continue };
                    let node = &mut self.nodes[to];
                    let now = node.clock(time);
                    let Some(member) = &mut node.member else { continue };
                    let promises = member.note_heartbeat(&leader, cas_end, now);
                    let promise = promises.then_some(ElectionPromise { sent, cas_end });
                    let epoch = member.view().record.as_ref().map_or(0, |record| record.epoch);
                    let synced = is_synced.then(|| (sent, node.changes.clone()));
                    let (member, since) = (member.me().clone(), connected.since);
                    if promises {
                        let until = time + PROMISE_TIME * 98 / 100;
                        self.promised.insert(member.clone(), (epoch, until));
                    }
                    self.send(to, from, Message::Ack { member, since, synced, promise });
                }
                Message::Ack { member, since, synced, promise } => {
                    self.note_ack(to, (member, since), synced, promise);
                }
            }
        }
        self.messages.append(&mut later);
    }
}
