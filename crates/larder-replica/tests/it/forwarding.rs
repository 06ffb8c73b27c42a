//! Simulates changes that one node forwards to a leader. A seed determines the clocks, the network,
//! the pauses and the leadership transfers.
//!
//! The test runs the real [`LinkLeases`] and [`Fence`]. The rest is a model of `forward/` in
//! larder-cluster. Faults: each direction of a connection may deliver its bytes late, up to minutes
//! after the connection was closed. The clocks differ by hours, and their rates by up to 1 %. Both
//! processes may be paused between any two steps. The leader may stop leading at any time, even
//! between two changes of a frame. It leads again later. The forwarding node notices each of these
//! changes late. The test checks that no change takes effect twice, or after the node has reported
//! it as failed, and that no change fails without faults.
//!
//! Each of these mutations of the code made the test fail when it was tried:
//!
//! | mutation | failing seeds of 2,000 |
//! |---|---|
//! | a change is executed without a check of the fence | 393 |
//! | a node reports changes as failed as soon as it closes the connection | 637 |
//! | a closed connection grants leases | 27 |
//! | a lease counts from its sending, not from its grant | 42 |
//! | a closed fence opens again with the next lease | 24 |
//! | `Accepted` is sent before the earlier connection is closed | 42 |
//! | the clocks' rates are ignored (1 instead of 0.98) | 4 |
//! | leases last 50 ms, less than the interval of heartbeats | changes fail without faults |
//! | a partially executed frame is sent again as a whole | all |
//! | a leader that leads again gets a second connection | changes fail without faults |
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

use crate::seeds::{Random, run_seeds};
use larder_replica::{LinkLeases, Millis};
use larder_store::Fence;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

/// The length of the phase with faults, in milliseconds.
const FAULTS: u64 = 20_000;
/// The length of the phase after the faults, in milliseconds. The second half of this phase has no
/// new changes. At the end of the phase, all changes must have results.
const RECOVERY: u64 = 20_000;
/// The duration of one step, in milliseconds.
const STEP: u64 = 10;
/// The interval between heartbeats. Equal to `HEARTBEAT_INTERVAL` (`peers/heartbeat.rs` of
/// `larder-cluster`).
const HEARTBEAT: u64 = 100;

/// The time limit of a handshake.
const CONNECT_TIMEOUT: u64 = 5000;

thread_local! {
    /// The leader's clock. Fences read it.
    static LEADERS_CLOCK: Cell<u64> = const { Cell::new(0) };
}

/// A clock whose start time and rate differ from those of the simulation's time.
#[derive(Clone, Copy)]
struct Clock {
    start: u64,
    /// The rate of the clock, in thousandths of the simulation's time.
    pace: u64,
}

impl Clock {
    fn new(random: &Random) -> Self {
        Self { start: random.below(10_000_000), pace: 990 + random.below(21) }
    }

    fn at(self, time: u64) -> Millis {
        self.start + time * self.pace / 1000
    }
}

/// A frame to the leader.
enum Request {
    Hello,
    Lease(Millis),
    Changes(Frame),
}

/// Changes in one frame, and how many of them the leader has executed.
struct Frame {
    changes: Vec<u64>,
    executed: usize,
}

/// A frame to the forwarding node.
enum Reply {
    Accepted {
        time: Millis,
    },
    Heartbeat {
        sent: Millis,
        received: u64,
    },
    /// The leader has executed only this many of the changes in the first unanswered frame.
    Executed(usize),
}

/// One direction of a connection: frames in order, each with its arrival time.
struct Direction<T>(VecDeque<(u64, T)>);

impl<T> Direction<T> {
    fn send(&mut self, now: u64, delay: u64, frame: T) {
        let at = self.0.back().map_or(0, |(at, _)| *at).max(now + delay);
        self.0.push_back((at, frame));
    }

    fn receive(&mut self, now: u64) -> Option<T> {
        let is_due = self.0.front().is_some_and(|(at, _)| *at <= now);
        if is_due { self.0.pop_front().map(|(_, frame)| frame) } else { None }
    }
}

