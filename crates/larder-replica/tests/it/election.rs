//! A simulation of the members of a group. A seed determines the clocks, the network and the
//! coordinator.
//!
//! The state machine is the real one. Faults: clocks differ in pace; nodes are paused, stopped and
//! restarted; links to the coordinator and between nodes are slow or cut, also in one direction;
//! the coordinator is unreachable, drops leases too early, and answers after the node has given up.
//! Leaders transfer their leadership. At every step, the test checks which nodes may answer
//! requests, and which may lead. After the last fault, a leader must exist soon, and then all
//! members must be in sync.
//!
//! ```text
//! cargo test -p larder-replica --test it election::
//! LARDER_SEEDS=100000 cargo test -p larder-replica --test it election::     this many seeds
//! LARDER_SEED=17 cargo test -p larder-replica --test it election::          this seed only
//! ```
//! Each seed runs twice, and must give the same trace both times.
//!
//! Each of these mutations of the member was made once, and made the test fail:
//!
//! | mutation | failing seeds of 2,000 |
//! |---|---|
//! | a member stands for election in spite of its promise | 469 |
//! | it makes a promise while it has a pending swap | 29 |
//! | the leader lease counts from the reply, not from the request | 56 |
//! | the promise of one member of many is enough | 34 |
//! | a swap without a reply is forgotten | 1 |
//! | the lease ignores members that a pending swap puts in sync | 79 |
//! | a silent member stays in sync | 169 |
//! | a restarted node may stand for election | 142 |
//! | one restarted node counts as all members in sync | 195 |
//! | a lease at the coordinator counts as leadership | 314 |
//! | a leader in a transfer relies on the promise of its successor | 34 |
//! | a failed transfer never ends | 4 |
//! | a transfer names a member that is not in sync any more | 4 |
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

use crate::seeds::{Random, run_seeds};
use larder_replica::{
    Command, DoubtPolicy, GroupView, LEADER_LEASE, Member, MemberSettings, Millis, PROMISE_TIME,
    Process, Record, Revision, Role,
};
use std::collections::BTreeMap;

const NODES: usize = 3;
/// The time with faults, in milliseconds.
const FAULTS: u64 = 20_000;
/// The time after the faults within which exactly one leader must answer, in milliseconds.
const RECOVERY: u64 = 3000;
/// The time after `RECOVERY` within which all members must be in sync, in milliseconds.
const QUIET: u64 = 3000;
/// The time of one step, in milliseconds.
const STEP: u64 = 10;

// The constants below stand for constants of crates that these tests cannot use: change both.
// Constants of `member.rs` are not listed, because the real state machine uses them itself. All are
// in milliseconds.

/// The timeout of a request to the coordinator. It follows `TimeLimits::NODE` (`client.rs` of
/// `larder-etcd`): 400 for a request, 700 for a call.
const REQUEST_TIMEOUT: u64 = 600;
/// The lifetime of a lease at the coordinator. Equal to `LEASE_SECS` (`presence.rs` of
/// `larder-etcd`).
const LEASE: u64 = 2000;
/// The interval of lease renewals. Derived from `LEASE_RENEWAL_INTERVAL` (`group/coordination.rs`
/// of `larder-cluster`): 400 ms, plus 100 ms for the request.
const LEASE_RENEWAL_INTERVAL: u64 = 500;
/// The interval of heartbeats. Equal to `HEARTBEAT_INTERVAL` (`peers/heartbeat.rs` of
/// `larder-cluster`).
const HEARTBEAT_INTERVAL: u64 = 100;
/// The interval of attempts to connect to a leader. Derived from `PAUSE_MIN`
/// (`replication/follower.rs` of `larder-cluster`): 50 ms, plus 10 ms for the attempt.
const CONNECT_INTERVAL: u64 = 60;
/// The age at which a connection whose link is cut ends. Equal to `LEADER_SILENCE_TIMEOUT`
/// (`replication/follower.rs` of `larder-cluster`), but counts from the connect.
const LEADER_SILENCE_TIMEOUT: u64 = 3000;
/// The duration of a sync after a connect.
const SYNC_TIME: u64 = 300;

