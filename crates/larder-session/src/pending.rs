//! What keeps the next request waiting: a value on its way in or out, or bytes that nobody wants.

use crate::dump::Dump;
use crate::session::{Context, Next, Session};
use crate::{Host, store};
use arrayvec::ArrayVec;
use larder_protocol::{KEY_LEN_MAX, Parser, Request, Store};
use larder_store::{Engine, HashedKey, Lease, Refusal};

/// What keeps the next request waiting.
///
/// ```text
///            fault, refusal             body too long for one piece
///  Swallow ◀──────────────── Nothing ─────────────────────────────▶ Arriving
///     │ all dropped: answer   ▲  │ ▲        all here: store, answer     │
///     └───────────────────────┘  │ └──────────────────────────────────-─┘
///                                │ large value asked for
///                                ▼
///                             Sending ── all out ──▶ Nothing
///
///  Dumping, from Nothing and back: a command that shows all items
///  Watching, from Nothing: until the connection ends
/// ```
pub(crate) enum Pending<E: Engine> {
    Nothing,
    /// Drop this many bytes, then say this.
    Swallow {
        left: u64,
        then: Vec<u8>,
    },
    /// Drop everything up to the next LF.
    SwallowLine,
    /// A value is arriving in pieces.
    Arriving(Box<Arriving<E>>),
    /// A value is leaving in pieces.
    Sending(Box<Sending<E::Lease>>),
    /// Items are shown one after another.
    Dumping(Box<Dump<E>>),
    /// The log is shown to the watcher of this number, until it goes away.
    Watching(u64),
}

impl<E: Engine> Pending<E> {
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Bytes of the server's memory that it holds. A value on its way out is not among them: its
    /// lease keeps memory of the cache.
    pub(crate) fn reserved(&self) -> usize {
        match self {
            Self::Arriving(arriving) => arriving.head.capacity(),
            Self::Nothing | Self::Swallow { .. } | Self::SwallowLine => 0,
            Self::Sending(_) | Self::Dumping(_) | Self::Watching(_) => 0,
        }
    }
}

/// What one step of a turn did: the input it used up, and why the turn ends with it, if it does.
pub(crate) struct Step {
    pub(crate) consumed: usize,
    pub(crate) next: Option<Next>,
}

impl Step {
    pub(crate) fn go_on(consumed: usize) -> Self {
        Self { consumed, next: None }
    }

    pub(crate) fn end(consumed: usize, next: Next) -> Self {
        Self { consumed, next: Some(next) }
    }
}

/// A store whose value is not all here.
pub(crate) struct Body<'b> {
    pub(crate) store: Store<'b>,
    pub(crate) head_len: usize,
    /// From the value on, its CRLF included.
    pub(crate) body_len: u64,
}

/// A store whose value is too long to wait for in a buffer.
pub(crate) struct Arriving<E: Engine> {
    /// The request up to its value, to be read again when that is here.
    head: Vec<u8>,
    parser: Parser,
    upload: Option<E::Upload>,
    /// Bytes of the value that are still to come.
    value_left: usize,
    value_len: usize,
    /// What followed the value: CRLF in text.
    trailer: ArrayVec<u8, 2>,
    trailer_len: usize,
}

/// A large value on its way out.
pub(crate) struct Sending<L> {
    lease: L,
    at: usize,
    /// What follows the value.
    tail: Vec<u8>,
}

/// Values up to this long wait in the connection's buffer until they are whole, in bytes.
const BUFFERED_BODY_MAX: u64 = 64 << 10;

impl<E: Engine> Session<E> {
    /// Deals with a store whose value is not all here: waits for it if it is short, else begins to
    /// take it in.
    pub(crate) fn begin_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        body: &Body<'_>,
        input: &[u8],
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let (store, body_len) = (&body.store, body.body_len);
        let bytes = store.key.decode(scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if !store::fits(cx, store, key) {
            self.swallow(cx, store, key, body_len, Refusal::TooLarge);
        } else if body_len <= BUFFERED_BODY_MAX.min(cx.operations.engine.upload_len_min() as u64) {
            let whole = body.head_len as u64 + body_len;
            let wanted = whole.saturating_sub(input.len() as u64).max(1);
            return Step::end(0, Next::Read { wanted: saturated(wanted) });
        } else {
            let head = input.get(..body.head_len).unwrap_or_default();
            self.begin_upload(cx, store, key, head, body_len);
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
    ) {
        let head = head.to_vec();
        let upload = match cx.operations.engine.upload(store.value_len) {
            Ok(upload) if cx.host.reserve(head.capacity()) => upload,
            Ok(_) => return self.swallow(cx, store, key, body_len, Refusal::OutOfMemory),
            Err(refusal) => return self.swallow(cx, store, key, body_len, refusal),
        };
        self.pending = Pending::Arriving(Box::new(Arriving {
            head,
            parser: self.parser,
            upload: Some(upload),
            value_left: store.value_len,
            value_len: store.value_len,
            trailer: ArrayVec::new(),
            trailer_len: saturated(body_len) - store.value_len,
        }));
    }

    /// Refuses a store before its value is here: what is announced is dropped, then the peer is
    /// told.
    fn swallow<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        left: u64,
        why: Refusal,
    ) {
        let mut then = Vec::new();
        self.observed(cx, &Request::Store(*store), |_, cx| {
            store::refuse(cx, store, key, why, &mut then);
        });
        self.pending = Pending::Swallow { left, then };
    }

