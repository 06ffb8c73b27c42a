//! Requests to all groups.

use crate::Host;
use crate::context::Context;
use crate::route::{Conversation, GroupIndex};
use crate::session::Session;
use crate::session::pending::{Part, PartBytes, PartState, RequestToAll, ScatterGather};
use larder_store::Engine;
use std::ops::Range;

impl<E: Engine> Session<E> {
    /// Sends the request at `at` in the input to all groups. `local` is the reply of this server,
    /// if it leads its group. If `local` differs from `expected`, the client receives `local`, and
    /// the other groups receive no request. Otherwise, the client receives the first reply of a
    /// group that differs from `expected`, or `expected` if there is no such reply. Sends nothing
    /// if the shard map lists no groups any more.
    pub(crate) fn pass_to_all_groups<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        (conversation, input): (Conversation, &[u8]),
        at: Range<usize>,
        (local, expected): (Option<Vec<u8>>, &[u8]),
        scattered: &mut ScatterGather<E>,
    ) {
        let groups = cx.host.shard_map().map(|map| map.groups()).unwrap_or_default();
        let is_remote = |group: &GroupIndex| local.is_none() || *group != GroupIndex::OWN;
        let remote: Vec<GroupIndex> = groups.iter().copied().filter(is_remote).collect();
        let request = || match scattered.is_queued {
            true => PartBytes::Own(input.get(at.clone()).unwrap_or_default().to_vec()),
            false => PartBytes::Input(at.clone()),
        };
        if let Some(local) = local.as_ref().filter(|local| *local != expected) {
            let mut part = Part::new(request(), PartState::Local(None));
            part.answer.clone_from(local);
            return scattered.parts.push_back(part);
        }
        if groups.is_empty() && local.is_none() {
            return;
        }
        for group in remote {
            let part = Part::new(request(), PartState::Refused);
            let part = self.part_to_all(cx, part, (group, conversation), expected, input);
            scattered.parts.push_back(part);
        }
        // This part ends the reply.
        let mut end = Part::new(request(), PartState::Local(None));
        end.answer = expected.to_vec();
        scattered.parts.push_back(end);
        scattered.parts.iter_mut().skip(1).for_each(|part| part.continues = true);
        scattered.to_all = Some(RequestToAll { groups, conversation });
    }

    /// Sends a request to a group, as a part of a request to all groups. The reply of the group must
    /// be `expected`.
    fn part_to_all<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        mut part: Part<E>,
        (group, conversation): (GroupIndex, Conversation),
        expected: &[u8],
        input: &[u8],
    ) -> Part<E> {
        part.is_repeatable = false;
        part.trailer = expected.to_vec();
        let id = self.pass(cx, group, conversation, part.bytes(input));
        part.state = PartState::Remote(group, id);
        part
    }

    /// Before the last part ends the reply to a request to all groups, sends the request to the
    /// groups that the shard map has listed since, because a group may have refused the request
    /// until this server had read a newer map. Returns false if there are none.
    pub(super) fn pass_to_new_groups<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        scattered: &mut ScatterGather<E>,
        input: &[u8],
    ) -> bool {
        let ScatterGather { parts, to_all, .. } = scattered;
        let (Some(to_all), [end]) = (to_all, &*parts.make_contiguous()) else { return false };
        if end.is_dropped {
            return false;
        }
        let mut groups = cx.host.shard_map().map(|map| map.groups()).unwrap_or_default();
        groups.retain(|group| !to_all.groups.contains(group));
        let (request, expected) = (end.bytes(input).to_vec(), end.answer.clone());
        for group in &groups {
            let mut part = Part::new(PartBytes::Own(request.clone()), PartState::Refused);
            part.continues = true;
            let to = (*group, to_all.conversation);
            let part = self.part_to_all(cx, part, to, &expected, input);
            parts.insert(parts.len() - 1, part);
        }
        to_all.groups.extend(&groups);
        !groups.is_empty()
    }
}