enum Answer {
    Read(GroupView),
    Swapped(Option<Revision>),
}

/// A request to the coordinator.
struct PendingRequest {
    command: Command,
    arrives: u64,
    answer: Option<(u64, Answer)>,
    times_out: u64,
}

struct Node {
    name: String,
    /// The rate of the clock, in thousandths of real time.
    pace: u64,
    /// The value of the clock at the start, in milliseconds.
    offset: u64,
    member: Option<Member>,
    request: Option<PendingRequest>,
    paused_until: u64,
    next_heartbeat: u64,
    next_lease: u64,
    /// The leader that the node is connected to, and the time of the connection.
    connected: Option<(Process, u64)>,
    next_connect: u64,
}

enum Message {
    Heartbeat { leader: Process, sent: Millis },
    Ack { member: Process, synced_until: Option<Millis>, promised: Option<Millis> },
}

struct World {
    random: Random,
    time: u64,
    nodes: Vec<Node>,
    record: Option<Record>,
    revision: Revision,
    /// The time at which each leader was replaced.
    deposed: BTreeMap<Process, u64>,
    /// A time before which each member must not stand for election: slightly before the end of its
    /// last promise, even if its clock is the fastest.
    promised: BTreeMap<Process, u64>,
    leases: BTreeMap<String, (u64, u64)>,
    is_coordinator_down: bool,
    /// Whether the link of each node to the coordinator is cut.
    is_coordinator_cut: [bool; NODES],
    /// Whether the link from one node (first index) to another (second index) is cut.
    is_cut: [[bool; NODES]; NODES],
    messages: Vec<(u64, usize, usize, Message)>,
    /// Swaps that have timed out, and the times at which they take effect.
    strays: Vec<(u64, usize, Command)>,
    trace: u64,
}

impl Node {
    fn clock(&self, time: u64) -> Millis {
        self.offset + time * self.pace / 1000
    }

    fn process(&self) -> Option<Process> {
        self.member.as_ref().map(|member| member.me().clone())
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let nodes = (0..NODES).map(|number| Node {
            name: format!("n{number}"),
            pace: 990 + random.below(21),
            offset: random.below(1_000_000),
            member: None,
            request: None,
            paused_until: 0,
            next_heartbeat: 0,
            next_lease: 0,
            connected: None,
            next_connect: 0,
        });
        let nodes = nodes.collect();
        let mut world = Self {
            random,
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
            strays: Vec::new(),
            trace: seed,
        };
        (0..NODES).for_each(|number| world.start(number));
        world
    }

    fn run(mut self) -> u64 {
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

    fn note(&mut self, event: u64) {
        let mixed = (self.trace ^ event).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace = mixed ^ (mixed >> 32);
    }

    fn start(&mut self, number: usize) {
        let incarnation = self.random.below(u64::MAX);
        let node = &mut self.nodes[number];
        let me = Process { node: node.name.clone(), incarnation };
        node.member =
            Some(Member::new(MemberSettings { me, doubt: DoubtPolicy::Stop, unclean_after: None }));
        (node.request, node.connected, node.next_lease) = (None, None, 0);
    }

    fn fault(&mut self) {
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
            // Leases are dropped too early, as when the coordinator's leader changes.
            96..99 => self.leases.clear(),
            _ => (),
        }
    }

    fn transfer(&mut self, number: usize, other: usize) {
        let node = &mut self.nodes[number];
        let now = node.clock(self.time);
        let Some(member) = &mut node.member else { return };
        let candidates = member.start_transfer(now, None);
        if let Some(next) = candidates.get(other % candidates.len().max(1)) {
            member.transfer_to(next.clone());
        }
    }

