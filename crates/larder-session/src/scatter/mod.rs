//! Requests whose keys several groups have: each is sent to the leader of its group, or answered here, all at once, and
//! the answers are put in order.
//!
//! `memcached.rs` divides batches of memcached's protocol into parts, and `resp/scatter.rs` those of RESP. Here the
//! answers to parts are waited for. A part is one request, or one key of a line of keys, so that each has one key and
//! can be sent to another group than the others if its key has moved.

mod memcached;

use crate::context::{Context, Next, Step, Turn};
use crate::route::{Conversation, ForwardOutcome, Group, Owner};
use crate::session::Session;
use crate::session::pending::{Part, PartBytes, PartState, Pending, Scattered};
use crate::{Host, ShardMap};
use larder_operations::{AnsweredCounts, CommandClass};
use larder_protocol::reply::resp as resp_reply;
use larder_protocol::resp::CommandError;
use larder_store::Engine;
use std::collections::VecDeque;
use std::ops::Range;

/// Who answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    /// The leader of this group.
    There(Group),
    /// All groups.
    Everywhere,
    /// Those who have its keys: each is asked for by itself.
    ByKey,
    /// It is answered apart, when those before it have been.
    Apart,
}

/// Where requests of a batch go, in order.
pub(crate) struct Places<'h> {
    shard_map: Option<&'h dyn ShardMap>,
    owner: Owner,
    /// No change has been sent to the leader yet, so look-ups may be answered from a copy.
    reads_copy: bool,
}

impl<'h> Places<'h> {
    pub(crate) fn new(host: &'h impl Host) -> Self {
        let owner = host.owner();
        let reads_copy = owner == Owner::RemoteWithLocalReads;
        Self { shard_map: host.shard_map(), owner, reads_copy }
    }

    /// The same, for requests that may follow a change.
    pub(crate) fn behind_change(host: &'h impl Host) -> Self {
        Self { reads_copy: false, ..Self::new(host) }
    }

    /// What `find` finds, once keys have stayed where they are for so long: requests for one key go the same way, so
    /// that they stay in order.
    pub(crate) fn settled<R>(host: &'h impl Host, mut find: impl FnMut(&mut Self) -> R) -> R {
        let version = || host.shard_map().map(|map| map.version());
        loop {
            let before = version();
            let found = find(&mut Self::new(host));
            if version() == before {
                return found;
            }
        }
    }

    /// Where the next request goes, which is for this key.
    pub(crate) fn next(&mut self, key: &[u8], looks_up: bool) -> Place {
        let group = self.shard_map.map_or(Group::OWN, |map| map.group_of(key));
        if group != Group::OWN {
            return Place::There(group);
        }
        self.reads_copy &= looks_up;
        if self.owner == Owner::Local || self.reads_copy {
            return Place::Here;
        }
        Place::There(Group::OWN)
    }
}

impl<E: Engine> Part<E> {
    pub(crate) fn new(request: PartBytes, state: PartState<E>) -> Self {
        Self {
            request,
            state,
            unshown: Vec::new(),
            continues: false,
            is_dropped: false,
            is_kept: false,
            is_repeatable: true,
            answer: Vec::new(),
            is_begun: false,
        }
    }

    /// Shows what has come of the answer, but not what may be its end.
    fn show(&mut self, output: &mut Vec<u8>) {
        let len = self.answer.len().saturating_sub(self.unshown.len());
        if len > 0 && !self.is_kept {
            self.is_begun = true;
            let shown = self.answer.drain(..len);
            if !self.is_dropped {
                output.extend(shown);
            }
        }
    }

    /// Shows the rest of a complete answer. False if it is an error that ends the answer of other parts.
    fn show_rest(&mut self, output: &mut Vec<u8>) -> bool {
        let is_right = self.is_dropped || self.answer == self.unshown;
        if !is_right {
            output.append(&mut self.answer);
        }
        self.unshown.is_empty() || is_right
    }

    /// Leaves out what ends an answer that this server has given; without that it is an error.
    fn leave_end_out(&mut self) {
        let is_right = match &mut self.state {
            PartState::Here(Some(sending)) => sending.leave_end_out(&self.unshown),
            _ => {
                let is_right = self.answer.ends_with(&self.unshown);
                let len = self.answer.len() - if is_right { self.unshown.len() } else { 0 };
                self.answer.truncate(len);
                is_right
            }
        };
        if !is_right {
            self.state = PartState::Refused;
        }
    }

    pub(crate) fn bytes<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match &self.request {
            PartBytes::At(range) => input.get(range.clone()).unwrap_or_default(),
            PartBytes::Own(bytes) => bytes,
        }
    }
}

impl<E: Engine> Scattered<E> {
    pub(crate) fn new() -> Self {
        Self {
            parts: VecDeque::new(),
            sending: None,
            len: 0,
            answered: AnsweredCounts::default(),
            waits_for_room: false,
            swallows_line: false,
            is_script: false,
            divided: None,
        }
    }

