//! Forwards stores with a long value to the node that owns the key. The session forwards the value
//! as it arrives, and keeps the sent bytes until the store has a result. If the owner changes
//! before the store is executed, the session sends the kept bytes to the next owner. If this server
//! is the next owner, it stores the bytes itself. If there is no memory for the sent bytes, a
//! change of the owner makes the store fail. The session sends the kept bytes in pieces, and only
//! while the route has room, so that they do not delay the requests of other clients.
//!
//! ```text
//!             the key moves away: read the value back            not executed
//!   Receive ────────────────────────────────────▶ ForwardUpload ◀────────────┐
//!      ▲      this server owns the key: store the sent bytes │ ──▶ owner ────┘
//!      └─────────────────────────────────────────────────────┘       └─ reply ─▶ Idle
//! ```

use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::memcached::store;
use crate::route::{Conversation, ForwardOutcome};
use crate::session::Session;
use crate::session::pending::{Body, ForwardedUpload, IncomingValue, Pending};
use larder_operations::CommandClass;
use larder_protocol::KEY_LEN_MAX;
use larder_store::{Engine, HashedKey, Refusal};

/// The maximum number of bytes that the session passes to the route at once.
const PIECE_LEN: usize = 64 << 10;

impl<E: Engine> Session<E> {
    /// Starts to forward a store whose value has not arrived completely.
    #[cold]
    pub(crate) fn forward_body<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        body: &Body<'_>,
        input: &[u8],
    ) -> Step {
        let Body { store, head_len, body_len } = body;
        let mut upload = ForwardedUpload::new(store, self.parser, *head_len, *body_len);
        upload.add(cx.host, input.get(..*head_len).unwrap_or_default());
        self.pending = Pending::ForwardUpload(Box::new(upload));
        Step::advance(*head_len)
    }

    /// Forwards a store whose key moved to another node while this server was receiving the value.
    /// `consumed` is the number of bytes in the current input that belong to the value. Refuses the
    /// store if the bytes so far were discarded for lack of memory.
    #[cold]
    pub(crate) fn forward_received<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        incoming: IncomingValue<E>,
        consumed: usize,
    ) -> Step {
        let left = incoming.missing() as u64;
        let IncomingValue { head, parser, upload: value, trailer, .. } = incoming;
        cx.host.release(head.capacity());
        // Parsing succeeds because the same head was parsed before.
        let Some(store) = parser.parse_head(&head) else {
            return Step::finish(consumed, Next::Close);
        };
        let mut upload = ForwardedUpload::new(&store, parser, head.len(), left);
        upload.add(cx.host, &head);
        let mut at = 0;
        while let Some(value) = value.as_ref().filter(|_| upload.is_kept) {
            let piece = cx.operations.engine.uploaded(value, at);
            if piece.is_empty() {
                break;
            }
            upload.add(cx.host, piece);
            at += piece.len();
        }
        upload.add(cx.host, &trailer);
        self.pending = match upload.is_kept && value.is_some() {
            true => Pending::ForwardUpload(Box::new(upload)),
            false => {
                upload.release(cx.host);
                Pending::Discard { left, then: upload.then }
            }
        };
        Step::advance(consumed)
    }

    /// Forwards the arrived bytes of a value, or handles the result of the store.
    #[cold]
    pub(crate) fn resume_forward_upload<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut upload: Box<ForwardedUpload>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let Some((group, id)) = upload.to else {
            return self.send_upload(cx, upload, poll, output);
        };
        let Some(route) = self.rare().routes.get(group) else {
            upload.release(cx.host);
            return Step::finish(0, Next::Close);
        };
        match route.take(id, output) {
            ForwardOutcome::Pending => (),
            ForwardOutcome::More => route.resume(),
            // If all bytes were sent, the owner may have executed the store. Otherwise, the owner
            // has not executed it, and the session sends the kept bytes again.
            ForwardOutcome::ConnectionLost if upload.is_sent() || !upload.is_kept => {
                upload.release(cx.host);
                return Step::finish(0, Next::Close);
            }
            ForwardOutcome::Retry | ForwardOutcome::ConnectionLost if upload.is_kept => {
                (upload.to, upload.sent) = (None, 0);
                return self.send_upload(cx, upload, poll, output);
            }
            ForwardOutcome::Retry | ForwardOutcome::ConnectionLost | ForwardOutcome::NoLeader => {
                poll.answered.add(CommandClass::Store, 1);
                upload.release(cx.host);
                self.pending = Pending::Discard { left: upload.left, then: upload.then };
                return Step::advance(0);
            }
            ForwardOutcome::Done if upload.is_sent() => {
                poll.answered.add(CommandClass::Store, 1);
                upload.release(cx.host);
                return Step::advance(0);
            }
            ForwardOutcome::Done | ForwardOutcome::Close | ForwardOutcome::RetryRest(_) => {
                upload.release(cx.host);
                return Step::finish(0, Next::Close);
            }
        }
        let has_unsent = upload.sent < upload.bytes.len();
        let wanted =
            if has_unsent { 0 } else { usize::try_from(upload.left).unwrap_or(usize::MAX) };
        let bytes = input.get(..wanted.min(PIECE_LEN).min(input.len())).unwrap_or_default();
        let waker = (cx.waker)();
        let has_piece = has_unsent || !bytes.is_empty();
        if !has_piece || !route.has_room(&waker) {
            let is_read = !has_piece && wanted > 0;
            self.pending = Pending::ForwardUpload(upload);
            return Step::finish(0, if is_read { Next::Read { wanted } } else { Next::Wait });
        }
        upload.left -= bytes.len() as u64;
        upload.add(cx.host, bytes);
        let (piece, more) = upload.next_piece(PIECE_LEN);
        route.pass_rest(piece, more, &waker);
        self.pending = Pending::ForwardUpload(upload);
        Step::advance(bytes.len())
    }

    /// Sends the first piece of the store to the owner of the key. If this server is the owner,
    /// stores the bytes so far and receives the rest of the value.
    fn send_upload<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut upload: Box<ForwardedUpload>,
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let (head, value) = upload.bytes.split_at_checked(upload.head_len).unwrap_or_default();
        // Parsing succeeds because the same head was parsed before.
        let Some(store) = upload.parser.parse_head(head) else {
            upload.release(cx.host);
            return Step::finish(0, Next::Close);
        };
        let mut scratch = [0; KEY_LEN_MAX];
        let bytes = store.key.decode(&mut scratch);
        if let Some(group) = Self::remote_owner(cx, bytes) {
            let waker = (cx.waker)();
            let route = self.route_to(cx, group, Conversation::Memcached);
            if !route.has_room(&waker) {
                self.pending = Pending::ForwardUpload(upload);
                return Step::finish(0, Next::Wait);
            }
            let (piece, more) = upload.next_piece(PIECE_LEN);
            let id = route.pass(piece, more, &waker);
            upload.to = Some((group, id));
            self.pending = Pending::ForwardUpload(upload);
            return Step::advance(0);
        }
        let key = HashedKey { bytes, hash: cx.operations.engine.hash(bytes) };
        let body_len = upload.left + value.len() as u64;
        if store::fits(cx, &store, key) {
            self.start_upload(cx, &store, key, head, body_len, poll);
        } else {
            self.discard_body(cx, &store, key, body_len, Refusal::TooLarge, poll);
        }
        // If the key moves to another node again, the next upload reserves memory for the same
        // bytes.
        upload.release(cx.host);
        let step = self.resume(cx, value, poll, output);
        // `resume` has consumed kept bytes, not input. The session must process the input before it
        // requests more input.
        Step { consumed: 0, next: step.next.filter(|next| !matches!(next, Next::Read { .. })) }
    }
}