    fn step(&mut self) {
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

    fn is_awake(&self, number: usize) -> bool {
        self.nodes[number].member.is_some() && self.nodes[number].paused_until <= self.time
    }

    fn reaches_coordinator(&self, number: usize) -> bool {
        !self.is_coordinator_down && !self.is_coordinator_cut[number]
    }

    /// Delivers a request to the coordinator, which answers it. The node may be paused or stopped
    /// by then.
    fn arrive(&mut self, number: usize) {
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

    fn answer(&mut self, requester: usize, command: Command) -> Answer {
        match command {
            Command::Read => Answer::Read(GroupView {
                record: self.record.clone(),
                revision: self.revision,
                live: self
                    .leases
                    .iter()
                    .map(|(node, (incarnation, _))| (node.clone(), *incarnation))
                    .collect(),
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

    /// Checks the record of a swap before it takes effect: its epoch, and whether its leader has
    /// the items and has not broken an election promise.
    fn check_record(&mut self, requester: usize, record: &Record) {
        assert!(record.in_sync.contains(&record.leader));
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
        assert!(has_items || none_runs, "{record:?} after {before:?}");
        let runs = |process: &Process| {
            self.nodes.iter().any(|node| node.process().as_ref() == Some(process))
        };
        let promised = self.promised.get(&record.leader).copied().unwrap_or_default();
        let is_transfer = self.nodes[requester].name == before.leader.node;
        assert!(
            !runs(&before.leader) || self.time >= promised || is_transfer,
            "{record:?}: the member stands for election in spite of its promise"
        );
        self.deposed.insert(before.leader.clone(), self.time);
    }

    fn poll_member(&mut self, number: usize) {
        let (delay, stray_delay) = (self.random.below(150), self.random.below(3000));
        let (time, strays) = (self.time, &mut self.strays);
        let node = &mut self.nodes[number];
        let now = node.clock(time);
        let Some(member) = &mut node.member else { return };
        if let Some(request) = node.request.take() {
            match request.answer {
                Some((arrives, answer)) if arrives <= time => match answer {
                    Answer::Read(view) => member.handle_view(now, Some(view)),
                    Answer::Swapped(revision) => member.handle_swap(now, Some(revision)),
                },
                answer if request.times_out <= time => match request.command {
                    Command::Read => member.handle_view(now, None),
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
            && let Some(command) = member.next(now)
        {
            let (arrives, times_out) = (time + delay, time + REQUEST_TIMEOUT);
            node.request = Some(PendingRequest { command, arrives, answer: None, times_out });
        }
    }

    fn renew_lease(&mut self, number: usize) {
        let is_reached = self.reaches_coordinator(number);
        let node = &mut self.nodes[number];
        if node.next_lease > self.time || !is_reached {
            return;
        }
        node.next_lease = self.time + LEASE_RENEWAL_INTERVAL;
        if let Some(process) = node.process() {
            self.leases.insert(process.node, (process.incarnation, self.time + LEASE));
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if !self.is_cut[from][to] {
            let arrives = self.time + self.random.below(60);
            self.messages.push((arrives, from, to, message));
        }
    }

    /// Sends the heartbeat of a node to each follower that is connected to it.
    fn send_heartbeats(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(leader) = node.process() else { return };
        if node.next_heartbeat > self.time {
            return;
        }
        node.next_heartbeat = self.time + HEARTBEAT_INTERVAL;
        let sent = node.clock(self.time);
        for other in 0..NODES {
            let connected = self.nodes[other].connected.as_ref();
            if connected.is_some_and(|(process, _)| *process == leader) {
                self.send(number, other, Message::Heartbeat { leader: leader.clone(), sent });
            }
        }
    }

    /// Connects a follower to the leader in its view.
    fn connect(&mut self, number: usize) {
        let time = self.time;
        let node = &mut self.nodes[number];
        let Some(member) = &mut node.member else { return };
        let Role::Follower { leader, .. } = member.role() else {
            node.connected = None;
            return;
        };
        if node.connected.as_ref().is_some_and(|(process, _)| *process != leader) {
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
        let there = self.nodes[to].process();
        let node = &mut self.nodes[number];
        let Some(member) = &mut node.member else { return };
        match there {
            // No message arrives, and the connection times out.
            _ if is_cut => {
                if node
                    .connected
                    .as_ref()
                    .is_some_and(|(_, since)| *since + LEADER_SILENCE_TIMEOUT < time)
                {
                    node.connected = None;
                }
            }
            None => {
                node.connected = None;
                member.note_refusal(&leader);
            }
            Some(process) if process == leader => {
                if node.connected.is_none() {
                    node.connected = Some((process, time));
                    member.note_connected();
                }
            }
            Some(_) => {
                node.connected = None;
                member.note_replaced(&leader);
            }
        }
    }

    fn deliver(&mut self) {
        let (time, mut later) = (self.time, Vec::new());
        for (arrives, from, to, message) in std::mem::take(&mut self.messages) {
            if arrives > time || self.nodes[to].paused_until > time {
                later.push((arrives, from, to, message));
                continue;
            }
            let node = &mut self.nodes[to];
            let now = node.clock(time);
            let Some(member) = &mut node.member else { continue };
            match message {
                Message::Heartbeat { leader, sent } => {
                    let connected = node.connected.as_ref();
                    let Some((_, since)) = connected.filter(|(process, _)| *process == leader)
                    else {
                        continue;
                    };
                    let promised = member.note_heartbeat(&leader, now).then_some(sent);
                    let synced_until = (since + SYNC_TIME < time).then_some(sent);
                    let member = member.me().clone();
                    if promised.is_some() {
                        let until = time + PROMISE_TIME * 98 / 100;
                        self.promised.insert(member.clone(), until);
                    }
                    self.send(to, from, Message::Ack { member, synced_until, promised });
                }
                Message::Ack { member: other, synced_until, promised } => {
                    member.note_ack(&other, synced_until, promised);
                }
            }
        }
        self.messages.append(&mut later);
    }

    fn may_answer(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        let now = node.clock(self.time);
        self.is_awake(number)
            && node.member.as_ref().is_some_and(|member| {
                matches!(member.role(), Role::Leader { .. }) && now < member.serves_until()
            })
    }

    /// Checks that a node that answers requests either leads, or was replaced within the duration
    /// of its leader lease (a second, and 3 % for clocks and steps).
    fn check(&mut self, number: usize) {
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

#[test]
fn at_most_one_leader_answers_and_a_leader_exists_after_faults() {
    run_seeds(|seed| World::new(seed).run());
}

/// The test transfers the leadership to a process whose predecessor on the same node has the lease
/// in the leader's view.
#[test]
fn a_leader_reads_the_group_again_after_a_transfer() {
    let process = |node: &str, incarnation| Process { node: node.to_owned(), incarnation };
    let (me, next) = (process("a", 1), process("b", 3));
    let settings = MemberSettings { me: me.clone(), doubt: DoubtPolicy::Stop, unclean_after: None };
    let mut member = Member::new(settings);
    let live = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(member.next(0), Some(Command::Read));
    member.handle_view(1, Some(GroupView { live, ..GroupView::default() }));
    let swap = |member: &mut Member, now| {
        let Some(Command::Swap(revision, record)) = member.next(now) else { panic!("no swap") };
        member.handle_swap(now, Some(Some(revision + 1)));
        record
    };
    assert_eq!(swap(&mut member, 2).leader, me);
    member.note_ack(&next, Some(10), Some(10));
    assert_eq!(swap(&mut member, 10).in_sync, [me, next.clone()]);
    assert_eq!(member.start_transfer(11, None), std::slice::from_ref(&next));
    member.transfer_to(next.clone());
    assert_eq!(swap(&mut member, 12).leader, next);
    assert_eq!(member.next(13), Some(Command::Read));
}