/// A connection with the state of both sides. Each frame counts as one byte.
struct Connection {
    up: Direction<Request>,
    down: Direction<Reply>,
    /// The forwarding node's side; `None` until it has received `Accepted`.
    leases: Option<LinkLeases>,
    opened_at: u64,
    heard_at: u64,
    /// The end and the grant time of a lease that is granted and not sent yet.
    lease: Option<(Millis, Millis)>,
    /// The changes in the sent frames that have no reply yet.
    unanswered: VecDeque<Vec<u64>>,
    is_closed: bool,
    /// Whether the node sends no new changes on this connection, because another node leads.
    is_retired: bool,
    /// Whether a later connection proves that the leader executes no more changes from this
    /// connection.
    has_peer_ended: bool,
    /// The leader's side; `None` until it has received `Hello`.
    fence: Option<Fence>,
    received: u64,
    heartbeat_at: u64,
    /// Frames that the leader has read but not executed, because it has no lease.
    fenced: VecDeque<Frame>,
    /// Whether the leader has refused the connection.
    is_refused: bool,
}

struct World {
    random: Random,
    now: u64,
    clocks: [Clock; 2],
    /// The times until which the two processes are paused.
    paused_until: [u64; 2],
    /// The current delay of frames in each direction.
    delays: [u64; 2],
    has_faults: bool,
    connections: Vec<Connection>,
    /// Whether the leader process currently leads.
    leads: bool,
    /// Whether the leader process leads, as last seen by the forwarding node.
    is_followed: bool,
    /// Changes that the leader has returned because it did not lead.
    returned: Vec<u64>,
    transfers: u64,
    next_change: u64,
    /// For each failed change, the time at which the node reported the failure.
    failed: BTreeMap<u64, u64>,
    executed: BTreeMap<u64, u64>,
    answered: u64,
}

/// The result of one seed: the numbers of executed, answered and failed changes, and of transfers.
type Counts = (usize, u64, usize, u64);

impl World {
    fn new(seed: u64, has_faults: bool) -> Self {
        let random = Random::new(seed);
        let clocks = [Clock::new(&random), Clock::new(&random)];
        Self {
            random,
            now: 0,
            clocks,
            paused_until: [0, 0],
            delays: [1, 1],
            has_faults,
            connections: Vec::new(),
            leads: true,
            is_followed: true,
            returned: Vec::new(),
            transfers: 0,
            next_change: 0,
            failed: BTreeMap::new(),
            executed: BTreeMap::new(),
            answered: 0,
        }
    }

    fn run(mut self) -> Counts {
        while self.now < FAULTS + RECOVERY {
            if self.has_faults {
                self.change_faults();
            }
            self.change_leader();
            // Within a step, the two processes run in random order.
            let leader_first = self.random.below(2) == 0;
            for is_leader in [leader_first, !leader_first] {
                match is_leader {
                    true if self.now >= self.paused_until[1] => self.step_leader(),
                    false if self.now >= self.paused_until[0] => self.step_forwarder(),
                    _ => (),
                }
            }
            self.now += STEP;
        }
        let open = self.connections.iter().map(|connection| connection.unanswered.len());
        let open = open.sum::<usize>() + self.returned.len();
        assert_eq!(open, 0, "all changes have a result");
        (self.executed.len(), self.answered, self.failed.len(), self.transfers)
    }

    fn change_leader(&mut self) {
        if self.now >= FAULTS + RECOVERY / 2 {
            (self.leads, self.is_followed) = (true, true);
        } else if self.leads {
            self.leads = self.random.below(300) > 0;
            self.transfers += u64::from(!self.leads);
        } else {
            self.leads = self.random.below(30) == 0;
        }
        if self.random.below(10) == 0 {
            self.is_followed = self.leads;
        }
    }

    fn change_faults(&mut self) {
        if self.now >= FAULTS {
            (self.delays, self.paused_until) = ([1, 1], [0, 0]);
            return;
        }
        for side in 0..2 {
            if self.random.below(100) == 0 {
                self.delays[side] = match self.random.below(6) {
                    0 => 300,
                    1 => 2000,
                    2 => 60_000,
                    _ => 1 + self.random.below(50),
                };
            }
            if self.random.below(150) == 0 {
                self.paused_until[side] = self.now + self.random.below(2500);
            }
        }
    }

    /// Pauses a process with a probability of 1/60 while there are faults. Returns whether it
    /// pauses the process.
    fn pauses(&mut self, side: usize) -> bool {
        let pauses = self.has_faults && self.now < FAULTS && self.random.below(60) == 0;
        if pauses {
            self.paused_until[side] = self.now + self.random.below(2500);
        }
        pauses
    }

    fn step_forwarder(&mut self) {
        let now = self.clocks[0].at(self.now);
        self.receive_replies(now);
        if self.pauses(0) {
            return;
        }
        self.give_up();
        if self.pauses(0) {
            return;
        }
        self.report_failures(now);
        self.send();
    }

