//! Scatter-gather for batches in memcached's protocols.

use super::{Destination, Destinations};
use crate::Host;
use crate::context::{Context, Flow, Next, PollState, Step};
use crate::forward::{changes, refuse};
use crate::memcached::batch::{Batch, BatchEnd, BatchRequest, RequestKind, key_of};
use crate::memcached::read_only;
use crate::route::{Conversation, Owner};
use crate::session::Session;
use crate::session::pending::{Part, PartBytes, PartState, Pending, ScatterGather};
use arrayvec::ArrayVec;
use larder_protocol::{KEY_LEN_MAX, ReplyFormat, Request, encode, reply};
use larder_store::Engine;

impl<E: Engine> Session<E> {
    /// Sends the next requests to the groups that own their keys, and answers the requests for this
    /// server's keys.
    #[cold]
    pub(crate) fn scatter_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        (mut batch, batch_end): (Batch<'_>, BatchEnd<'_>),
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let destinations = destinations(cx.host, &batch, scratch);
        let is_remote = |destination: &Destination| {
            matches!(destination, Destination::Group(_) | Destination::AllGroups)
        };
        if self.is_forwarded {
            if destinations.iter().any(|destination| self.returns(*destination)) {
                return Step::finish(0, Next::NotOwner);
            }
            return self.answer_gathered(cx, &batch, batch_end, input, poll, output, scratch);
        }
        match destinations.iter().position(is_remote) {
            Some(0) => self.scatter(cx, input, &batch, &destinations, poll, scratch),
            Some(local) => {
                batch.requests.truncate(local);
                self.answer_gathered(cx, &batch, BatchEnd::Full, input, poll, output, scratch)
            }
            None => self.answer_gathered(cx, &batch, batch_end, input, poll, output, scratch),
        }
    }

    /// Answers or forwards a batch that starts within a line of keys. The first keys of the line
    /// are already answered, so the leader receives each remaining key as a separate request.
    pub(crate) fn scatter_rest_of_line<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        (mut batch, batch_end): (Batch<'_>, BatchEnd<'_>),
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let mut after_change = Destinations::after_change(cx.host);
        let requests = batch.requests.iter();
        let destinations: ArrayVec<Destination, { Batch::LEN_MAX }> = requests
            .map(|ready| destination(&mut after_change, &batch, ready, scratch))
            // Without a shard map, the session forwards a flush to the leader like any other
            // request.
            .take_while(|of| *of != Destination::AllGroups)
            .collect();
        match destinations.first() {
            Some(Destination::Group(_)) => {
                self.scatter(cx, input, &batch, &destinations, poll, scratch)
            }
            Some(_) => {
                batch.requests.truncate(1);
                self.answer_gathered(cx, &batch, BatchEnd::Full, input, poll, output, scratch)
            }
            None => self.after_batch(cx, batch_end, input, poll, scratch),
        }
    }

    /// Sends the requests of a batch to their destinations. The first destination must not be
    /// `Alone` or `PerKey`.
    fn scatter<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        batch: &Batch<'_>,
        destinations: &[Destination],
        poll: &mut PollState,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let mut scattered = Box::new(ScatterGather::new());
        for (ready, destination) in batch.requests.iter().zip(destinations) {
            if scattered.discards_line || scattered.kept_bytes() > cx.settings.output_max {
                break;
            }
            let mut part = self.part(batch, ready, scattered.len);
            match *destination {
                Destination::Alone | Destination::PerKey => break,
                Destination::Local => {
                    let flow = self.answer_one(cx, batch, ready, &mut part.answer, scratch);
                    if !matches!(flow, Flow::Continue) {
                        break;
                    }
                    poll.keeps_answers = true;
                    self.take_sending(&mut part);
                    if let Pending::DiscardLine = self.pending {
                        // The error ends the reply to the line of keys.
                        self.pending = Pending::Idle;
                        scattered.discards_line = true;
                    }
                    part.trailer.clear();
                    scattered.parts.push_back(part);
                }
                Destination::Group(group) => {
                    if let RequestKind::Other(index) = ready.kind
                        && let Some(other) = batch.others.get(index)
                    {
                        self.parser = other.parser;
                    }
                    let id = self.pass(cx, group, Conversation::Memcached, part.bytes(input));
                    part.state = PartState::Remote(group, id);
                    scattered.parts.push_back(part);
                }
                // A request that the session sends again must not overtake a flush.
                Destination::AllGroups if !scattered.parts.is_empty() => break,
                Destination::AllGroups => {
                    self.scatter_to_all_groups(
                        cx,
                        input,
                        (batch, ready),
                        &mut scattered,
                        poll,
                        scratch,
                    );
                    if scattered.parts.is_empty() {
                        // The shard map no longer has several groups. The next step processes the
                        // batch again.
                        break;
                    }
                }
            }
            scattered.len = ready.end;
            poll.left = poll.left.saturating_sub(1);
            scattered.count(batch.class(ready));
            if *destination == Destination::AllGroups {
                break;
            }
        }
        self.pending = Pending::ScatterGather(scattered);
        Step::advance(0)
    }

    /// Returns the part for a request that starts at the offset `at` in the input. The caller sets
    /// the part's state.
    fn part(&self, batch: &Batch<'_>, ready: &BatchRequest<'_>, at: usize) -> Part<E> {
        let mut part = Part::new(PartBytes::Input(at..ready.end), PartState::Local(None));
        part.is_repeatable = !changes(batch, ready);
        if let RequestKind::Other(index) = ready.kind
            && let Some(other) = batch.others.get(index)
        {
            part.continues = !self.parser.is_between_lines();
            if let Request::Get(get) = &other.request
                && let ReplyFormat::Classic(format) = get.format
                && get.value
                && (part.continues || !format.last)
            {
                let mut line = Vec::new();
                encode::classic::one_of_line(get, &mut line);
                part.request = PartBytes::Own(line);
                if !format.last {
                    reply::get_end(&mut part.trailer);
                }
            }
        }
        part
    }

    /// Sends a flush to all groups. If this server leads its group, executes the flush here.
    fn scatter_to_all_groups<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        (batch, ready): (&Batch<'_>, &BatchRequest<'_>),
        scattered: &mut ScatterGather<E>,
        poll: &mut PollState,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) {
        let RequestKind::Other(index) = ready.kind else { return };
        let Some(other) = batch.others.get(index) else { return };
        let Request::FlushAll { format, .. } = &other.request else { return };
        let (mut expected, mut local) = (Vec::new(), None);
        reply::ok(format, &mut expected);
        if cx.host.owner() == Owner::Local {
            // Ignore the outcome, because a flush never waits for slower storage.
            let _ = self.answer_one(cx, batch, ready, local.insert(Vec::new()), scratch);
            poll.keeps_answers = true;
        }
        self.parser = other.parser;
        let at = scattered.len..ready.end;
        let from = (Conversation::Memcached, input);
        self.pass_to_all_groups(cx, from, at, (local, &expected), scattered);
    }

    /// Parses the bytes of a part again, and calls `act` with the request. Returns `None` if the
    /// bytes are not a request.
    pub(super) fn with_part<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        act: impl FnOnce(&mut Self, &mut Context<'_, E, H>, &Batch<'_>, &BatchRequest<'_>) -> R,
    ) -> Option<R> {
        let mut scratch = [0; KEY_LEN_MAX];
        let parser = std::mem::take(&mut self.parser);
        let mut batch = Batch::default();
        self.gather(cx.operations.engine, bytes, 1, &mut scratch, &mut batch);
        let result = batch.requests.first().map(|ready| act(self, cx, &batch, ready));
        self.parser = parser;
        result
    }

    /// Returns the current destination of a part, or `None` if its bytes are not a request. Assumes
    /// that the part may follow a change.
    pub(super) fn destination_memcached<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
    ) -> Option<Destination> {
        let mut scratch = [0; KEY_LEN_MAX];
        self.with_part(cx, bytes, |_, cx, batch, ready| {
            destination(&mut Destinations::after_change(cx.host), batch, ready, &mut scratch)
        })
    }

    /// Answers a part. Returns false if the part has to wait for slower storage, or if its bytes
    /// are not a request.
    pub(super) fn answer_memcached<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        let mut scratch = [0; KEY_LEN_MAX];
        let flow = self.with_part(cx, bytes, |session, cx, batch, ready| {
            session.answer_one(cx, batch, ready, output, &mut scratch)
        });
        matches!(flow, Some(Flow::Continue))
    }

    /// Replies to a part with the error that its group has no leader.
    pub(super) fn refuse_memcached<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) {
        self.with_part(cx, bytes, |_, _, batch, ready| refuse(batch, ready, output));
    }
}

