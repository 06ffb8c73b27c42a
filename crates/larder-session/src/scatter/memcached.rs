//! Batches of memcached's protocol.

use super::{Place, Places};
use crate::Host;
use crate::context::{Context, Flow, Next, Step, Turn};
use crate::forward::{changes, refuse};
use crate::memcached::batch::{Batch, BatchEnd, Ready, What, key_of};
use crate::memcached::read_only;
use crate::route::{Conversation, Owner};
use crate::session::Session;
use crate::session::pending::{Part, PartBytes, PartState, Pending, Scattered};
use arrayvec::ArrayVec;
use larder_protocol::{KEY_LEN_MAX, ReplyFormat, Request, encode, reply};
use larder_store::Engine;

impl<E: Engine> Session<E> {
    /// Sends the next requests to the groups that have their keys, and answers those of this server's.
    #[cold]
    pub(crate) fn scatter_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        (mut batch, batch_end): (Batch<'_>, BatchEnd<'_>),
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let places = places(cx.host, &batch, scratch);
        let is_elsewhere = |place: &Place| matches!(place, Place::There(_) | Place::Everywhere);
        if self.is_forwarded {
            let is_there = |place: &Place| matches!(place, Place::There(_));
            if places.iter().any(is_there) {
                return Step::end(0, Next::Abandon);
            }
            return self.answer_gathered(cx, &batch, batch_end, input, turn, output, scratch);
        }
        match places.iter().position(is_elsewhere) {
            Some(0) => self.scatter(cx, input, &batch, &places, turn, scratch),
            Some(here) => {
                batch.ready.truncate(here);
                self.answer_gathered(cx, &batch, BatchEnd::Full, input, turn, output, scratch)
            }
            None => self.answer_gathered(cx, &batch, batch_end, input, turn, output, scratch),
        }
    }

    fn scatter<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        batch: &Batch<'_>,
        places: &[Place],
        turn: &mut Turn,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let mut scattered = Box::new(Scattered::new());
        for (ready, place) in batch.ready.iter().zip(places) {
            if scattered.swallows_line || scattered.kept_bytes() > cx.settings.output_max {
                break;
            }
            let mut part = self.part(batch, ready, scattered.len);
            match *place {
                Place::Apart | Place::ByKey => break,
                Place::Here => {
                    let flow = self.answer_one(cx, batch, ready, &mut part.answer, scratch);
                    if !matches!(flow, Flow::Continue) {
                        break;
                    }
                    turn.keeps_answers = true;
                    self.take_sending(&mut part);
                    if let Pending::SwallowLine = self.pending {
                        // The line of keys ends with an error.
                        self.pending = Pending::Nothing;
                        scattered.swallows_line = true;
                    }
                    part.unshown.clear();
                    scattered.parts.push_back(part);
                }
                Place::There(group) => {
                    if let What::Other(index) = ready.what
                        && let Some(other) = batch.others.get(index)
                    {
                        self.parser = other.parser;
                    }
                    let passed = self.pass(cx, group, Conversation::Memcached, part.bytes(input));
                    part.state = PartState::There(group, passed);
                    scattered.parts.push_back(part);
                }
                Place::Everywhere => {
                    self.scatter_to_all(cx, input, (batch, ready), &mut scattered, turn, scratch);
                }
            }
            scattered.len = ready.end;
            turn.left = turn.left.saturating_sub(1);
            scattered.count(batch.class(ready));
        }
        self.pending = Pending::Scattered(scattered);
        Step::go_on(0)
    }

    /// A request of a batch, which begins there in the input, before it is known where it goes.
    fn part(&self, batch: &Batch<'_>, ready: &Ready<'_>, at: usize) -> Part<E> {
        let mut part = Part::new(PartBytes::At(at..ready.end), PartState::Here(None));
        part.is_repeatable = !changes(batch, ready);
        if let What::Other(index) = ready.what
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
                    reply::get_end(&mut part.unshown);
                }
            }
        }
        part
    }

    /// Has all groups carry a request out.
    fn scatter_to_all<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        (batch, ready): (&Batch<'_>, &Ready<'_>),
        scattered: &mut Scattered<E>,
        turn: &mut Turn,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) {
        let What::Other(index) = ready.what else { return };
        let Some(other) = batch.others.get(index) else { return };
        let Request::FlushAll { format, .. } = &other.request else { return };
        let (mut right, mut here) = (Vec::new(), None);
        reply::ok(format, &mut right);
        if cx.host.owner() == Owner::Local {
            // It waits for nothing.
            let _ = self.answer_one(cx, batch, ready, here.insert(Vec::new()), scratch);
            turn.keeps_answers = true;
        }
        self.parser = other.parser;
        let at = scattered.len..ready.end;
        let from = (Conversation::Memcached, input);
        self.pass_to_all(cx, from, at, (here, &right), scattered);
    }

    /// Parses a part again, and does something with it.
    pub(super) fn with_part<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        act: impl FnOnce(&mut Self, &mut Context<'_, E, H>, &Batch<'_>, &Ready<'_>) -> R,
    ) -> Option<R> {
        let mut scratch = [0; KEY_LEN_MAX];
        let parser = std::mem::take(&mut self.parser);
        let mut batch = Batch::default();
        self.gather(cx.operations.engine, bytes, 1, &mut scratch, &mut batch);
        let result = batch.ready.first().map(|ready| act(self, cx, &batch, ready));
        self.parser = parser;
        result
    }

    /// Where a part goes now, which may follow a change.
    pub(super) fn place_memcached<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
    ) -> Option<Place> {
        let mut scratch = [0; KEY_LEN_MAX];
        self.with_part(cx, bytes, |_, cx, batch, ready| {
            place(&mut Places::behind_change(cx.host), batch, ready, &mut scratch)
        })
    }

    /// Answers a part. False if it can't be answered at once.
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

    /// Answers that nobody could answer a part.
    pub(super) fn refuse_memcached<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) {
        self.with_part(cx, bytes, |_, _, batch, ready| refuse(batch, ready, output));
    }
}

/// Where the requests of a batch go.
fn places<H: Host>(
    host: &H,
    batch: &Batch<'_>,
    scratch: &mut [u8; KEY_LEN_MAX],
) -> ArrayVec<Place, { Batch::LEN_MAX }> {
    Places::settled(host, |places| {
        batch.ready.iter().map(|ready| place(places, batch, ready, scratch)).collect()
    })
}

fn place(
    places: &mut Places<'_>,
    batch: &Batch<'_>,
    ready: &Ready<'_>,
    scratch: &mut [u8; KEY_LEN_MAX],
) -> Place {
    let index = match ready.what {
        What::Get(get) => return places.next(get.key, true),
        What::Set(index) => {
            return batch.sets.get(index).map_or(Place::Apart, |set| places.next(set.key, false));
        }
        What::Other(index) => index,
    };
    let Some(other) = batch.others.get(index) else { return Place::Apart };
    match &other.request {
        Request::GetEnd | Request::Noop(_) => Place::Here,
        Request::FlushAll { .. } => Place::Everywhere,
        request => key_of(request).map_or(Place::Apart, |key| {
            let looks_up = matches!(request, Request::Get(_));
            let looks_up = looks_up && read_only::change(request).is_none();
            places.next(key.decode(scratch), looks_up)
        }),
    }
}
