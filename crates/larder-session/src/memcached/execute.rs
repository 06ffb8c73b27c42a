//! Answers one request.

use super::{admin, get, read_only, store, tags};
use crate::Host;
use crate::context::{Context, Flow};
use crate::events::RequestObserver;
use crate::memcached::batch::{Other, key_of};
use crate::memcached::get::LookupReply;
use crate::session::Session;
use crate::session::pending::Pending;
use larder_operations::{OpContext, Tags};
use larder_protocol::{FastGet, FastSet, Fault, KEY_LEN_MAX, Recovery, Request, Streams, reply};
use larder_store::{Engine, HashedKey, Refusal, Tag};

impl<E: Engine> Session<E> {
    pub(crate) fn answer_other<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        other: &Other<'_>,
        hash: u64,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Flow {
        let request = &other.request;
        let bytes = key_of(request).map_or(&[][..], |key| key.decode(scratch));
        let before = std::mem::replace(&mut self.parser, other.parser);
        let flow = self.execute(cx, request, HashedKey { bytes, hash }, output);
        if let Flow::Wait = flow {
            self.parser = before;
        }
        flow
    }

    /// Answers a fast-path lookup, which has one key and does not change the item.
    #[inline]
    pub(crate) fn answer_get<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        get: &FastGet<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Flow {
        let key = HashedKey { bytes: get.key, hash };
        if self.observed != Streams::default() {
            return self.execute(cx, &Request::Get(get.get()), key, output);
        }
        match get::fast_get(cx, get, key, output) {
            Some(LookupReply::Written) => Flow::Continue,
            Some(answered) => self.continue_get(answered),
            None => {
                // For a classic or binary lookup, `fast_get` has recorded the access even if it
                // returned `None`. For a meta lookup, it records the access only if it writes the
                // reply.
                let (pending, is_recorded) = (&mut self.pending, !get.is_meta());
                let answered = get::get(cx, &get.get(), key, (is_recorded, &[]), pending, output);
                self.continue_get(answered)
            }
        }
    }

    /// Answers a fast-path set. The function is not inlined, because inlining adds one percent to
    /// the instructions of each lookup.
    #[inline(never)]
    pub(crate) fn answer_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        set: &FastSet<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Flow {
        let key = HashedKey { bytes: set.key, hash };
        if self.observed != Streams::default() || cx.settings.read_only {
            return self.execute(cx, &Request::Store(set.store()), key, output);
        }
        if store::fast_set(cx, set, key, output) { Flow::Continue } else { Flow::Wait }
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        if cx.settings.read_only
            && let Some(format) = read_only::change(request)
        {
            reply::read_only(format, output);
            return self.continue_get(LookupReply::Refused);
        }
        if self.observed == Streams::default() || key.bytes.is_empty() {
            self.perform(cx, request, key, output)
        } else {
            self.with_observer(cx, request, |session, cx| session.perform(cx, request, key, output))
        }
    }

    /// Calls `work` with an observer for this request.
    #[cold]
    pub(crate) fn with_observer<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        work: impl FnOnce(&mut Self, &mut Context<'_, E, H>) -> R,
    ) -> R {
        let observer = RequestObserver::new(cx.host, self.client, self.observed, request);
        let OpContext { counters, limits, now, guard, .. } = cx.operations;
        let engine = &mut *cx.operations.engine;
        let operations =
            OpContext { engine, counters, limits, now, observer: Some(&observer), guard };
        let Context { host, settings, waker, .. } = *cx;
        work(self, &mut Context { operations, host, settings, waker })
    }

    /// Updates the session after a lookup, or after a read-only server has refused a change.
    #[inline]
    fn continue_get(&mut self, answered: LookupReply) -> Flow {
        match answered {
            LookupReply::Written => (),
            // Clients treat the error as the end of the reply, so the session answers no later key
            // of the line.
            LookupReply::Refused if self.parser.abandon_line() => {
                self.pending = Pending::DiscardLine
            }
            LookupReply::Refused => (),
            LookupReply::Pending => return Flow::Wait,
        }
        Flow::Continue
    }

