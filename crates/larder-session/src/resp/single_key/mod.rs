//! Commands on one item.

mod answer;
mod bits;
mod expiry;
mod read;
mod rewrite;
mod write;

pub(super) use answer::{is_binary, refusal, waits, without_padding};
pub(super) use expiry::milliseconds_left;
pub(super) use read::try_show_copied;
pub(super) use write::store;

use crate::Host;
use crate::context::Context;
use crate::events::RequestObserver;
use crate::resp::batch::Outcome;
use crate::session::Session;
use crate::session::resp_state::State;
use larder_operations::{LookupOptions, OpContext};
use larder_protocol::Streams;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{ItemCommand, NewExpiry};
use larder_store::{Engine, HashedKey};

impl<E: Engine> Session<E> {
    /// Calls `work`. If the host observes requests, installs an observer for the call.
    pub(in crate::resp) fn with_resp_observer<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        work: impl FnOnce(&mut Self, &mut Context<'_, E, H>) -> R,
    ) -> R {
        if !self.is_observed() {
            return work(self, cx);
        }
        let observer = RequestObserver::unprefixed(cx.host, self.client, self.observed);
        let OpContext { counters, limits, now, guard, .. } = cx.operations;
        let engine = &mut *cx.operations.engine;
        let operations =
            OpContext { engine, counters, limits, now, observer: Some(&observer), guard };
        let Context { host, settings, waker, .. } = *cx;
        work(self, &mut Context { operations, host, settings, waker })
    }

    /// Returns whether the log has watchers or the host counts requests by prefix.
    pub(in crate::resp) fn is_observed(&self) -> bool {
        self.observed != Streams::default()
    }

    /// Answers a command on one item.
    pub(in crate::resp) fn resp_item<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        command: &ItemCommand<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let now = cx.operations.now;
        let answered = match command {
            ItemCommand::Get | ItemCommand::GetEx(None | Some(NewExpiry::Keep)) => {
                return self.resp_get(cx, state, key, output);
            }
            ItemCommand::GetEx(Some(expiry)) => match expiry::new_expiry(*expiry, now) {
                Ok(touch) => {
                    let op = LookupOptions { touch, ..LookupOptions::default() };
                    return self.resp_look(cx, state, key, &op, false, output);
                }
                Err(error) => Some(Err(error)),
            },
            ItemCommand::Set(set) => return self.resp_set(cx, state, key, set, output),
            ItemCommand::GetDel => return read::resp_take(cx, state, key, output),
            ItemCommand::GetRange { start, end } => {
                return read::get_range(cx, state, key, (*start, *end), output);
            }
            ItemCommand::GetBit(offset) => bits::get_bit(cx, key, *offset),
            ItemCommand::BitCount { start, end, in_bits } => {
                bits::bit_count(cx, key, (*start, *end), *in_bits)
            }
            ItemCommand::SetBit(offset, bit) => rewrite::set_bit(cx, key, *offset, *bit),
            ItemCommand::SetRange { offset, bytes } => rewrite::set_range(cx, key, *offset, bytes),
            ItemCommand::AddDecimal(delta) => {
                return rewrite::add_decimal(cx, state, key, *delta, output);
            }
            ItemCommand::Type => return read::show_type(cx, state, key, output),
            ItemCommand::Append(value) => write::append(cx, key, value),
            ItemCommand::StrLen => read::str_len(cx, key),
            ItemCommand::MemoryUsage => return read::memory_usage(cx, state, key, output),
            ItemCommand::DeleteIf { value, equal } => write::delete_if(cx, key, value, *equal),
            ItemCommand::Add(delta) => write::add(cx, key, *delta),
            ItemCommand::Expire(expire) => expiry::set_expiry(cx, key, expire),
            ItemCommand::Persist => expiry::persist(cx, key),
            ItemCommand::ShowExpiry { in_millis, absolute } => {
                expiry::show_expiry(cx, key, *in_millis, *absolute)
            }
        };
        match answered {
            Some(Ok(number)) => reply::integer(number, output),
            Some(Err(error)) => reply::error(&error, output),
            None => return waits(state, key),
        }
        Outcome::Done
    }
}
