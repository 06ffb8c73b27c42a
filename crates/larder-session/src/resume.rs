//! Continues the pending work of a session, and begins it for stores whose value has not arrived.

use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::memcached::{store, tags};
use crate::session::Session;
use crate::session::dump::Dump;
use crate::session::key_scan::Scanning;
use crate::session::pending::{Arriving, Body, Pending, Sending};
use larder_operations::CommandClass;
use larder_protocol::{KEY_LEN_MAX, Request, Store, reply};
use larder_store::{Engine, HashedKey, Refusal, WalkState};

/// The longest value, in bytes, that is received as a whole in the input buffer of the connection.
const BUFFERED_BODY_MAX: u64 = 64 << 10;

impl<E: Engine> Session<E> {
    /// Begins a store whose value has not completely arrived: waits for a short value, and begins to
    /// receive a long one in pieces.
    pub(crate) fn begin_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        body: &Body<'_>,
        input: &[u8],
        turn: &mut Turn,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let (store, body_len) = (&body.store, body.body_len);
        if let Some(group) = Self::elsewhere(cx, store.key.decode(scratch)) {
            if self.is_forwarded {
                return Step::end(0, Next::Abandon);
            }
            // A short one is forwarded when it has arrived.
            return match body_len <= BUFFERED_BODY_MAX {
                true => Step::end(0, Next::Read { wanted: missing(body, input) }),
                false => self.forward_body(cx, group, body, input),
            };
        }
        if cx.settings.read_only {
            turn.answered.add(CommandClass::Store, 1);
            let mut then = Vec::new();
            reply::read_only(&store.format, &mut then);
            self.pending = Pending::Swallow { left: body_len, then };
            return Step::go_on(body.head_len);
        }
        // Its tags are those that they are now: they may be dropped before the value has arrived.
        let begins_now = store.value_len > 0 && tags::has_tags(&Request::Store(*store));
        let bytes = store.key.decode(scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if !store::fits(cx, store, key) {
            self.swallow(cx, store, key, body_len, Refusal::TooLarge, turn);
        } else if !begins_now
            && body_len <= BUFFERED_BODY_MAX.min(cx.operations.engine.upload_len_min() as u64)
        {
            return Step::end(0, Next::Read { wanted: missing(body, input) });
        } else {
            let head = input.get(..body.head_len).unwrap_or_default();
            self.begin_upload(cx, store, key, head, body_len, turn);
        }
        Step::go_on(body.head_len)
    }