    /// Goes on with what is pending.
    pub(crate) fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => Step::go_on(0),
            Pending::Swallow { left, then } => self.resume_swallow(left, then, input, output),
            Pending::SwallowLine => self.resume_line(input),
            Pending::Arriving(arriving) => self.resume_arriving(cx, arriving, input, output),
            Pending::Sending(sending) => self.resume_sending(cx, sending, output),
            Pending::Dumping(dump) => self.resume_dumping(cx, dump, output),
            Pending::Watching(watcher) => {
                self.pending = Pending::Watching(watcher);
                cx.host.read_log(watcher, output);
                // Whatever a watcher says is for nobody.
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
        let full = output.len() > cx.settings.output_max;
        if !full && dump.proceed(cx, output) {
            if dump.is_crawl() {
                cx.host.note_dump(false);
            }
            return Step::go_on(0);
        }
        self.pending = Pending::Dumping(dump);
        Step::end(0, if full { Next::Write } else { Next::Yield })
    }

    fn resume_arriving<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut arriving: Box<Arriving<E>>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        let (consumed, taken) = arriving.take(cx.operations.engine, input);
        let missing = arriving.missing();
        if taken.is_ok() && missing > 0 {
            self.pending = Pending::Arriving(arriving);
            return Step::end(consumed, Next::Read { wanted: missing });
        }
        let Arriving { head, parser, upload, trailer, trailer_len, .. } = &mut *arriving;
        let head_len = head.capacity();
        // It was read before, so it can be read again.
        let Some(store) = parser.parse_head(head) else { return Step::end(consumed, Next::Close) };
        let mut scratch = [0; KEY_LEN_MAX];
        let bytes = store.key.decode(&mut scratch);
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        if let Err(refusal) = taken {
            *upload = None;
            cx.host.release(head_len);
            self.swallow(cx, &store, key, missing as u64, refusal);
            return Step::go_on(consumed);
        }
        let terminated = *trailer_len == 0 || trailer[..] == *b"\r\n";
        let store = Store { terminated, ..store };
        let is_done = self.observed(cx, &Request::Store(store), |_, cx| {
            store::store(cx, &store, key, upload, output)
        });
        if is_done {
            cx.host.release(head_len);
            return Step::go_on(consumed);
        }
        let next = self.fetch(cx, std::iter::once(key.hash));
        self.pending = Pending::Arriving(arriving);
        Step::end(consumed, next)
    }
}

impl<E: Engine> Arriving<E> {
    /// Takes what of `input` belongs to it, and says how much that was. It is used up even if there
    /// is no memory for it.
    fn take(&mut self, engine: &mut E, input: &[u8]) -> (usize, Result<(), Refusal>) {
        let (value, rest) = input.split_at_checked(self.value_left).unwrap_or((input, &[]));
        let taken = match self.upload.as_mut() {
            Some(upload) => engine.extend(upload, value),
            None => Ok(()),
        };
        self.value_left -= value.len();
        let trailer = rest.get(..self.trailer_len - self.trailer.len()).unwrap_or(rest);
        self.trailer.extend(trailer.iter().copied());
        (value.len() + trailer.len(), taken)
    }

    /// Bytes of the value that are here.
    pub(crate) fn received(&self) -> usize {
        self.value_len - self.value_left
    }

    /// Bytes that are still to come.
    fn missing(&self) -> usize {
        self.value_left + self.trailer_len - self.trailer.len()
    }
}

impl<L: Lease> Sending<L> {
    pub(crate) fn new(lease: L, tail: Vec<u8>) -> Self {
        Self { lease, at: 0, tail }
    }

    /// Bytes of the value.
    pub(crate) fn len(&self) -> usize {
        self.lease.len()
    }

    /// Copies what fits; true when all is copied.
    fn proceed(&mut self, output_max: usize, output: &mut Vec<u8>) -> bool {
        while self.at < self.lease.len() {
            let room = output_max.saturating_sub(output.len());
            if room == 0 {
                return false;
            }
            let piece = self.lease.piece(self.at);
            let piece = piece.get(..room).unwrap_or(piece);
            output.extend_from_slice(piece);
            self.at += piece.len();
        }
        output.append(&mut self.tail);
        true
    }
}

fn saturated(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
