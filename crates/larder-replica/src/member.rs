//! Who leads a group: what a member of it does, without I/O.
//!
//! The record of the group (`group.rs`) says who leads. A member that has all items replaces it with one that names
//! itself if the leader is gone: its process has ended, or it has said for a while neither to the coordinator nor
//! to this member that it is alive.
//!
//! ```text
//!  coordinator ── look: record, who is alive ──▶ Member ── swap: the record that is to be ──▶ coordinator
//!  the stream ─── beats, acknowledgements ─────▶   │
//!                                                  └─▶ role, and until when it may answer as the leader
//! ```
//! A leader answers while nobody else can have taken its place. It knows that for a second from when it sent a
//! question whose answer showed its record, or, for the time in which the coordinator is out of reach, from when it
//! sent a beat to which every other member in sync answered with a promise not to stand for longer than that. So
//! two leaders overlap by no more than a second, however long one of them stood still.

use crate::group::{EPOCH_MAX, HandOverWish, Process, Record, Revision, View};
use std::collections::BTreeMap;

/// Milliseconds on a clock of this machine that also goes on while it is suspended.
pub type Millis = u64;

/// How long a leader may answer after it sent what showed that it still leads.
pub const PROOF_TIME: Millis = 1000;
/// How long a member does not stand for election after it has answered a beat.
pub const PROMISE_TIME: Millis = 1250;
/// How often a leader looks at the record, and how often others do.
const LEADER_LOOKS: Millis = 300;
const FOLLOWER_LOOKS: Millis = 500;
/// How soon a look that has failed is tried again.
const RETRY: Millis = 200;
/// A member that lacks changes that are older than this is not in sync.
const BEHIND_MAX: Millis = 1000;
/// The connections that the leader's port has to refuse before its process counts as ended.
const REFUSALS: u32 = 2;
/// How long a leader tries to hand over.
pub const HAND_OVER_TIME: Millis = 2000;

/// What a member is to do when neither it nor others can know who leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// It answers nothing.
    #[default]
    Stop,
    /// It goes on, at the risk that another leader does, too.
    Serve,
}

/// How a member was set up.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// Who it is.
    pub me: Process,
    /// What it does in doubt.
    pub in_doubt: InDoubt,
    /// After this time without a leader any member leads, whatever it has; `None`: never.
    pub unclean_after: Option<Millis>,
}

/// What is to be asked of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Look at the group, and call [`Member::looked`].
    Look,
    /// Replace the record of this number, and call [`Member::swapped`].
    Swap(Revision, Record),
}

/// What a member is in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// There is no leader, as far as it knows.
    Alone,
    /// It leads.
    Leader {
        /// Its epoch.
        epoch: u32,
        /// What it has is not what the group had, and has to be removed first.
        begins_empty: bool,
    },
    /// It follows.
    Follower {
        /// The leader.
        leader: Process,
        /// The leader's epoch.
        epoch: u32,
    },
}

/// Whether a member can be in sync that is known to have all changes up to this time.
#[must_use]
pub fn is_near(has_until: Millis, now: Millis) -> bool {
    now.saturating_sub(has_until) <= BEHIND_MAX
}

impl Role {
    /// In a word, for statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Leader { .. } => "leader",
            Self::Follower { .. } => "follower",
        }
    }
}

