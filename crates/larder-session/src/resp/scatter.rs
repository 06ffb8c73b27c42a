//! Batches whose keys several groups have. How the answers are put in order is in `crate::scatter`.

use super::batch::{BATCH_MAX, Outcome, Ready, What, bounds, read_one};
use super::state::State;
use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::pending::{Part, PartBytes, PartState, Pending, Scattered};
use crate::route::Owner;
use crate::scatter::{Place, Places};
use crate::session::Session;
use arrayvec::ArrayVec;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::CommandError;
use larder_store::Engine;

/// What is to be done with a batch.
pub(super) enum Scatter {
    /// This many of its requests are answered here, before others are looked at.
    Here(usize),
    Ends(Step),
}

impl<E: Engine> Session<E> {
    /// Sends the requests of a batch to the groups that have their keys, and answers those of this server's, unless it
    /// begins with some that are all answered here. `is_script`: they are not in the input of the connection.
    #[cold]
    #[inline(never)]
    pub(super) fn scatter_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        batch: &[Ready<'_>],
        turn: &mut Turn,
        is_script: bool,
    ) -> Scatter {
        let places = Places::settled(cx.host, |places| {
            let places = batch.iter().map(|ready| place(places, state, ready));
            places.collect::<ArrayVec<Place, BATCH_MAX>>()
        });
        if self.is_forwarded {
            let is_here = |place: &Place| !matches!(place, Place::There(_) | Place::Divided);
            return match cx.host.owner() == Owner::Here && places.iter().all(is_here) {
                true => Scatter::Here(batch.len()),
                false => Scatter::Ends(Step::end(0, Next::Abandon)),
            };
        }
        let is_elsewhere = |place: &Place| !matches!(place, Place::Here | Place::Apart);
        match places.iter().position(is_elsewhere) {
            // A request is answered in part, and its key belongs to another group by now.
            Some(0) if state.answered.keys > 0 => Scatter::Ends(Step::end(0, Next::Close)),
            Some(0) => {
                let scattered = self.send_out(cx, state, input, (batch, &places), turn, is_script);
                self.pending = Pending::Scattered(Box::new(scattered));
                Scatter::Ends(Step::go_on(0))
            }
            Some(here) => Scatter::Here(here),
            None => Scatter::Here(batch.len()),
        }
    }

    fn send_out<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        (batch, places): (&[Ready<'_>], &[Place]),
        turn: &mut Turn,
        is_script: bool,
    ) -> Scattered<E> {
        let mut scattered = Scattered::new();
        scattered.is_script = is_script;
        for (ready, place) in batch.iter().zip(places) {
            if scattered.kept_bytes() > cx.settings.output_max {
                break;
            }
            let at = scattered.len..ready.end;
            let bytes = match is_script {
                true => PartBytes::Own(input.get(at.clone()).unwrap_or_default().to_vec()),
                false => PartBytes::At(at.clone()),
            };
            let mut part = Part::new(bytes, PartState::Here(None));
            part.is_repeatable = !ready.what.changes();
            match *place {
                Place::Apart => break,
                Place::Here => {
                    if self.answer_slowly(cx, state, ready, &mut part.answer) != Outcome::Done {
                        break;
                    }
                    turn.keeps_answers = true;
                    self.take_sending(&mut part);
                    scattered.parts.push_back(part);
                }
                Place::There(group) => {
                    let passed = self.pass(cx, group, state.conversation(), part.bytes(input));
                    part.state = PartState::There(group, passed);
                    scattered.parts.push_back(part);
                }
                Place::Divided => {
                    reply::error(&CommandError::Divided, &mut part.answer);
                    scattered.parts.push_back(part);
                }
                Place::Everywhere => {
                    let (mut right, mut here) = (Vec::new(), None);
                    reply::ok(&mut right);
                    if cx.host.owner() == Owner::Here {
                        let here = here.insert(Vec::new());
                        // It waits for nothing.
                        let _ = self.answer_slowly(cx, state, ready, here);
                        turn.keeps_answers = true;
                    }
                    let from = (state.conversation(), input);
                    self.pass_to_all(cx, from, at, (here, &right), &mut scattered);
                }
            }
            scattered.len = ready.end;
            scattered.count(Some(ready.what.class()));
            turn.left = turn.left.saturating_sub(1);
        }
        scattered
    }

    /// Reads a part again, and does something with it.
    fn with_resp_part<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        act: impl FnOnce(&mut Self, &mut Context<'_, E, H>, &mut State, &Ready<'_>) -> R,
    ) -> Option<R> {
        let mut state = self.resp.take()?;
        let bounds = bounds(cx, &state);
        let ready = read_one(cx.operations.engine, bytes, &bounds);
        let result = ready.map(|ready| act(self, cx, &mut state, &ready));
        self.resp = Some(state);
        result
    }

    /// Where a part goes now, which may follow a change.
    pub(crate) fn place_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
    ) -> Option<Place> {
        self.with_resp_part(cx, bytes, |_, cx, state, ready| {
            place(&mut Places::behind_change(cx.host), state, ready)
        })
    }

    /// Answers a part. False if it can't be answered at once.
    pub(crate) fn answer_resp_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        let outcome = self.with_resp_part(cx, bytes, |session, cx, state, ready| {
            session.answer_slowly(cx, state, ready, output)
        });
        outcome == Some(Outcome::Done)
    }
}

fn place(places: &mut Places<'_>, state: &State, ready: &Ready<'_>) -> Place {
    if state.transaction.is_some() || state.needs_login() {
        return Place::Apart;
    }
    let request = match &ready.what {
        What::Get(key, _) => return places.next(key, true),
        What::Set(key, ..) => return places.next(key, false),
        What::Request(request) => request,
    };
    let Ok((row, verb)) = request.row() else { return Place::Apart };
    if !row.has_keys() {
        return if verb.changes_items() { Place::Everywhere } else { Place::Apart };
    }
    let (mut keys, looks_up) = (request.keys(row), !verb.changes_items());
    let Some(first) = keys.next() else { return Place::Apart };
    let (place, mut has_more) = (places.next(first, looks_up), false);
    for key in keys {
        has_more = true;
        if places.next(key, looks_up) != place {
            return Place::Divided;
        }
    }
    // Many keys may take more than one turn.
    if has_more && place == Place::Here { Place::Apart } else { place }
}
