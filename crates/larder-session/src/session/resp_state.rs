//! What a conversation in RESP keeps between requests.

use crate::Host;
use crate::route::Conversation;
use arrayvec::ArrayVec;
use larder_protocol::reply::resp::Version;

/// How many reads of slower storage a conversation begins at once.
pub(crate) const FETCHES_MAX: usize = 32;

/// What a conversation in RESP keeps between requests.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) version: Version,
    /// The name that the client has given its connection.
    pub(crate) name: Vec<u8>,
    /// Whether clients have to log in at all.
    pub(crate) login_required: bool,
    pub(crate) is_logged_in: bool,
    /// The requests since `MULTI`.
    pub(crate) transaction: Option<Transaction>,
    /// Requests that are answered before further input: those of `EXEC`, or an inline request.
    pub(crate) script: Script,
    /// How many keys of the next request were answered already, and how many of them were there.
    pub(crate) answered: Answered,
    /// The hashes of the keys that the next request waits for.
    pub(crate) waiting: ArrayVec<u64, FETCHES_MAX>,
    /// The bytes that are reserved at the host.
    reserved: usize,
}

/// Requests that are kept for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) requests: Vec<u8>,
    pub(crate) count: usize,
    /// Whether a request was refused, so that `EXEC` is.
    pub(crate) has_failed: bool,
}

/// Requests, of which those before `at` are answered.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) requests: Vec<u8>,
    pub(crate) at: usize,
    /// They were kept until `EXEC`, and see each other's changes.
    pub(crate) is_transaction: bool,
}

/// The part of a request with several keys that is answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    pub(crate) keys: usize,
    pub(crate) found: i64,
}

impl State {
    pub(crate) fn new(login_required: bool) -> Self {
        Self { login_required, ..Self::default() }
    }

    /// Forgets what the client has said, but not what the server requires.
    pub(crate) fn reset(&mut self) {
        (self.version, self.is_logged_in) = (Version::default(), false);
        (self.name, self.transaction) = (Vec::new(), None);
    }

    /// Whether the client has to log in before it is served.
    pub(crate) fn needs_login(&self) -> bool {
        self.login_required && !self.is_logged_in
    }

    /// In which protocol its requests are forwarded.
    pub(crate) fn conversation(&self) -> Conversation {
        match self.version {
            Version::Resp2 => Conversation::Resp2,
            Version::Resp3 => Conversation::Resp3,
        }
    }

    /// Has it be in this protocol.
    pub(crate) fn set_conversation(&mut self, conversation: Conversation) {
        self.version = match conversation {
            Conversation::Memcached | Conversation::Gateway | Conversation::Resp2 => Version::Resp2,
            Conversation::Resp3 => Version::Resp3,
        };
    }

    /// Removes requests of the script that were answered.
    pub(crate) fn advance_script(&mut self, len: usize, host: &impl Host) {
        self.script.at += len;
        if self.script.at >= self.script.requests.len() {
            self.script = Script::default();
            self.release(host);
        }
    }

    /// Whether there are requests to answer before further input.
    pub(crate) fn has_script(&self) -> bool {
        !self.script.requests.is_empty()
    }

    /// Reserves the memory that the state would take with `more` bytes. Returns false if the host has
    /// no room for it.
    pub(crate) fn reserve(&mut self, host: &impl Host, more: usize) -> bool {
        let held = self.held() + more;
        let fits = held <= self.reserved || host.reserve(held - self.reserved);
        if fits {
            self.reserved = self.reserved.max(held);
        }
        fits
    }

    /// Gives back the memory that the state does not take any more.
    pub(crate) fn release(&mut self, host: &impl Host) {
        let held = self.held();
        if held < self.reserved {
            host.release(self.reserved - held);
            self.reserved = held;
        }
    }

    /// Gives back all memory at the end of the connection.
    pub(crate) fn close(&mut self, host: &impl Host) {
        host.release(std::mem::take(&mut self.reserved));
    }

    fn held(&self) -> usize {
        let kept = self.transaction.as_ref().map_or(0, |kept| kept.requests.len());
        self.name.len() + self.script.requests.len() + kept
    }
}