/// A member of a group.
#[derive(Debug)]
pub struct Member {
    settings: MemberSettings,
    view: View,
    has_looked: bool,
    next_look: Millis,
    /// When the question was sent that is not answered yet.
    asked: Millis,
    /// When the last question was sent whose answer showed that this member leads.
    proof: Option<Millis>,
    /// Swaps that were not answered, with the revisions that they replace: each may still come to the coordinator, as
    /// long as that is the revision.
    unanswered: Vec<(Revision, Record)>,
    /// The epoch in which this member began to lead with nothing.
    began_empty: Option<u32>,
    /// The epoch in which this member began to lead, while it does.
    leads_since: Option<u32>,
    /// This leader's epoch is to be this one at least.
    least_epoch: u32,
    /// Members that have all items, as their leader knows, and up to which time they have all changes.
    ready: BTreeMap<Process, Millis>,
    /// When the last beat was sent that a member has promised upon.
    promises: BTreeMap<Process, Millis>,
    /// This member does not stand before this time.
    promised_until: Millis,
    /// The process that refuses connections, and how many.
    refusals: (u64, u32),
    /// Since when there has been no leader.
    dead_since: Option<Millis>,
    /// This member has begun a copy, and lacks items until that is complete.
    lacks_items: bool,
    /// The record as it was last, also if it is gone since.
    last_record: Option<Record>,
    /// This leader answers nothing any more, and names its successor once it knows one.
    hand_over: Option<HandOver>,
    /// When it leads on, if nobody has taken over.
    hands_over_until: Millis,
}

/// A leader that is about to end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HandOver {
    /// It waits until a member has all items.
    Waiting,
    /// This one has them, and is to lead.
    To(Process),
}

impl Member {
    /// A member that knows nothing yet.
    #[must_use]
    pub fn new(settings: MemberSettings) -> Self {
        Self {
            settings,
            view: View::default(),
            has_looked: false,
            next_look: 0,
            asked: 0,
            proof: None,
            unanswered: Vec::new(),
            began_empty: None,
            leads_since: None,
            least_epoch: 0,
            ready: BTreeMap::new(),
            promises: BTreeMap::new(),
            promised_until: 0,
            refusals: (0, 0),
            dead_since: None,
            lacks_items: false,
            last_record: None,
            hand_over: None,
            hands_over_until: 0,
        }
    }

    /// The group as it was last seen.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Who this is.
    #[must_use]
    pub fn me(&self) -> &Process {
        &self.settings.me
    }

    /// What this member is.
    #[must_use]
    pub fn role(&self) -> Role {
        match &self.view.record {
            None => Role::Alone,
            Some(record) if record.leader == self.settings.me => {
                let begins_empty =
                    self.began_empty.is_some_and(|epoch| self.leads_since == Some(epoch));
                Role::Leader { epoch: record.epoch, begins_empty }
            }
            Some(record) => Role::Follower { leader: record.leader.clone(), epoch: record.epoch },
        }
    }

    fn leads(&self) -> bool {
        self.view.record.as_ref().is_some_and(|record| record.leader == self.settings.me)
    }

    /// The epoch in which this member began to lead, if it does. Its epoch may have risen since.
    #[must_use]
    pub fn leads_since(&self) -> Option<u32> {
        self.leads_since
    }

    /// Has this leader go on in this epoch at least, so that no CAS value that it gives is one of an earlier epoch of
    /// another group. False if it does not lead, or there is no such epoch.
    pub fn raise_epoch(&mut self, least: u32) -> bool {
        let can_be = self.leads() && least <= EPOCH_MAX;
        if can_be {
            self.least_epoch = self.least_epoch.max(least);
        }
        can_be
    }

    /// When the coordinator was last seen to name this member as the leader.
    #[must_use]
    pub fn proof(&self) -> Option<Millis> {
        self.proof
    }

    /// The time until which this member may answer as the leader: one that is past if it may not.
    #[must_use]
    pub fn serves_until(&self) -> Millis {
        let Some(record) = self.view.record.as_ref().filter(|_| self.leads()) else { return 0 };
        if self.hand_over.is_some() {
            return 0;
        }
        if self.settings.in_doubt == InDoubt::Serve {
            return Millis::MAX;
        }
        let unanswered = self.unanswered.iter().flat_map(|(_, record)| &record.in_sync);
        let others = record.in_sync.iter().chain(unanswered);
        let mut others = others.filter(|process| **process != self.settings.me).peekable();
        if others.peek().is_none() && self.settings.unclean_after.is_none() {
            // Nobody else may stand.
            return Millis::MAX;
        }
        let promised = others.map(|other| self.promises.get(other).copied()).min().flatten();
        // Whoever is named by a swap of this leader leads without standing.
        let may_name_another =
            self.unanswered.iter().any(|(_, record)| record.leader != self.settings.me);
        let promised = promised.filter(|_| !may_name_another);
        self.proof.max(promised).map_or(0, |since| since + PROOF_TIME)
    }