    fn receive_replies(&mut self, now: Millis) {
        for index in 0..self.connections.len() {
            // Also read from closed connections: the reading thread may have been paused while the
            // connection was closed.
            while let Some(reply) = self.connections[index].down.receive(self.now) {
                let connection = &mut self.connections[index];
                connection.heard_at = self.now;
                match reply {
                    Reply::Accepted { .. } if connection.is_closed => (),
                    Reply::Accepted { time } => {
                        let mut leases =
                            LinkLeases::new(time, self.now - connection.opened_at, now);
                        connection.lease = leases.grant(now).map(|until| (until, now));
                        connection.leases = Some(leases);
                        // The leader has closed its side of all earlier connections.
                        self.connections[..index].iter_mut().for_each(|c| c.has_peer_ended = true);
                    }
                    Reply::Heartbeat { sent, received } => {
                        let Some(leases) = &mut connection.leases else { continue };
                        leases.note_heartbeat(sent, received, now);
                        connection.lease = leases.grant(now).map(|until| (until, now));
                    }
                    Reply::Executed(count) => {
                        // If the node has reported the changes as failed, a late reply matches no
                        // frame.
                        let Some(changes) = connection.unanswered.pop_front() else { continue };
                        self.answered += count as u64;
                        self.returned.extend(changes.into_iter().skip(count));
                    }
                }
            }
        }
    }

    /// Closes the current connection if the leader is silent. The leader does not notice, because
    /// the network drops the reset.
    fn give_up(&mut self) {
        let Some(connection) = self.connections.last_mut().filter(|of| !of.is_closed) else {
            return;
        };
        let silence = match &connection.leases {
            Some(leases) => leases.lease_time(),
            None => CONNECT_TIMEOUT,
        };
        let is_stalled = connection.leases.as_ref().is_some_and(|leases| leases.is_stalled());
        let heard_at = connection.heard_at.max(connection.opened_at);
        let is_reset = self.has_faults && self.now < FAULTS && self.random.below(300) == 0;
        if self.now > heard_at + silence || is_stalled || connection.is_refused || is_reset {
            connection.is_closed = true;
            if let Some(leases) = &mut connection.leases {
                leases.close();
            }
        }
    }

    fn report_failures(&mut self, now: Millis) {
        for connection in &mut self.connections {
            let has_ended = connection.leases.as_ref().is_none_or(|leases| leases.have_ended(now));
            if connection.is_closed && (connection.has_peer_ended || has_ended) {
                let lost = connection.unanswered.drain(..).flatten();
                self.failed.extend(lost.map(|change| (change, self.now)));
            }
        }
    }

    /// Retires the connection if another node leads. Uses the connection again if its leader leads
    /// again.
    fn note_leader(&mut self) {
        let Some(connection) = self.connections.last_mut().filter(|of| !of.is_closed) else {
            return;
        };
        connection.is_retired = !self.is_followed;
        if connection.is_retired
            && connection.unanswered.is_empty()
            && let Some(leases) = &mut connection.leases
        {
            connection.is_closed = true;
            leases.close();
        }
    }

    fn send(&mut self) {
        self.note_leader();
        let is_down = self.connections.last().is_none_or(|connection| connection.is_closed);
        if is_down && self.is_followed {
            let mut connection = Connection::new(self.now);
            connection.up.send(self.now, self.delays[0], Request::Hello);
            self.connections.push(connection);
        }
        let delay = self.delays[0];
        // Include closed connections: a paused writer may still have a lease for a connection that
        // was closed during the pause.
        for index in 0..self.connections.len() {
            if self.connections[index].lease.is_some() && self.pauses(0) {
                return;
            }
            let connection = &mut self.connections[index];
            if let Some((until, granted_at)) = connection.lease.take() {
                connection.up.send(self.now, delay, Request::Lease(until));
                let leases = connection.leases.as_mut().expect("a lease was granted");
                leases.note_written(1, Some(granted_at));
            }
        }
        let count = if self.random.below(5) == 0 { 1 + self.random.below(3) } else { 0 };
        let count = if self.now < FAULTS + RECOVERY / 2 { count } else { 0 };
        let Some(connection) = self.connections.last_mut() else { return };
        let Some(leases) = &mut connection.leases else { return };
        if !connection.is_closed && !connection.is_retired {
            let mut changes = std::mem::take(&mut self.returned);
            changes.extend(self.next_change..self.next_change + count);
            self.next_change += count;
            if changes.is_empty() {
                return;
            }
            let frame = Frame { changes: changes.clone(), executed: 0 };
            connection.up.send(self.now, delay, Request::Changes(frame));
            leases.note_written(1, None);
            connection.unanswered.push_back(changes);
        }
    }

