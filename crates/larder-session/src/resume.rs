//! Continues the pending work of a session, and starts to receive values that have not arrived
//! completely.

use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::memcached::{store, tags};
use crate::session::Session;
use crate::session::dump::Dump;
use crate::session::key_scan::KeyScan;
use crate::session::pending::{Body, IncomingValue, OutgoingValue, Pending};
use larder_operations::CommandClass;
use larder_protocol::{KEY_LEN_MAX, Request, Store, reply};
use larder_store::{Engine, HashedKey, Refusal, WalkState};

/// The maximum length of a value, in bytes including its line end, that stays in the input buffer
/// until it is complete. The session receives or forwards a longer value in pieces. The session
/// also receives a value in pieces if the item will have tags, or if the value is longer than the
/// engine's `upload_len_min`.
const BUFFERED_BODY_MAX: u64 = 64 << 10;

impl<E: Engine> Session<E> {
    /// Handles a store whose value has not arrived completely. Waits for the rest of a short value.
    /// Receives or forwards a long value in pieces. If the store is refused, discards the value.
    pub(crate) fn start_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        body: &Body<'_>,
        input: &[u8],
        poll: &mut PollState,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let (store, body_len) = (&body.store, body.body_len);
        if Self::remote_owner(cx, store.key.decode(scratch)).is_some() {
            if self.is_forwarded {
                return Step::finish(0, Next::NotOwner);
            }
            // The session forwards a store with a short value only when the value is complete.
            return match body_len <= BUFFERED_BODY_MAX {
                true => Step::finish(0, Next::Read { wanted: missing(body, input) }),
                false => self.forward_body(cx, body, input),
            };
        }
        if cx.settings.read_only {
            poll.answered.add(CommandClass::Store, 1);
            let mut then = Vec::new();
            reply::read_only(&store.format, &mut then);
            self.pending = Pending::Discard { left: body_len, then };
            return Step::advance(body.head_len);
        }
        // Read the tags now: if a client drops a tag while the value arrives, the item must become
        // invalid.
        let starts_now = store.value_len > 0 && tags::has_tags(&Request::Store(*store));
        let bytes = store.key.decode(scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if !store::fits(cx, store, key) {
            self.discard_body(cx, store, key, body_len, Refusal::TooLarge, poll);
        } else if !starts_now
            && body_len <= BUFFERED_BODY_MAX.min(cx.operations.engine.upload_len_min() as u64)
        {
            return Step::finish(0, Next::Read { wanted: missing(body, input) });
        } else {
            let head = input.get(..body.head_len).unwrap_or_default();
            self.start_upload(cx, store, key, head, body_len, poll);
        }
        Step::advance(body.head_len)
    }