    fn begin_upload<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        head: &[u8],
        body_len: u64,
        turn: &mut Turn,
    ) {
        let head = head.to_vec();
        let upload = match cx.operations.engine.upload(store.value_len) {
            Ok(upload) if cx.host.reserve(head.capacity()) => upload,
            Ok(_) => return self.swallow(cx, store, key, body_len, Refusal::OutOfMemory, turn),
            Err(refusal) => return self.swallow(cx, store, key, body_len, refusal, turn),
        };
        let tags = match tags::of_request(cx, &Request::Store(*store)) {
            Ok(tags) => tags,
            Err(refusal) => {
                cx.host.release(head.capacity());
                return self.swallow(cx, store, key, body_len, refusal, turn);
            }
        };
        let trailer_len = saturated(body_len) - store.value_len;
        let value = (upload, tags);
        let arriving = Arriving::new(head, self.parser, value, store.value_len, trailer_len);
        self.pending = Pending::Arriving(Box::new(arriving));
    }

    /// Refuses a store before its value has arrived: drops the announced value, then answers.
    fn swallow<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        left: u64,
        why: Refusal,
        turn: &mut Turn,
    ) {
        turn.answered.add(CommandClass::Store, 1);
        let mut then = Vec::new();
        self.observed(cx, &Request::Store(*store), |_, cx| {
            store::refuse(cx, store, key, why, &mut then);
        });
        self.pending = Pending::Swallow { left, then };
    }

    /// Continues the pending work.
    pub(crate) fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => Step::go_on(0),
            Pending::Swallow { left, then } => self.resume_swallow(left, then, input, output),
            Pending::SwallowLine => self.resume_line(input),
            Pending::Forwarded(forwarded) => {
                self.resume_forwarded(cx, forwarded, input, turn, output)
            }
            Pending::Scattered(scattered) => {
                self.resume_scattered(cx, scattered, input, turn, output)
            }
            Pending::Passing(passing) => self.resume_passing(cx, passing, input, output),
            Pending::Arriving(arriving) => self.resume_arriving(cx, arriving, input, turn, output),
            Pending::Sending(sending) => self.resume_sending(cx, sending, output),
            Pending::Dumping(dump) => self.resume_dumping(cx, dump, output),
            Pending::Scanning(scanning) => self.resume_scanning(cx, scanning, output),
            Pending::Watching(watcher) => {
                self.pending = Pending::Watching(watcher);
                cx.host.read_log(watcher, output);
                // Further input of a watcher is dropped.
                Step::end(input.len(), Next::Read { wanted: 1 })
            }
        }
    }

    fn resume_swallow(
        &mut self,
        left: u64,
        mut then: Vec<u8>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        let dropped = saturated(left).min(input.len());
        let left = left - dropped as u64;
        if left == 0 {
            output.append(&mut then);
            return Step::go_on(dropped);
        }
        self.pending = Pending::Swallow { left, then };
        Step::end(dropped, Next::Read { wanted: saturated(left) })
    }

    fn resume_line(&mut self, input: &[u8]) -> Step {
        if let Some(end) = memchr::memchr(b'\n', input) {
            return Step::go_on(end + 1);
        }
        self.pending = Pending::SwallowLine;
        Step::end(input.len(), Next::Read { wanted: 1 })
    }

    fn resume_sending<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut sending: Box<Sending<E::Lease>>,
        output: &mut Vec<u8>,
    ) -> Step {
        if sending.proceed(cx.settings.output_max, output) {
            return Step::go_on(0);
        }
        self.pending = Pending::Sending(sending);
        Step::end(0, Next::Write)
    }

    fn resume_dumping<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut dump: Box<Dump<E>>,
        output: &mut Vec<u8>,
    ) -> Step {
        let next = if output.len() > cx.settings.output_max {
            Next::Write
        } else {
            match dump.proceed(cx, output) {
                WalkState::More => Next::Yield,
                WalkState::Waiting => Next::Wait,
                WalkState::End => {
                    if dump.is_crawl() {
                        cx.host.note_dump(false);
                    }
                    return Step::go_on(0);
                }
            }
        };
        self.pending = Pending::Dumping(dump);
        Step::end(0, next)
    }

    fn resume_scanning<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut scanning: Box<Scanning<E>>,
        output: &mut Vec<u8>,
    ) -> Step {
        let next = if output.len() > cx.settings.output_max {
            Next::Write
        } else {
            match scanning.proceed(cx, output) {
                WalkState::More => Next::Yield,
                WalkState::Waiting => Next::Wait,
                WalkState::End => return Step::go_on(0),
            }
        };
        self.pending = Pending::Scanning(scanning);
        Step::end(0, next)
    }

    fn resume_arriving<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut arriving: Box<Arriving<E>>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        let (consumed, taken) = arriving.take(cx.operations.engine, input);
        let missing = arriving.missing();
        if taken.is_ok() && missing > 0 {
            self.pending = Pending::Arriving(arriving);
            return Step::end(consumed, Next::Read { wanted: missing });
        }
        let Arriving { head, parser, upload, tags, trailer, .. } = &mut *arriving;
        let head_len = head.capacity();
        // The head was parsed before, so it can be parsed again.
        let Some(store) = parser.parse_head(head) else { return Step::end(consumed, Next::Close) };
        let mut scratch = [0; KEY_LEN_MAX];
        let bytes = store.key.decode(&mut scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if Self::elsewhere(cx, bytes).is_some() {
            // This server had the key when the value began to arrive.
            let mut then = Vec::new();
            reply::no_leader(&store.format, &mut then);
            cx.host.release(head_len);
            self.pending = Pending::Swallow { left: missing as u64, then };
            return Step::go_on(consumed);
        }
        if let Err(refusal) = taken {
            *upload = None;
            cx.host.release(head_len);
            self.swallow(cx, &store, key, missing as u64, refusal, turn);
            return Step::go_on(consumed);
        }
        let store = Store { terminated: Store::is_value_end(trailer), ..store };
        let is_done = self.observed(cx, &Request::Store(store), |_, cx| {
            store::store(cx, &store, key, (upload, tags), output)
        });
        if is_done {
            turn.answered.add(CommandClass::Store, 1);
            cx.operations.sample(key);
            cx.host.release(head_len);
            return Step::go_on(consumed);
        }
        let next = self.fetch(cx, std::iter::once(key.hash));
        self.pending = Pending::Arriving(arriving);
        Step::end(consumed, next)
    }
}

/// How many bytes of a store have not arrived yet.
fn missing(body: &Body<'_>, input: &[u8]) -> usize {
    let whole = body.head_len as u64 + body.body_len;
    saturated(whole.saturating_sub(input.len() as u64).max(1))
}

fn saturated(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
