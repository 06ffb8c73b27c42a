//! The numbers that stand for client protocols in frames between nodes.

use larder_session::Conversation;

/// Each kind of conversation, and the number that stands for it in frames.
const CONVERSATIONS: [(Conversation, u8); 6] = [
    (Conversation::Memcached, 0),
    (Conversation::Gateway, 1),
    (Conversation::Resp2, 2),
    (Conversation::Resp3, 3),
    (Conversation::TrackedResp2, 4),
    (Conversation::TrackedResp3, 5),
];

/// Returns the number that stands for a kind of conversation in frames.
pub(super) fn number_of(conversation: Conversation) -> u8 {
    let entry = CONVERSATIONS.iter().find(|(kind, _)| *kind == conversation);
    entry.map_or(0, |(_, number)| *number)
}

/// Returns the kind of conversation with this number, or `None` if the number is unknown.
pub(super) fn conversation_of(number: u8) -> Option<Conversation> {
    let entry = CONVERSATIONS.iter().find(|(_, code)| *code == number);
    entry.map(|(conversation, _)| *conversation)
}