    /// How many bytes of the cache are leased for values that are sent or wait for that.
    pub(crate) fn leased_bytes(&self) -> usize {
        let behind = self.parts.iter().filter_map(|part| match &part.state {
            PartState::Here(sending) => sending.as_ref(),
            _ => None,
        });
        self.sending.iter().chain(behind).map(|sending| sending.len()).sum()
    }

    /// The bytes of answers that are kept here.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.answer.len()).sum()
    }

    /// Counts a request as answered.
    pub(crate) fn count(&mut self, class: Option<CommandClass>) {
        if let Some(class) = class {
            self.answered.add(class, 1);
        }
    }

    /// Shows nothing of the parts that belong to the same answer as the first one.
    fn drop_rest_of_answer(&mut self) {
        let rest = self.parts.iter_mut().skip(1).take_while(|part| part.continues);
        rest.for_each(|part| part.is_dropped = true);
    }

    /// Whether the answer of the first part goes on with the last one.
    fn is_last_answer(&self) -> bool {
        self.parts.iter().skip(1).all(|part| part.continues)
    }
}

/// What has become of the first part.
enum Headway {
    Answered,
    /// It may go on at once.
    GoesOn,
    Waits(Next),
    Close,
}

impl<E: Engine> Session<E> {
    /// Waits for the answers to parts, and shows them in order.
    #[cold]
    pub(crate) fn resume_scattered<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut scattered: Box<Scattered<E>>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        while !scattered.parts.is_empty() || scattered.sending.is_some() {
            let mut has_room = output.len() <= cx.settings.output_max;
            if let Some(sending) = scattered.sending.as_mut().filter(|_| has_room) {
                has_room = sending.proceed(cx.settings.output_max, output);
                if has_room {
                    scattered.sending = None;
                    continue;
                }
            }
            let headway = match has_room {
                true => self.answer_first(cx, &mut scattered, input, turn, output),
                false => Headway::Waits(Next::Write),
            };
            match headway {
                Headway::Answered => drop(scattered.parts.pop_front()),
                Headway::GoesOn => (),
                Headway::Waits(next) => {
                    self.pending = Pending::Scattered(scattered);
                    return Step::end(0, next);
                }
                Headway::Close => return Step::end(0, Next::Close),
            }
        }
        turn.answered.add_all(&scattered.answered);
        if let Some(divided) = scattered.divided.take()
            && !self.end_divided(divided, output)
        {
            // More keys follow.
            return Step::go_on(0);
        }
        if scattered.swallows_line {
            self.pending = Pending::SwallowLine;
        }
        self.take_answered(cx, scattered.is_script, scattered.len)
    }

    /// Goes on with the first part.
    fn answer_first<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        scattered: &mut Scattered<E>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Headway {
        let Some(part) = scattered.parts.front_mut() else { return Headway::Answered };
        let (group, passed) = match &mut part.state {
            PartState::There(group, passed) => (*group, *passed),
            PartState::Here(sending) => {
                scattered.sending = sending.take().filter(|_| !part.is_dropped);
                return self.end_first(scattered, output);
            }
            PartState::Refused => return self.end_first(scattered, output),
            PartState::Lost => return Headway::Close,
        };
        let Some(route) = self.aside().routes.get(group) else { return Headway::Close };
        if std::mem::take(&mut scattered.waits_for_room) {
            route.resume();
        }
        let routed = route.take(passed, &mut part.answer);
        part.show(output);
        match routed {
            ForwardOutcome::Pending => Headway::Waits(Next::Wait),
            ForwardOutcome::More => {
                scattered.waits_for_room = true;
                Headway::GoesOn
            }
            ForwardOutcome::Done => self.end_first(scattered, output),
            ForwardOutcome::Close => {
                if !part.is_kept {
                    part.show_rest(output);
                }
                Headway::Close
            }
            ForwardOutcome::ConnectionLost if !part.is_repeatable || part.is_begun => {
                Headway::Close
            }
            ForwardOutcome::Retry | ForwardOutcome::ConnectionLost => {
                part.answer.clear();
                route.forget();
                let is_lost = routed == ForwardOutcome::ConnectionLost;
                self.send_group_again(cx, scattered, (group, is_lost), input, turn);
                Headway::GoesOn
            }
            ForwardOutcome::NoLeader => {
                part.answer.clear();
                let bytes = part.bytes(input).to_vec();
                part.state = PartState::Refused;
                self.refuse_part(cx, &bytes, &mut part.answer);
                self.end_first(scattered, output)
            }
        }
    }

    /// Shows the end of the first part's answer.
    fn end_first(&mut self, scattered: &mut Scattered<E>, output: &mut Vec<u8>) -> Headway {
        let Some(part) = scattered.parts.front_mut() else { return Headway::Answered };
        if let Some(divided) = &mut scattered.divided {
            return match divided.take(part, output) {
                true => Headway::Answered,
                false => Headway::Close,
            };
        }
        let is_line = !part.unshown.is_empty() || part.continues;
        let is_right = match part.state {
            PartState::There(..) => part.show_rest(output),
            PartState::Here(_) | PartState::Refused | PartState::Lost => {
                let is_refused = matches!(part.state, PartState::Refused);
                if !part.is_dropped {
                    output.append(&mut part.answer);
                }
                !is_refused || part.is_dropped
            }
        };
        if !is_right && is_line {
            // The client takes an error for the end of the answer.
            if scattered.is_last_answer() && self.parser.abandon_line() {
                scattered.swallows_line = true;
            }
            scattered.drop_rest_of_answer();
        }
        Headway::Answered
    }

    /// Sends the parts that a group has been sent and has not answered to who has their keys now, in order. `is_lost`:
    /// some may have been carried out.
    fn send_group_again<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        scattered: &mut Scattered<E>,
        (group, is_lost): (Group, bool),
        input: &[u8],
        turn: &mut Turn,
    ) {
        for part in &mut scattered.parts {
            if !matches!(part.state, PartState::There(of, _) if of == group) {
                continue;
            }
            if is_lost && !part.is_repeatable {
                // The connection ends there.
                part.state = PartState::Lost;
                return;
            }
            let bytes = part.bytes(input).to_vec();
            self.send_again(cx, part, &bytes, turn);
        }
    }

    /// Sends a part to who has its key now, or answers it.
    fn send_again<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        part: &mut Part<E>,
        bytes: &[u8],
        turn: &mut Turn,
    ) {
        let place = match (&part.state, self.place_part(cx, bytes)) {
            (PartState::There(group, _), Place::Everywhere) => {
                let is_here = *group == Group::OWN && cx.host.owner() == Owner::Local;
                if is_here { Place::Here } else { Place::There(*group) }
            }
            (_, place) => place,
        };
        match place {
            Place::There(group) => {
                let passed = self.pass(cx, group, self.conversation(), bytes);
                part.state = PartState::There(group, passed);
            }
            Place::Here => {
                turn.keeps_answers = true;
                self.answer_part(cx, part, bytes);
                part.leave_end_out();
            }
            Place::Everywhere | Place::ByKey | Place::Apart => {
                self.refuse_part(cx, bytes, &mut part.answer);
                part.state = PartState::Refused;
            }
        }
    }

    /// Sends a request, which has these bytes of the input, to all groups but this server's if `here` is its answer.
    /// The client gets one answer: the one that is right, or the first other one.
    pub(crate) fn pass_to_all<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        (conversation, input): (Conversation, &[u8]),
        at: Range<usize>,
        (here, right): (Option<Vec<u8>>, &[u8]),
        scattered: &mut Scattered<E>,
    ) {
        let groups = cx.host.shard_map().map(|map| map.groups()).unwrap_or_default();
        let is_there = |group: &Group| here.is_none() || *group != Group::OWN;
        let there: Vec<Group> = groups.into_iter().filter(is_there).collect();
        let request = || match scattered.is_script {
            true => PartBytes::Own(input.get(at.clone()).unwrap_or_default().to_vec()),
            false => PartBytes::At(at.clone()),
        };
        let (mut is_first, mut parts) = (true, Vec::new());
        if let Some(here) = here {
            let mut part = Part::new(request(), PartState::Here(None));
            let is_right = here == right;
            if !is_right || there.is_empty() {
                part.answer = here;
            }
            parts.push(part);
            if !is_right {
                return scattered.parts.extend(parts);
            }
            is_first = false;
        }
        let last = there.last().copied();
        for group in there {
            let mut part = Part::new(request(), PartState::Refused);
            part.continues = !std::mem::take(&mut is_first);
            part.is_repeatable = false;
            if Some(group) != last {
                part.unshown = right.to_vec();
            }
            let passed = self.pass(cx, group, conversation, part.bytes(input));
            part.state = PartState::There(group, passed);
            parts.push(part);
        }
        scattered.parts.extend(parts);
    }

    /// Takes over a long value whose sending a part has begun.
    pub(crate) fn take_sending(&mut self, part: &mut Part<E>) {
        part.state = PartState::Here(None);
        if let Pending::Sending(_) = self.pending
            && let Pending::Sending(sending) =
                std::mem::replace(&mut self.pending, Pending::Nothing)
        {
            part.state = PartState::Here(Some(sending));
        }
    }

    fn place_part<H: Host>(&mut self, cx: &mut Context<'_, E, H>, bytes: &[u8]) -> Place {
        let place = match self.resp.is_some() {
            true => self.place_resp(cx, bytes),
            false => self.place_memcached(cx, bytes),
        };
        place.unwrap_or(Place::Apart)
    }

    fn answer_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        part: &mut Part<E>,
        bytes: &[u8],
    ) {
        let is_answered = match self.resp.is_some() {
            true => self.answer_resp_part(cx, bytes, &mut part.answer),
            false => self.answer_memcached(cx, bytes, &mut part.answer),
        };
        self.take_sending(part);
        if !is_answered {
            self.refuse_part(cx, bytes, &mut part.answer);
        }
    }

    fn refuse_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) {
        match self.resp.is_some() {
            true => resp_reply::error(&CommandError::NoLeader, output),
            false => self.refuse_memcached(cx, bytes, output),
        }
    }

    fn conversation(&self) -> Conversation {
        self.resp.as_ref().map_or(Conversation::Memcached, |state| state.conversation())
    }
}