/// Returns the destination of each request in a batch.
fn destinations<H: Host>(
    host: &H,
    batch: &Batch<'_>,
    scratch: &mut [u8; KEY_LEN_MAX],
) -> ArrayVec<Destination, { Batch::LEN_MAX }> {
    Destinations::with_stable_map(host, |destinations| {
        batch
            .requests
            .iter()
            .map(|ready| destination(destinations, batch, ready, scratch))
            .collect()
    })
}

fn destination(
    destinations: &mut Destinations<'_>,
    batch: &Batch<'_>,
    ready: &BatchRequest<'_>,
    scratch: &mut [u8; KEY_LEN_MAX],
) -> Destination {
    let index = match ready.kind {
        RequestKind::Get(get) => return destinations.next(get.key, true),
        RequestKind::Set(index) => {
            return batch
                .sets
                .get(index)
                .map_or(Destination::Alone, |set| destinations.next(set.key, false));
        }
        RequestKind::Other(index) => index,
    };
    let Some(other) = batch.others.get(index) else { return Destination::Alone };
    match &other.request {
        Request::GetEnd | Request::Noop(_) => Destination::Local,
        Request::FlushAll { .. } => Destination::AllGroups,
        request => key_of(request).map_or(Destination::Alone, |key| {
            let looks_up = matches!(request, Request::Get(_));
            let looks_up = looks_up && read_only::change(request).is_none();
            destinations.next(key.decode(scratch), looks_up)
        }),
    }
}
