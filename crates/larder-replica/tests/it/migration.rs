//! Migrations of slots between groups, under a clock, a network and a coordinator that a seed determines.
//!
//! The decision who answers for a slot is the real code: [`Ownership`], [`FinishedImport`] and [`ShardMap`]. Faults:
//! nodes are paused at any step; leaders are replaced; connections between them break; answers of the coordinator are
//! lost; requests to it take effect long after they have timed out. Operators plan migrations, drain groups and cancel.
//! The model's coordinator alone elects leaders; `election.rs` tests elections.
//!
//! Checked at every step: each slot has at most one leader that answers for it; that leader has the last acknowledged
//! value; CAS values of a key never decrease. After the last fault, all planned migrations complete, and each slot has a
//! leader that answers.
//!
//! ```text
//! cargo test -p larder-replica --test it migration::
//! LARDER_SEEDS=100000 cargo test -p larder-replica --test it migration::     this many seeds
//! LARDER_SEED=17 cargo test -p larder-replica --test it migration::          this seed only
//! ```
//! Each seed runs twice, and must give the same trace both times.
//!
//! Each of these mutations was made once, and made the test fail. Those in the lower part are mutations of the steps that
//! this file models, as `migration/import.rs` and `export.rs` of larder-cluster carry them out:
//!
//! | mutation | failing seeds of 2,000 |
//! |---|---|
//! | a leader answers for slots that it has released | 599 |
//! | it revokes a release without a swap | 530 |
//! | any update of the map revokes a release | 633 |
//! | a release is dropped within the leadership that has made it | 646 |
//! | a second release while one is open | 1 |
//! | completion ignores a change of the map since the request for the release | 114 |
//! | completion ignores a change of leaders | 185 |
//! | a leader that leads again counts as the same leadership | 40 |
//! | the swap does not compare the exporting group's record | 3 |
//! | | |
//! | the exporter does not wait for batches under way | 450 |
//! | the importer does not wait for its followers | 12 |
//! | the importer's epoch is not raised | 501 |
//! | the importer notes the revision of the map after the release | 17 |
//! | the exporter does not replace the map before it revokes a release | 185 |
//! | a leader serves before it has read the map | 1999 |
//! | a read of the map that was sent before the election is enough | 12 |
//! | items of slots of other groups stay | 195 |
//! | they are removed while their slots are planned to migrate here | 3 |
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

use crate::seeds::{Random, only_seed, run_seeds};
use larder_replica::{
    Completion, FinishedImport, Migration, Ownership, Process, Record, Revision, ShardMap,
};
use std::collections::VecDeque;

const GROUPS: usize = 3;
const NODES: usize = 2;
/// The slots whose keys the model has.
const WATCHED: [u16; 6] = [0, 900, 1800, 2700, 3600, 4095];
/// The number of steps with faults, and of steps without them within which all migrations must complete.
const STEPS: u32 = 5000;
const RECOVERY_STEPS: u32 = 20_000;
/// The lifetime of a leader's lease, and the time before its end at which the leader stops answering, in milliseconds.
const LEASE: u64 = 500;
const MARGIN: u64 = 50;

fn one_in(random: &Random, of: u64) -> bool {
    random.below(of) == 0
}

fn index(random: &Random, len: usize) -> usize {
    random.below(len as u64) as usize
}

fn name(group: usize) -> String {
    group.to_string()
}

fn number(group: &str) -> usize {
    group.parse().unwrap()
}

/// The coordinator's data.
#[derive(Clone)]
struct Coordinator {
    last: Revision,
    map: (ShardMap, Revision),
    groups: Vec<GroupState>,
}

/// The record of a group, the epoch in which its leadership started, and the end of the leader's lease.
#[derive(Clone)]
struct GroupState {
    record: Record,
    revision: Revision,
    since: u32,
    until: u64,
}

type GroupView = ((ShardMap, Revision), Vec<(Record, Revision)>);

#[derive(Clone)]
enum Request {
    Read,
    Swap(Revision, ShardMap, Vec<(String, Revision)>),
}

enum Answer {
    Read(GroupView),
    /// The new revision of the map, if it was replaced.
    Swapped(Option<Revision>),
}