    /// What is to be done now, if anything. The answer has to come before the next call.
    pub fn next(&mut self, now: Millis) -> Option<Command> {
        if now >= self.hands_over_until {
            self.hand_over = None;
        }
        if self.has_looked
            && let Some(record) = self.wants(now)
        {
            let swap = (self.view.revision, record.clone());
            self.asked = now;
            self.unanswered.retain(|before| *before != swap);
            self.unanswered.push(swap);
            return Some(Command::Swap(self.view.revision, record));
        }
        (now >= self.next_look).then(|| {
            self.asked = now;
            Command::Look
        })
    }

    /// How long nothing has to be done, if nothing happens.
    #[must_use]
    pub fn idle_time(&self, now: Millis) -> Millis {
        self.next_look.saturating_sub(now)
    }

    /// Has the record looked at soon.
    pub fn look_soon(&mut self) {
        self.next_look = 0;
    }

    /// The record that this member wants instead of the one that there is.
    fn wants(&self, now: Millis) -> Option<Record> {
        let me = &self.settings.me;
        let Some(record) = &self.view.record else {
            let Some(last) = &self.last_record else {
                return Some(Record { epoch: 1, leader: me.clone(), in_sync: vec![me.clone()] });
            };
            // The record is gone: who had all items goes on, or anybody if those are gone, too.
            let may_lead = last.in_sync.contains(me) && !self.lacks_items
                || !last.in_sync.iter().any(|process| self.view.is_live(process));
            let epoch = (last.epoch + 1).min(EPOCH_MAX);
            let (leader, in_sync) = (me.clone(), vec![me.clone()]);
            return may_lead.then_some(Record { epoch, leader, in_sync });
        };
        if let Some(HandOver::To(next)) = self.hand_over.as_ref().filter(|_| self.leads())
            && record.in_sync.contains(next)
            && record.epoch < EPOCH_MAX
        {
            let (epoch, leader) = (record.epoch + 1, next.clone());
            return Some(Record { epoch, leader, in_sync: vec![next.clone()] });
        }
        if self.leads() {
            let ready = self.ready.iter().filter(|(_, time)| is_near(**time, now));
            let in_sync: Vec<Process> =
                std::iter::once(me).chain(ready.map(|(process, _)| process)).cloned().collect();
            let is_same = in_sync.len() == record.in_sync.len()
                && in_sync.iter().all(|process| record.in_sync.contains(process));
            let epoch = record.epoch.max(self.least_epoch);
            let is_wanted = !is_same || epoch != record.epoch || !self.unanswered.is_empty();
            return is_wanted.then(|| Record { epoch, in_sync, leader: me.clone() });
        }
        if record.epoch < EPOCH_MAX && self.may_stand(record, now) {
            let (epoch, leader) = (record.epoch + 1, me.clone());
            return Some(Record { epoch, leader, in_sync: vec![me.clone()] });
        }
        // What was not answered can't come after this has.
        (!self.unanswered.is_empty()).then(|| record.clone())
    }

    fn may_stand(&self, record: &Record, now: Millis) -> bool {
        if record.in_sync.contains(&self.settings.me) && !self.lacks_items {
            let has_ended = self.refusals.0 == record.leader.boot && self.refusals.1 >= REFUSALS;
            return has_ended
                || self.view.is_replaced(&record.leader)
                || !self.view.is_live(&record.leader) && now >= self.promised_until;
        }
        // Whoever had the items has started again since, without them; so has this member, or it has begun a copy.
        let has_none =
            |process: &Process| *process == self.settings.me || self.view.is_replaced(process);
        record.in_sync.iter().all(has_none) || self.waits_no_more(now)
    }

