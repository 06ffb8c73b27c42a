//! Batches whose keys several groups have. How the answers are put in order is in `crate::scatter`.
//!
//! A command on several items, not all of which are here, is divided into commands on one item each. They are sent some
//! at a time, and [`State::answered`] says how far it has come.

use super::batch::{BATCH_MAX, Outcome, Ready, What, bounds, read_one};
use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::route::Owner;
use crate::scatter::{Place, Places};
use crate::session::Session;
use crate::session::pending::{
    DividedAnswer, DividedCommand, Part, PartBytes, PartState, Pending, Scattered,
};
use crate::session::resp_state::{Answered, State};
use arrayvec::ArrayVec;
use larder_protocol::encode::resp as encode;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{Command, CommandError, ItemsCommand, checked_key};
use larder_protocol::response::{Read, Resp, read_resp};
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
        if state.transaction.is_some() {
            // Whatever ends it may be followed by requests that are not answered here.
            return Scatter::Here(1);
        }
        let places = Places::settled(cx.host, |places| {
            let places = batch.iter().map(|ready| place(places, state, ready));
            places.collect::<ArrayVec<Place, BATCH_MAX>>()
        });
        if self.is_forwarded {
            let is_here = |place: &Place| !matches!(place, Place::There(_) | Place::ByKey);
            return match cx.host.owner() == Owner::Local && places.iter().all(is_here) {
                true => Scatter::Here(batch.len()),
                false => Scatter::Ends(Step::end(0, Next::Abandon)),
            };
        }
        let is_elsewhere = |place: &Place| !matches!(place, Place::Here | Place::Apart);
        match places.iter().position(is_elsewhere) {
            Some(0) if places.first() == Some(&Place::ByKey) => {
                let Some(ready) = batch.first() else { return Scatter::Here(0) };
                Scatter::Ends(self.divide(cx, state, ready, turn, is_script))
            }
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
                Place::Apart | Place::ByKey => break,
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
                Place::Everywhere => {
                    let (mut right, mut here) = (Vec::new(), None);
                    reply::ok(&mut right);
                    if cx.host.owner() == Owner::Local {
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

    /// Has the next keys of a command on several items asked for one by one.
    fn divide<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &Ready<'_>,
        turn: &mut Turn,
        is_script: bool,
    ) -> Step {
        let mut scattered = Scattered::new();
        (scattered.is_script, scattered.len) = (is_script, ready.end);
        let mut head = Part::new(PartBytes::Own(Vec::new()), PartState::Here(None));
        let command = match items_command(ready) {
            Ok(command) => command,
            Err(error) => {
                reply::error(&error, &mut head.answer);
                scattered.parts.push_back(head);
                scattered.count(Some(ready.what.class()));
                self.pending = Pending::Scattered(Box::new(scattered));
                return Step::go_on(0);
            }
        };
        let (words, words_per_key) = command.words();
        let answered = state.answered;
        if let ItemsCommand::MGet(keys) = command
            && answered.keys == 0
        {
            reply::array(keys.len(), &mut head.answer);
            scattered.parts.push_back(head);
        }
        let mut rest = words;
        if let Some(last) = (answered.keys * words_per_key).checked_sub(1) {
            rest.nth(last);
        }
        let looks_up = !ready.what.changes();
        let places = Places::settled(cx.host, |places| {
            let keys = rest.step_by(words_per_key).take(BATCH_MAX);
            keys.map(|key| places.next(key, looks_up)).collect::<ArrayVec<Place, BATCH_MAX>>()
        });
        let (bounds, mut keys, mut own_bytes) = (bounds(cx, state), 0, 0);
        // Each part is a command by itself.
        state.answered = Answered::default();
        for place in places {
            let kept = scattered.kept_bytes() + own_bytes;
            let has_room = keys == 0 || kept <= cx.settings.output_max;
            let Some(key) = rest.next().filter(|_| has_room) else { break };
            let value = if words_per_key == 2 { rest.next() } else { None };
            let mut bytes = Vec::new();
            let name = command.of_one_key().as_bytes();
            match value {
                Some(value) => encode::command(&[name, key, value], &mut bytes),
                None => encode::command(&[name, key], &mut bytes),
            }
            let mut part = Part::new(PartBytes::Own(Vec::new()), PartState::Here(None));
            part.is_repeatable = looks_up;
            part.is_kept = !matches!(command, ItemsCommand::MGet(_));
            match place {
                _ if checked_key(key).is_err() => match part.is_kept {
                    true => reply::integer(0, &mut part.answer),
                    false => reply::null(state.version, &mut part.answer),
                },
                Place::There(group) => {
                    let passed = self.pass(cx, group, state.conversation(), &bytes);
                    part.state = PartState::There(group, passed);
                }
                _ => {
                    let one = read_one(cx.operations.engine, &bytes, &bounds);
                    let outcome = one.map_or(Outcome::Close, |one| {
                        self.answer_slowly(cx, state, &one, &mut part.answer)
                    });
                    if outcome != Outcome::Done && keys > 0 {
                        break;
                    }
                    match outcome {
                        Outcome::Done => (),
                        Outcome::Wait => {
                            state.answered = answered;
                            return Step::end(0, self.fetch(cx, state.waiting.iter().copied()));
                        }
                        Outcome::Paused | Outcome::Close => return Step::end(0, Next::Close),
                    }
                    turn.keeps_answers = true;
                    self.take_sending(&mut part);
                }
            }
            own_bytes += bytes.len();
            part.request = PartBytes::Own(bytes);
            scattered.parts.push_back(part);
            keys += 1;
            turn.left = turn.left.saturating_sub(1);
        }
        let is_last = (answered.keys + keys) * words_per_key >= words.len();
        if is_last {
            scattered.count(Some(ready.what.class()));
        }
        let shows = match command {
            ItemsCommand::MGet(_) => DividedAnswer::Each,
            ItemsCommand::MSet(_) => DividedAnswer::Ok,
            ItemsCommand::Del(_) | ItemsCommand::Exists(_) | ItemsCommand::Touch(_) => {
                DividedAnswer::Sum
            }
        };
        scattered.divided = Some(DividedCommand { shows, answered, keys, is_last, error: None });
        self.pending = Pending::Scattered(Box::new(scattered));
        Step::go_on(0)
    }

    /// Ends some keys of a command on several items. False if more follow.
    pub(crate) fn end_divided(&mut self, divided: DividedCommand, output: &mut Vec<u8>) -> bool {
        let DividedCommand {
            shows,
            answered: Answered { keys: before, found },
            keys,
            is_last,
            error,
        } = divided;
        let is_over = is_last || error.is_some();
        match (error, shows) {
            (Some(mut error), _) => output.append(&mut error),
            (None, DividedAnswer::Sum) if is_last => reply::integer(found, output),
            (None, DividedAnswer::Ok) if is_last => reply::ok(output),
            (None, _) => (),
        }
        if let Some(state) = &mut self.resp {
            let answered = Answered { keys: before + keys, found };
            state.answered = if is_over { Answered::default() } else { answered };
        }
        is_over
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
    let place = places.next(first, looks_up);
    let Some(second) = keys.next() else { return place };
    let mut all = [place, places.next(second, looks_up)].into_iter();
    let are_here = all.all(|place| place == Place::Here)
        && keys.all(|key| places.next(key, looks_up) == Place::Here);
    // Many keys may take more than one turn.
    if are_here { Place::Apart } else { Place::ByKey }
}

/// The command on several items that a request is.
fn items_command<'b>(ready: &Ready<'b>) -> Result<ItemsCommand<'b>, CommandError<'b>> {
    let What::Request(request) = &ready.what else { return Err(CommandError::Syntax) };
    let (row, verb) = request.row()?;
    let Command::Items(command) = Command::parse(request, verb, row.name)? else {
        return Err(CommandError::Syntax);
    };
    command.check_keys()?;
    Ok(command)
}

impl DividedCommand {
    /// Takes the whole answer to a part. False if the client can't be told of an error in it.
    pub(crate) fn take<E: Engine>(&mut self, part: &mut Part<E>, output: &mut Vec<u8>) -> bool {
        if self.shows == DividedAnswer::Each {
            let is_answered = !matches!(part.state, PartState::Refused | PartState::Lost);
            if is_answered {
                output.append(&mut part.answer);
            }
            return is_answered;
        }
        match read_resp(&part.answer) {
            Read::Whole(Resp::Integer(found), _) => self.answered.found += found,
            Read::Whole(Resp::Simple(_), _) => (),
            _ if self.error.is_none() => self.error = Some(std::mem::take(&mut part.answer)),
            _ => (),
        }
        true
    }
}