impl Coordinator {
    fn next(&mut self) -> Revision {
        self.last += 1;
        self.last
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read => {
                let records = self
                    .groups
                    .iter()
                    .map(|group_state| (group_state.record.clone(), group_state.revision));
                Answer::Read((self.map.clone(), records.collect()))
            }
            Request::Swap(revision, map, records) => {
                let is_same = |(group, revision): &(String, Revision)| {
                    self.groups[number(group)].revision == *revision
                };
                let can = self.map.1 == *revision && records.iter().all(is_same);
                Answer::Swapped(can.then(|| {
                    let revision = self.next();
                    self.map = (map.clone(), revision);
                    revision
                }))
            }
        }
    }
}

/// The reason of a request to the coordinator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Read the map, in this leadership.
    Refresh(Option<u32>),
    RevokeRelease,
    /// Make an earlier swap fail: read the map, then replace it by an equal one.
    SupersedeSwaps,
    StartImport,
    RequestRelease,
    FinishImport,
}

struct Call {
    request: Request,
    purpose: Purpose,
    answer: Option<Answer>,
}

struct Node {
    group: usize,
    process: Process,
    ownership: Ownership,
    leads_since: Option<u32>,
    ready: Option<u32>,
    /// The epoch of its CAS values.
    epoch: u32,
    serves_until: u64,
    paused_until: u64,
    /// The value of each watched slot's key.
    items: [Option<u64>; WATCHED.len()],
    /// The slot of a write under way.
    batch: Option<usize>,
    /// The request under way; a node has at most one.
    call: Option<Call>,
    import: Option<Import>,
    has_pending_swap: bool,
}

/// The state of an import.
struct Import {
    planned: Migration,
    leadership: u32,
    /// The connection, the exporting leader, and its epoch.
    link: Option<(usize, Process, u32)>,
    has_items: bool,
    /// The revision of the map that was read before the request for the release.
    revision: Option<Revision>,
    has_barrier: bool,
    /// A swap has timed out, and may still take effect.
    has_pending_swap: bool,
}

enum Message {
    Item(usize, Option<u64>),
    SyncEnd,
    Barrier,
}

/// A connection of an importing leader to the exporting one.
struct Link {
    exporter: usize,
    leadership: u32,
    planned: Migration,
    sent: VecDeque<Message>,
    is_release_requested: bool,
    has_released: bool,
    has_sent_barrier: bool,
    /// The importer has abandoned the connection.
    has_importer_left: bool,
    /// The exporter has closed the connection.
    is_closed: bool,
}

/// The last acknowledged change of a slot's key, with the epoch and the group of the leader.
#[derive(Clone, Copy, Default)]
struct Acknowledged {
    change: u64,
    is_removed: bool,
    epoch: u32,
    group: usize,
}

impl Acknowledged {
    fn value(&self) -> Option<u64> {
        (!self.is_removed).then_some(self.change)
    }
}