    pub(crate) fn start_upload<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        head: &[u8],
        body_len: u64,
        poll: &mut PollState,
    ) {
        let head = head.to_vec();
        let upload = match cx.operations.engine.upload(store.value_len) {
            Ok(upload) if cx.host.reserve(head.capacity()) => upload,
            Ok(_) => {
                return self.discard_body(cx, store, key, body_len, Refusal::OutOfMemory, poll);
            }
            Err(refusal) => return self.discard_body(cx, store, key, body_len, refusal, poll),
        };
        let tags = match tags::of_request(cx, &Request::Store(*store)) {
            Ok(tags) => tags,
            Err(refusal) => {
                cx.host.release(head.capacity());
                return self.discard_body(cx, store, key, body_len, refusal, poll);
            }
        };
        let trailer_len = saturated(body_len) - store.value_len;
        let value = (upload, tags);
        let incoming = IncomingValue::new(head, self.parser, value, store.value_len, trailer_len);
        self.pending = Pending::Receive(Box::new(incoming));
    }

    /// Refuses a store before its value has arrived. Discards the `left` bytes of the value that
    /// have not arrived, then writes the reply.
    pub(crate) fn discard_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        left: u64,
        refusal: Refusal,
        poll: &mut PollState,
    ) {
        poll.answered.add(CommandClass::Store, 1);
        let mut then = Vec::new();
        self.with_observer(cx, &Request::Store(*store), |_, cx| {
            store::refuse(cx, store, key, refusal, &mut then);
        });
        self.pending = Pending::Discard { left, then };
    }

    /// Continues the pending work of the session. If the work needs input, processes the next bytes
    /// of `input`.
    pub(crate) fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        match std::mem::replace(&mut self.pending, Pending::Idle) {
            Pending::Idle => Step::advance(0),
            Pending::Discard { left, then } => self.resume_discard(left, then, input, output),
            Pending::DiscardLine => self.resume_discard_line(input),
            Pending::DiscardRequest(rest) => self.resume_discard_request(cx, rest, input, output),
            Pending::Forward(forwarded) => self.resume_forward(cx, forwarded, input, poll, output),
            Pending::ScatterGather(scattered) => {
                self.resume_scatter_gather(cx, scattered, input, poll, output)
            }
            Pending::ForwardUpload(passing) => {
                self.resume_forward_upload(cx, passing, input, poll, output)
            }
            Pending::Receive(incoming) => self.resume_receive(cx, incoming, input, poll, output),
            Pending::Send(sending) => self.resume_send(cx, sending, output),
            Pending::Dump(dump) => self.resume_dump(cx, dump, output),
            Pending::KeyScan(key_scan) => self.resume_key_scan(cx, key_scan, output),
            Pending::Watch(watcher) => {
                self.pending = Pending::Watch(watcher);
                cx.host.read_log(watcher, output);
                // Watchers send no requests. Discard their input.
                Step::finish(input.len(), Next::Read { wanted: 1 })
            }
        }
    }

    fn resume_discard(
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
            return Step::advance(dropped);
        }
        self.pending = Pending::Discard { left, then };
        Step::finish(dropped, Next::Read { wanted: saturated(left) })
    }

    fn resume_discard_line(&mut self, input: &[u8]) -> Step {
        if let Some(end) = memchr::memchr(b'\n', input) {
            return Step::advance(end + 1);
        }
        self.pending = Pending::DiscardLine;
        Step::finish(input.len(), Next::Read { wanted: 1 })
    }

    fn resume_send<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut sending: Box<OutgoingValue<E::Lease>>,
        output: &mut Vec<u8>,
    ) -> Step {
        if sending.proceed(cx.settings.output_max, output) {
            return Step::advance(0);
        }
        self.pending = Pending::Send(sending);
        Step::finish(0, Next::Write)
    }

    fn resume_dump<H: Host>(
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
                    return Step::advance(0);
                }
            }
        };
        self.pending = Pending::Dump(dump);
        Step::finish(0, next)
    }

    fn resume_key_scan<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut key_scan: Box<KeyScan<E>>,
        output: &mut Vec<u8>,
    ) -> Step {
        let next = if output.len() > cx.settings.output_max {
            Next::Write
        } else {
            match key_scan.proceed(cx, output) {
                WalkState::More => Next::Yield,
                WalkState::Waiting => Next::Wait,
                WalkState::End => return Step::advance(0),
            }
        };
        self.pending = Pending::KeyScan(key_scan);
        Step::finish(0, next)
    }

    fn resume_receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut incoming: Box<IncomingValue<E>>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let (consumed, taken) = incoming.take(cx.operations.engine, input);
        let missing = incoming.missing();
        if self.is_forwarded && Self::is_remote(cx) {
            // The forwarding node keeps the bytes that it has sent so far, and sends them to the
            // new owner.
            self.pending = Pending::Receive(incoming);
            return Step::finish(consumed, Next::NotOwner);
        }
        if taken.is_ok() && missing > 0 {
            self.pending = Pending::Receive(incoming);
            return Step::finish(consumed, Next::Read { wanted: missing });
        }
        let IncomingValue { head, parser, upload, tags, trailer, .. } = &mut *incoming;
        let head_len = head.capacity();
        // Parsing succeeds because the same head was parsed before.
        let Some(store) = parser.parse_head(head) else {
            return Step::finish(consumed, Next::Close);
        };
        let mut scratch = [0; KEY_LEN_MAX];
        let bytes = store.key.decode(&mut scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if Self::remote_owner(cx, bytes).is_some() {
            // The key has moved to another node since the upload started.
            if self.is_forwarded {
                self.pending = Pending::Receive(incoming);
                return Step::finish(consumed, Next::NotOwner);
            }
            if taken.is_err() {
                *upload = None;
            }
            return self.forward_received(cx, *incoming, consumed);
        }
        if let Err(refusal) = taken {
            *upload = None;
            cx.host.release(head_len);
            self.discard_body(cx, &store, key, missing as u64, refusal, poll);
            return Step::advance(consumed);
        }
        let store = Store { terminated: Store::is_value_end(trailer), ..store };
        let is_done = self.with_observer(cx, &Request::Store(store), |_, cx| {
            store::store(cx, &store, key, (upload, tags), output)
        });
        if is_done {
            poll.answered.add(CommandClass::Store, 1);
            cx.operations.sample(key);
            cx.host.release(head_len);
            return Step::advance(consumed);
        }
        let next = self.start_reads(cx, std::iter::once(key.hash));
        self.pending = Pending::Receive(incoming);
        Step::finish(consumed, next)
    }
}

/// Returns how many bytes of a store have not arrived, at least 1.
fn missing(body: &Body<'_>, input: &[u8]) -> usize {
    let whole = body.head_len as u64 + body.body_len;
    saturated(whole.saturating_sub(input.len() as u64).max(1))
}

fn saturated(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