    #[inline]
    fn perform<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        if !tags::has_tags(request) {
            return self.perform_tagged(cx, request, key, &[], output);
        }
        let Ok(tags) = self.tags_of(cx, request, key, output) else { return Flow::Continue };
        let flow = self.perform_tagged(cx, request, key, &tags, output);
        if let Flow::Wait = flow {
            self.keep_tags(tags);
        }
        flow
    }

    /// Returns the tags that a request sets on the item that it stores. If an earlier execution of
    /// the request had to wait, returns the tags of that execution: a client may have dropped one
    /// of these tags since, which must invalidate the stored item.
    ///
    /// # Errors
    /// The engine's [`Refusal`]. The reply is in the output.
    #[cold]
    fn tags_of<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Result<Tags, Refusal> {
        match self.take_kept_tags() {
            Some(tags) => Ok(tags),
            None => tags::of_request(cx, request).inspect_err(|refusal| {
                if let Request::Store(store) = request {
                    store::remove_refused(cx, store, key, *refusal);
                }
                reply::tags_refused(*refusal == Refusal::OutOfMemory, output);
            }),
        }
    }

    #[inline]
    fn perform_tagged<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        tags: &[Tag],
        output: &mut Vec<u8>,
    ) -> Flow {
        let is_done = match request {
            Request::Get(get) => {
                let answered = get::get(cx, get, key, (false, tags), &mut self.pending, output);
                return self.continue_get(answered);
            }
            Request::Store(store) => store::store(cx, store, key, (&mut None, tags), output),
            Request::Delete(delete) => store::delete(cx, delete, key, output),
            Request::Arithmetic(count) => store::count(cx, count, key, tags, output),
            Request::Debug(debug) => get::describe(cx, debug, key, output),
            _ => return self.control(cx, request, output),
        };
        if is_done { Flow::Continue } else { Flow::Wait }
    }

    /// Answers a request that is not about a single item.
    fn control<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        match request {
            Request::Get(_) | Request::Store(_) | Request::Delete(_) => (),
            Request::Arithmetic(_) | Request::Debug(_) => (),
            Request::GetEnd => reply::get_end(output),
            Request::Noop(format) => reply::noop(format, output),
            Request::DropTag(drop) => tags::drop_tag(cx, drop, output),
            Request::FlushAll { at, format } => admin::flush(cx, *at, format, output),
            Request::Version(format) => reply::version(format, cx.host.version(), output),
            Request::Verbosity { level, format } => {
                cx.host.set_verbosity(*level);
                reply::ok(format, output);
            }
            Request::Stats { topic, format } => {
                self.stats(cx, topic, format, output);
                // `stats detail` may have changed the observed streams for later requests.
                self.observed = cx.host.observed();
            }
            Request::Admin { command, format } => {
                return self.administer(cx, command, format, output);
            }
            Request::Login(claimed) => self.log_in(cx, claimed, output),
            Request::Quit(format) => {
                reply::quit(format, output);
                return Flow::Close;
            }
            Request::Fault(fault) => return self.fault(fault, output),
        }
        Flow::Continue
    }

    fn fault(&mut self, fault: &Fault, output: &mut Vec<u8>) -> Flow {
        match fault.then {
            Recovery::Swallow(left) => {
                let mut then = Vec::new();
                reply::fault(fault, &mut then);
                self.pending = Pending::Discard { left, then };
                return Flow::Continue;
            }
            Recovery::SwallowLine => self.pending = Pending::DiscardLine,
            Recovery::Continue => (),
            Recovery::Close => {
                self.failed = true;
                reply::fault(fault, output);
                return Flow::Close;
            }
        }
        reply::fault(fault, output);
        Flow::Continue
    }
}