    fn step_leader(&mut self) {
        let clock = self.clocks[1].at(self.now);
        LEADERS_CLOCK.set(clock);
        for index in 0..self.connections.len() {
            while let Some(request) = self.connections[index].up.receive(self.now) {
                self.receive_request(index, request, clock);
                if self.pauses(1) {
                    return;
                }
            }
            let (now, delay) = (self.now, self.delays[1]);
            let connection = &mut self.connections[index];
            let is_open = connection.fence.as_ref().is_some_and(|fence| !fence.is_closed());
            if is_open && now >= connection.heartbeat_at + HEARTBEAT {
                connection.heartbeat_at = now;
                let received = connection.received;
                connection.down.send(now, delay, Reply::Heartbeat { sent: clock, received });
            }
        }
    }

    fn receive_request(&mut self, index: usize, request: Request, clock: Millis) {
        let (now, delay) = (self.now, self.delays[1]);
        match request {
            Request::Hello => {
                // The number of a connection is its index.
                let later = self.connections[index + 1..].iter().any(Connection::is_open_at_leader);
                if later {
                    self.connections[index].is_refused = true;
                    return;
                }
                let earlier = self.connections[..index].iter().filter_map(|of| of.fence.as_ref());
                earlier.for_each(Fence::close);
                let connection = &mut self.connections[index];
                connection.fence = Some(Fence::new(|| LEADERS_CLOCK.get()));
                connection.heartbeat_at = now;
                connection.down.send(now, delay, Reply::Accepted { time: clock });
            }
            Request::Lease(until) => {
                let connection = &mut self.connections[index];
                connection.received += 1;
                if let Some(fence) = &connection.fence {
                    fence.extend(until);
                }
                for frame in std::mem::take(&mut connection.fenced) {
                    self.execute(index, frame);
                }
            }
            Request::Changes(frame) => {
                self.connections[index].received += 1;
                match self.connections[index].fenced.is_empty() {
                    true => self.execute(index, frame),
                    false => self.connections[index].fenced.push_back(frame),
                }
            }
        }
    }

    /// Executes the changes of a frame. Each check of the fence and the effect of its change are
    /// one atomic step, as under the lock of the key.
    fn execute(&mut self, index: usize, mut frame: Frame) {
        let connection = &mut self.connections[index];
        let Some(fence) = &connection.fence else { return };
        while let Some(change) = frame.changes.get(frame.executed)
            && self.leads
        {
            if fence.is_closed() {
                return;
            }
            if !fence.is_open() {
                connection.fenced.push_back(frame);
                return;
            }
            assert!(!self.failed.contains_key(change), "executed after its failure was reported");
            assert!(self.executed.insert(*change, self.now).is_none(), "executed twice");
            frame.executed += 1;
            if self.now < FAULTS + RECOVERY / 2 && self.random.below(150) == 0 {
                self.leads = false;
                self.transfers += 1;
            }
        }
        if !fence.is_closed() {
            connection.down.send(self.now, self.delays[1], Reply::Executed(frame.executed));
        }
    }
}

impl Connection {
    fn new(now: u64) -> Self {
        Self {
            up: Direction(VecDeque::new()),
            down: Direction(VecDeque::new()),
            leases: None,
            opened_at: now,
            heard_at: now,
            lease: None,
            unanswered: VecDeque::new(),
            is_closed: false,
            is_retired: false,
            has_peer_ended: false,
            fence: None,
            received: 0,
            heartbeat_at: 0,
            fenced: VecDeque::new(),
            is_refused: false,
        }
    }

    fn is_open_at_leader(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.is_closed())
    }
}

#[test]
fn no_change_takes_effect_after_its_failure_was_reported() {
    let counts = run_seeds(|seed| World::new(seed, true).run());
    let executed: usize = counts.iter().map(|(executed, ..)| executed).sum();
    let failed: usize = counts.iter().map(|(_, _, failed, _)| failed).sum();
    let transfers: u64 = counts.iter().map(|(.., transfers)| transfers).sum();
    assert!(executed > 100 * counts.len() && failed > 10 * counts.len(), "{executed}, {failed}");
    assert!(transfers > 10 * counts.len() as u64, "{transfers}");
}

#[test]
fn no_change_fails_without_faults() {
    for (seed, delay) in [(1, 1), (2, 150), (3, 600), (4, 1500)] {
        let mut world = World::new(seed, false);
        world.delays = [delay, delay];
        let (executed, _, failed, transfers) = world.run();
        assert!(executed > 100 && transfers > 10, "{executed} with a delay of {delay} ms");
        assert_eq!(failed, 0, "with a delay of {delay} ms");
    }
}