struct World {
    random: Random,
    time: u64,
    has_faults: bool,
    /// One of this many possible faults happens.
    rarity: u64,
    coordinator: Coordinator,
    /// Requests that have timed out, and may still take effect.
    late_requests: Vec<Request>,
    nodes: Vec<Node>,
    /// For each group, the changes that its follower lacks.
    behind: Vec<Vec<(usize, Option<u64>)>>,
    links: Vec<Link>,
    acknowledged: [Acknowledged; WATCHED.len()],
    trace: u64,
    migrations: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let rarity = 1 << random.below(5);
        let mut nodes = Vec::new();
        for group in 0..GROUPS {
            for node in 0..NODES {
                let process = Process { node: format!("{group}-{node}"), boot: 1 };
                let items = if group == 0 { [Some(0); WATCHED.len()] } else { Default::default() };
                nodes.push(Node {
                    group,
                    process,
                    ownership: Ownership::new(&name(group)),
                    leads_since: None,
                    ready: None,
                    epoch: 0,
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
            let record = Record { epoch: 1, leader, in_sync: Vec::new() };
            GroupState { record, revision: 1, since: 1, until: 0 }
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

    /// Runs to the end. Returns a hash of all events, and the number of completed migrations.
    fn run(mut self) -> (u64, u64) {
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

    fn record(&mut self, event: u64) {
        let mixed = (self.trace ^ event).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace = mixed ^ (mixed >> 32);
    }

    /// Whether a node may answer requests in this leadership.
    fn is_serving(&self, n: usize, leadership: u32) -> bool {
        let node = &self.nodes[n];
        let is_ready = node.leads_since == Some(leadership) && node.ready == Some(leadership);
        is_ready && self.time < node.serves_until
    }

    /// Whether a node believes that its group owns a slot.
    fn has(&self, n: usize, slot: u16) -> bool {
        let ownership = &self.nodes[n].ownership;
        ownership.owner_of(slot).is_none_or(|owner| owner == ownership.group())
    }

    fn answers(&self, n: usize, slot: u16) -> bool {
        let leads = self.nodes[n].leads_since.is_some_and(|since| self.is_serving(n, since));
        leads && self.has(n, slot)
    }

    fn check(&self) {
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

    fn step(&mut self) {
        self.time += self.random.below(8);
        let mut n = index(&self.random, self.nodes.len());
        // Leaders have most of the work.
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

    /// Elects a leader of a group whose leader has no lease.
    fn elect(&mut self, group: usize) {
        if self.time <= self.coordinator.groups[group].until {
            return;
        }
        let n = group * NODES + index(&self.random, NODES);
        let (revision, until) = (self.coordinator.next(), self.time + LEASE);
        let group_state = &mut self.coordinator.groups[group];
        let epoch = group_state.record.epoch + 1;
        let leader = self.nodes[n].process.clone();
        group_state.record = Record { epoch, leader, in_sync: Vec::new() };
        (group_state.revision, group_state.since, group_state.until) = (revision, epoch, until);
        let node = &mut self.nodes[n];
        (node.leads_since, node.ready, node.epoch) = (Some(epoch), None, epoch);
        node.serves_until = until - MARGIN;
        // A node waits for its batches before it starts to follow or to lead.
        node.batch = None;
        // The other node follows, with the same items.
        self.behind[group].clear();
        let items = node.items;
        for other in group * NODES..(group + 1) * NODES {
            self.nodes[other].items = items;
        }
    }

    fn renew(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let group_state = &mut self.coordinator.groups[node.group];
        let leads = group_state.record.leader == node.process
            && node.leads_since == Some(group_state.since);
        if leads && self.time <= group_state.until {
            group_state.until = self.time + LEASE;
            node.serves_until = group_state.until - MARGIN;
        }
    }

    /// A node notices that another node leads.
    fn note_leader(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if self.coordinator.groups[node.group].record.leader != node.process {
            node.leads_since = None;
        }
    }

    /// A leader may give up its lease, as in a leadership transfer.
    fn stop_leading(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let group_state = &mut self.coordinator.groups[node.group];
        if group_state.record.leader == node.process && one_in(&self.random, 4) {
            (node.serves_until, group_state.until) = (self.time, self.time);
        }
    }

    fn plan(&mut self) {
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

    fn carry_out_late(&mut self) {
        if !self.late_requests.is_empty() {
            let request =
                self.late_requests.swap_remove(index(&self.random, self.late_requests.len()));
            self.coordinator.answer(&request);
        }
    }

    /// A follower applies some of its leader's changes.
    fn follow(&mut self, group: usize) {
        let len = index(&self.random, self.behind[group].len() + 1);
        let changes: Vec<_> = self.behind[group].drain(..len).collect();
        self.apply_to_followers(group, &changes);
    }

    /// The follower applies all changes of its leader.
    fn wait_for_followers(&mut self, group: usize) {
        let changes = std::mem::take(&mut self.behind[group]);
        self.apply_to_followers(group, &changes);
    }

    fn apply_to_followers(&mut self, group: usize, changes: &[(usize, Option<u64>)]) {
        let leader = self.coordinator.groups[group].record.leader.clone();
        for node in
            self.nodes.iter_mut().filter(|node| node.group == group && node.process != leader)
        {
            changes.iter().for_each(|(i, value)| node.items[*i] = *value);
        }
    }

    /// A leader changes an item.
    fn change(&mut self, n: usize, i: usize, value: Option<u64>) {
        self.nodes[n].items[i] = value;
        self.behind[self.nodes[n].group].push((i, value));
        for link in self.links.iter_mut().filter(|link| link.exporter == n && !link.is_closed) {
            if link.planned.slots.contains(WATCHED[i]) {
                link.sent.push_back(Message::Item(i, value));
            }
        }
    }

    /// A client sends a write to the leader that answers for its slot.
    fn start_write(&mut self) {
        let i = index(&self.random, WATCHED.len());
        let answers = |n: &usize| self.answers(*n, WATCHED[i]);
        let of = (0..self.nodes.len()).find(answers);
        if let Some(n) = of {
            self.nodes[n].batch.get_or_insert(i);
        }
    }

    fn finish_write(&mut self, n: usize) {
        let Some(i) = self.nodes[n].batch.take() else { return };
        if self.time >= self.nodes[n].serves_until {
            return;
        }
        let is_removed = one_in(&self.random, 3);
        let Acknowledged { change, epoch, group, .. } = self.acknowledged[i];
        let node = &self.nodes[n];
        let is_later = if node.group == group { node.epoch >= epoch } else { node.epoch > epoch };
        assert!(is_later, "epoch {} of group {} after {epoch} of {group}", node.epoch, node.group);
        let (epoch, group) = (node.epoch, node.group);
        self.acknowledged[i] = Acknowledged { change: change + 1, is_removed, epoch, group };
        self.change(n, i, self.acknowledged[i].value());
        self.wait_for_followers(group);
    }

    fn send_request(&mut self, n: usize, request: Request, purpose: Purpose) {
        self.nodes[n].call = Some(Call { request, purpose, answer: None });
    }

    /// Reads the map, or revokes a failed release.
    fn refresh_map(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.call.is_some() {
            return;
        }
        node.ownership.forget_earlier_release(node.leads_since);
        if let (true, Some(map)) = (node.ownership.has_failed_release(), node.ownership.map())
            && one_in(&self.random, 2)
        {
            let swap = Request::Swap(node.ownership.revision(), map.clone(), Vec::new());
            self.send_request(n, swap, Purpose::RevokeRelease);
        } else {
            let purpose = Purpose::Refresh(node.leads_since);
            self.send_request(n, Request::Read, purpose);
        }
    }

    /// Advances the request of a node: it takes effect, is answered, or times out.
    fn answer(&mut self, n: usize) {
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

    fn handle_timeout(&mut self, n: usize, call: &Call) {
        match (call.purpose, &mut self.nodes[n].import) {
            (Purpose::FinishImport, Some(import)) => {
                import.has_pending_swap |= matches!(call.request, Request::Swap(..));
            }
            (Purpose::StartImport | Purpose::RequestRelease, Some(_)) => self.abandon_import(n),
            _ => (),
        }
    }

    fn handle_answer(&mut self, n: usize, request: Request, purpose: Purpose, answer: Answer) {
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
            Purpose::Refresh(leads_since) if node.leads_since == leads_since => {
                node.ready = leads_since;
            }
            Purpose::SupersedeSwaps => {
                let map = node.ownership.map().unwrap().clone();
                let swap = Request::Swap(node.ownership.revision(), map, Vec::new());
                self.send_request(n, swap, Purpose::SupersedeSwaps);
            }
            Purpose::StartImport => self.start_import(n, &records),
            Purpose::RequestRelease => self.request_release(n),
            Purpose::FinishImport => self.complete_import(n, &records),
            _ => (),
        }
    }

    fn next_migration(&self, n: usize) -> Option<Migration> {
        self.nodes[n].ownership.map()?.next_migration()
    }

    /// The next migration, if a node's group imports its slots.
    fn next_import(&self, n: usize) -> Option<Migration> {
        self.next_migration(n).filter(|planned| number(&planned.to) == self.nodes[n].group)
    }

    /// The next step of an importing leader.
    fn run_importer(&mut self, n: usize) {
        let Some(leadership) = self.nodes[n].leads_since else { return self.abandon_import(n) };
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
                has_barrier: false,
                has_pending_swap: false,
            });
            return self.send_request(n, Request::Read, Purpose::StartImport);
        };
        if import.leadership != leadership {
            return self.abandon_import(n);
        }
        let group = self.nodes[n].group;
        let (has_items, revision, has_barrier) =
            (import.has_items, import.revision, import.has_barrier);
        let Some((link, ..)) = import.link else { return self.abandon_import(n) };
        if has_barrier {
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
            Some(Message::Barrier) => self.nodes[n].import.as_mut().unwrap().has_barrier = true,
            None if self.links[link].is_closed => self.abandon_import(n),
            None => (),
        }
    }

    fn start_import(&mut self, n: usize, records: &[(Record, Revision)]) {
        let Some(import) = &self.nodes[n].import else { return };
        let (planned, leadership) = (import.planned.clone(), import.leadership);
        if self.next_migration(n).as_ref() != Some(&planned) || !self.is_serving(n, leadership) {
            return self.abandon_import(n);
        }
        let record = &records[number(&planned.from)].0;
        let exporter = self.nodes.iter().position(|node| node.process == record.leader).unwrap();
        let node = &self.nodes[exporter];
        let leads = node.leads_since.is_some() && node.leads_since == node.ready;
        let accepts = leads && self.next_migration(exporter).as_ref() == Some(&planned);
        if !accepts || node.epoch != record.epoch {
            return self.abandon_import(n);
        }
        let exporter_leadership = node.leads_since.unwrap();
        let exporter_items = node.items;
        if self.nodes[n].epoch <= record.epoch && !self.raise_epoch(n, record.epoch + 1) {
            return self.abandon_import(n);
        }
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

    fn raise_epoch(&mut self, n: usize, least: u32) -> bool {
        let node = &mut self.nodes[n];
        let group_state = &self.coordinator.groups[node.group];
        if group_state.record.leader != node.process || node.leads_since != Some(group_state.since)
        {
            return false;
        }
        let revision = self.coordinator.next();
        let group_state = &mut self.coordinator.groups[node.group];
        (group_state.record.epoch, group_state.revision, node.epoch) = (least, revision, least);
        true
    }

    fn request_release(&mut self, n: usize) {
        let planned = self.next_migration(n);
        let revision = self.nodes[n].ownership.revision();
        let Some(import) = &mut self.nodes[n].import else { return };
        if planned.as_ref() != Some(&import.planned) {
            return self.abandon_import(n);
        }
        let Some((link, ..)) = import.link else { return };
        import.revision = Some(revision);
        self.links[link].is_release_requested = true;
    }

    fn complete_import(&mut self, n: usize, records: &[(Record, Revision)]) {
        let node = &self.nodes[n];
        let Some(import) = &node.import else { return };
        let (Some((_, exporter, epoch)), Some(revision)) = (&import.link, import.revision) else {
            return;
        };
        let exporter = (exporter, *epoch);
        let importer = (&node.process, node.epoch);
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

    /// Abandons an import.
    fn abandon_import(&mut self, n: usize) {
        let Some(import) = &self.nodes[n].import else { return };
        let has_pending_swap = import.has_pending_swap;
        self.finish_import(n);
        self.nodes[n].has_pending_swap |= has_pending_swap;
    }

    fn finish_import(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some(import) = node.import.take() else { return };
        // The last request continues without the import, and may still take effect.
        let is_takers = |call: &mut Call| {
            matches!(
                call.purpose,
                Purpose::StartImport | Purpose::RequestRelease | Purpose::FinishImport
            )
        };
        if let Some(call) = node.call.take_if(is_takers) {
            node.has_pending_swap |= matches!(call.request, Request::Swap(..));
            if call.answer.is_none() {
                self.late_requests.push(call.request);
            }
        }
        if let Some((link, ..)) = import.link {
            self.links[link].has_importer_left = true;
        }
    }

    fn fail_import(&mut self, n: usize) {
        if one_in(&self.random, 3) {
            self.abandon_import(n);
        }
    }

    /// The next step of an exporting leader.
    fn run_exporter(&mut self, n: usize) {
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
            let leads = node.leads_since == Some(leadership) && node.ready == Some(leadership);
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
                self.links[link].sent.push_back(Message::Barrier);
                self.links[link].has_sent_barrier = true;
            }
        }
    }

    fn end_export(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.is_closed = true;
        if link.has_released {
            self.nodes[link.exporter].ownership.close_release();
        }
    }

    /// The connections of an exporter break, or time out.
    fn close_links(&mut self, n: usize) {
        for link in 0..self.links.len() {
            if self.links[link].exporter == n && !self.links[link].is_closed {
                self.end_export(link);
            }
        }
    }

    /// A leader without an import removes the items of other groups.
    fn remove_foreign_items(&mut self, n: usize) {
        let Some(leadership) = self.nodes[n].leads_since else { return };
        // A swap without an answer may have completed a planned import already.
        let is_idle = self.nodes[n].import.is_none() && self.next_import(n).is_none();
        if self.is_serving(n, leadership) && is_idle {
            self.remove(n);
        }
    }

    fn remove(&mut self, n: usize) {
        let own = self.nodes[n].ownership.slots();
        for (i, slot) in WATCHED.iter().enumerate() {
            if !own.contains(*slot) && self.nodes[n].items[i].is_some() {
                self.change(n, i, None);
            }
        }
    }
}

#[test]
fn migrations_lose_no_acknowledged_write_under_faults() {
    let finished = run_seeds(|seed| World::new(seed).run());
    let migrations: u64 = finished.iter().map(|(_, migrations)| migrations).sum();
    // A single seed may complete none.
    let is_enough = migrations > finished.len() as u64 / 2;
    assert!(is_enough || only_seed().is_some(), "only {migrations} migrations");
}