    fn waits_no_more(&self, now: Millis) -> bool {
        let waited = self.dead_since.map(|since| now.saturating_sub(since));
        self.settings.unclean_after.zip(waited).is_some_and(|(limit, waited)| waited >= limit)
    }

    /// The coordinator has answered a look; `None` if it has not.
    pub fn looked(&mut self, now: Millis, view: Option<View>) {
        let Some(view) = view else {
            self.next_look = now + RETRY;
            return;
        };
        self.has_looked = true;
        self.see(now, view);
    }

    /// The coordinator has answered a swap: the record's new number, or that somebody else has replaced it. `None`
    /// if it has not answered.
    pub fn swapped(&mut self, now: Millis, answer: Option<Option<Revision>>) {
        let wanted = self.unanswered.last().map(|(_, record)| record.clone());
        let (Some(Some(revision)), Some(record)) = (answer, wanted) else {
            // Either the record is another one, or it is not known which one it is.
            self.has_looked = false;
            self.next_look = if answer.is_some() { 0 } else { now + RETRY };
            return;
        };
        let is_handed_over = record.leader != self.settings.me;
        let view = View { record: Some(record), revision, ..self.view.clone() };
        self.see(now, view);
        if is_handed_over {
            // Who is alive was seen before that. If the next leader has only just started, it would be taken for one
            // whose place another process of its node has taken.
            (self.has_looked, self.next_look) = (false, 0);
        }
    }

    /// Takes in the group as it is now.
    fn see(&mut self, now: Millis, view: View) {
        let before = self.view.record.as_ref();
        let was_in_sync = before.is_none_or(|record| record.in_sync.contains(&self.settings.me));
        let had_items = was_in_sync && !self.lacks_items;
        let (led, was_unclean) = (self.leads(), self.waits_no_more(now));
        let leader = view.record.as_ref().map(|record| &record.leader);
        let is_new = before.map(|record| &record.leader) != leader;
        if is_new {
            (self.promised_until, self.hand_over) = (0, None);
            self.ready.clear();
            self.promises.clear();
        }
        let is_dead = view.record.as_ref().is_some_and(|record| !view.is_live(&record.leader));
        self.dead_since = if is_dead { self.dead_since.or(Some(now)) } else { None };
        // Otherwise somebody has named it, who wants its items whatever is missing.
        let is_own = self.unanswered.iter().any(|(_, own)| Some(own) == view.record.as_ref());
        let epoch = |record: Option<&Record>| record.map(|record| record.epoch);
        let goes_on = led && (is_own || epoch(before) == epoch(view.record.as_ref()));
        self.unanswered.retain(|(revision, _)| *revision == view.revision);
        self.view = view;
        if self.view.record.is_some() {
            self.last_record.clone_from(&self.view.record);
        }
        let Some(record) = self.view.record.as_ref().filter(|_| self.leads()) else {
            self.proof = None;
            (self.leads_since, self.least_epoch) = (None, 0);
            self.next_look = self.asked + FOLLOWER_LOOKS;
            return;
        };
        if !goes_on {
            (self.leads_since, self.least_epoch) = (Some(record.epoch), 0);
        }
        if !led && is_own && !had_items && !was_unclean {
            self.began_empty = Some(record.epoch);
        }
        self.proof = Some(self.asked);
        self.next_look = self.asked + LEADER_LOOKS;
    }

    /// The wish that this leader hands over, if there is one.
    #[must_use]
    pub fn wish_to_hand_over(&self) -> Option<&HandOverWish> {
        let epoch = self.view.record.as_ref().filter(|_| self.leads())?.epoch;
        self.view.wishes.hand_over.as_ref().filter(|wish| wish.epoch == epoch)
    }

    /// Begins to hand over to another member, of this name if there is one: this leader answers nothing from here on,
    /// or for [`HAND_OVER_TIME`] if nobody takes over. Those that could lead next; without any, it leads on.
    pub fn begin_hand_over(&mut self, now: Millis, to: Option<&str>) -> Vec<Process> {
        let can_end = self.view.record.as_ref().is_some_and(|record| record.epoch < EPOCH_MAX);
        if !self.leads() || !can_end {
            return Vec::new();
        }
        let record = self.view.record.iter().flat_map(|record| &record.in_sync);
        let is_ready = |process: &&Process| {
            to.is_none_or(|to| process.node == to)
                && self.ready.get(*process).is_some_and(|time| is_near(*time, now))
        };
        let could: Vec<Process> = record.filter(is_ready).cloned().collect();
        if !could.is_empty() {
            (self.hand_over, self.hands_over_until) =
                (Some(HandOver::Waiting), now + HAND_OVER_TIME);
        }
        could
    }

    /// Hands over to a member that has all that this leader has answered.
    pub fn hand_over_to(&mut self, next: Process) {
        if self.hand_over.is_some() {
            self.hand_over = Some(HandOver::To(next));
        }
    }

    /// The leader's port has refused a connection, though its machine is there.
    pub fn note_refusal(&mut self, leader: &Process) {
        let before = if self.refusals.0 == leader.boot { self.refusals.1 } else { 0 };
        self.refusals = (leader.boot, before + 1);
        self.look_soon();
    }

    /// The leader's port was answered by another process: the one that led has ended.
    pub fn note_replaced(&mut self, leader: &Process) {
        self.refusals = (leader.boot, REFUSALS);
        self.look_soon();
    }

    /// A copy is about to begin, for which this member removes all items. False if it may not, because this member
    /// may be about to lead.
    #[must_use]
    pub fn begin_copy(&mut self) -> bool {
        self.lacks_items |= self.unanswered.is_empty();
        self.lacks_items
    }

    /// Whether this member has begun a copy that is not complete.
    #[must_use]
    pub fn lacks_items(&self) -> bool {
        self.lacks_items
    }

    /// A copy is complete, or this member leads.
    pub fn note_copy(&mut self) {
        self.lacks_items = false;
    }

    /// The leader has accepted a connection.
    pub fn note_connected(&mut self) {
        self.refusals = (0, 0);
    }

    /// The leader has sent a beat. True if that is promised upon: this member does not stand for a while.
    pub fn note_beat(&mut self, leader: &Process, now: Millis) -> bool {
        let is_followed = self.view.record.as_ref().is_some_and(|record| record.leader == *leader);
        // It stands already, if something is not answered.
        let may_promise = is_followed && self.unanswered.is_empty();
        if may_promise {
            self.promised_until = self.promised_until.max(now + PROMISE_TIME);
        }
        may_promise
    }

    /// A member has acknowledged a beat. `has_until`: it has all items, with all changes up to this time. `promised`:
    /// when the beat was sent, if the member does not stand for election for a while after it.
    pub fn note_ack(
        &mut self,
        member: &Process,
        has_until: Option<Millis>,
        promised: Option<Millis>,
    ) {
        match has_until {
            Some(time) => self.ready.insert(member.clone(), time),
            None => self.ready.remove(member),
        };
        if let Some(sent) = promised {
            let promise = self.promises.entry(member.clone()).or_default();
            *promise = (*promise).max(sent);
        }
    }

    /// A member has no connection any more.
    pub fn note_gone(&mut self, member: &Process) {
        self.ready.remove(member);
    }

    /// Whether the process of this number may stand, or may be about to: it is in sync, or would be by a swap that is
    /// not answered, or by the next one.
    #[must_use]
    pub fn may_be_in_sync(&self, boot: u64, now: Millis) -> bool {
        let mut ready = self.ready.iter();
        if ready.any(|(process, time)| process.boot == boot && is_near(*time, now)) {
            return true;
        }
        let unanswered = self.unanswered.iter().map(|(_, record)| record);
        let mut records = self.view.record.iter().chain(unanswered);
        records.any(|record| record.in_sync.iter().any(|process| process.boot == boot))
    }
}
