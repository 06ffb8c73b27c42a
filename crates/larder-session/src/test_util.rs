//! An in-memory server for tests, fuzzing and measurements of sessions. The feature `test-util`
//! enables this module.
//!
//! Both ends of a connection are in one process, as in quinn's `Pair`. [`TestClient`] is both the
//! client and the driver of the session. [`TestServer`] is the server, whose clock only the test
//! advances.

use crate::{
    Context, Conversation, GroupIndex, GroupMap, Host, Next, Owner, Progress, Route, Session,
    Settings, State, StatsAnswer,
};
use larder_operations::{AnsweredCounts, Counters, Limits, OpContext};
use larder_protocol::reply::resp::Replication;
use larder_protocol::reply::{Servers, StatsRefusal};
use larder_protocol::resp::{Script, ScriptHash};
use larder_protocol::{Credentials, Parser};
use larder_store::{Engine, Seconds, SizeClasses};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

/// The start of a server's clock, in Unix seconds.
pub const START: Seconds = Seconds(1_700_000_000);

/// A function that opens a route to the leader of a group.
pub type OpenRoute = Box<dyn Fn(GroupIndex, Conversation) -> Box<dyn Route> + Send>;

/// A function that completes pending reads or acknowledgements of an engine.
pub type Complete = Arc<dyn Fn() + Send + Sync>;

/// The host of the server's sessions.
pub struct TestHost {
    /// The maximum number of bytes that all sessions together may reserve.
    pub memory_limit: usize,
    /// The users that can log in: names and passwords.
    pub users: Vec<(&'static [u8], &'static [u8])>,
    /// Opens routes to other nodes. If this field is `Some` and `leads` is false, another node owns
    /// the items.
    pub leader: Option<OpenRoute>,
    /// Whether the server is a replica that answers lookups of its group's items itself.
    pub serves_reads: bool,
    /// The servers of the cluster.
    pub servers: Option<Servers>,
    /// The replication role.
    pub replication: Option<Replication>,
    /// Whether the server leads its group, and so owns the group's items.
    pub leads: bool,
    /// The shard map; `None` if this group owns all keys.
    pub shard_map: Option<Box<dyn GroupMap + Send>>,
    /// The maximum number of bytes that [`Host::reserve_sent`] reserves for several stores
    /// together.
    pub sent_limit: usize,
    scripts: RefCell<BTreeMap<ScriptHash, Script>>,
    reserved: Cell<usize>,
    sent: Cell<usize>,
    has_authenticated: Cell<bool>,
}

impl TestHost {
    fn new() -> Self {
        let (reserved, has_authenticated) = (Cell::new(0), Cell::new(false));
        let users = Vec::new();
        Self {
            memory_limit: 1 << 20,
            users,
            leader: None,
            serves_reads: false,
            servers: None,
            replication: None,
            leads: false,
            shard_map: None,
            sent_limit: usize::MAX,
            scripts: RefCell::default(),
            reserved,
            sent: Cell::default(),
            has_authenticated,
        }
    }

    /// Returns the number of bytes that all sessions together have reserved.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.reserved.get()
    }

    /// Returns the number of bytes that [`Host::reserve_sent`] has reserved for all sessions.
    #[must_use]
    pub fn reserved_sent(&self) -> usize {
        self.sent.get()
    }

    /// Returns whether any client has logged in.
    #[must_use]
    pub fn has_authenticated(&self) -> bool {
        self.has_authenticated.get()
    }
}

impl Host for TestHost {
    fn version(&self) -> &str {
        "1.6.45"
    }

    fn set_verbosity(&self, _: u32) {}

    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        match topic {
            b"" => {
                stat("pid", "1");
                stat("uptime", "2");
                StatsAnswer::Lines
            }
            b"reset" => StatsAnswer::Reset,
            _ => StatsAnswer::Refused(StatsRefusal::UnknownPage),
        }
    }

    fn authenticate(&self, credentials: &Credentials<'_>) -> bool {
        let is_known = self.users.contains(&(credentials.user, credentials.password.0));
        self.has_authenticated.set(self.has_authenticated.get() || is_known);
        is_known
    }

    fn script(&self, hash: &ScriptHash) -> Option<Script> {
        self.scripts.borrow().get(hash).copied()
    }

    fn keep_script(&self, hash: ScriptHash, script: Script) {
        self.scripts.borrow_mut().insert(hash, script);
    }

    fn forget_scripts(&self) {
        self.scripts.borrow_mut().clear();
    }

    fn owner(&self) -> Owner {
        match (&self.leader, self.serves_reads) {
            _ if self.leads => Owner::Local,
            (None, _) => Owner::Local,
            (Some(_), false) => Owner::Remote,
            (Some(_), true) => Owner::RemoteWithLocalReads,
        }
    }

    fn shard_map(&self) -> Option<&dyn GroupMap> {
        self.shard_map.as_ref().map(|shard_map| &**shard_map as &dyn GroupMap)
    }

    fn open_route(&self, group: GroupIndex, conversation: Conversation) -> Box<dyn Route> {
        let open = self.leader.as_ref().expect("sessions forward only if there is a leader");
        open(group, conversation)
    }

    fn servers(&self) -> Option<Servers> {
        self.servers.clone()
    }

    fn replication(&self) -> Option<Replication> {
        self.replication.clone()
    }

    fn reserve(&self, bytes: usize) -> bool {
        let fits = self.reserved.get() + bytes <= self.memory_limit;
        self.reserved.set(self.reserved.get() + if fits { bytes } else { 0 });
        fits
    }

    fn reserve_sent(&self, held: usize, more: usize) -> bool {
        let before = self.sent.get();
        let fits = before <= held || before + more <= self.sent_limit;
        self.sent.set(before + if fits { more } else { 0 });
        fits
    }

    fn release_sent(&self, bytes: usize) {
        let left = self.sent.get().checked_sub(bytes);
        self.sent.set(left.expect("sessions release at most the bytes that they have reserved"));
    }

    fn release(&self, bytes: usize) {
        let left = self.reserved.get().checked_sub(bytes);
        self.reserved
            .set(left.expect("sessions release at most the bytes that they have reserved"));
    }
}

/// A server: its engine, and all other state that its sessions share.
pub struct TestServer<E: Engine> {
    /// The cache.
    pub engine: E,
    /// The host that sessions call.
    pub host: TestHost,
    /// The counters of all sessions.
    pub counters: Counters,
    /// The settings of all sessions.
    pub settings: Settings,
    /// The parser state of new connections.
    pub opening: Parser,
    /// The current time of the server's clock.
    pub now: Seconds,
    /// Completes pending reads or acknowledgements; `None` if the engine never has any.
    pub complete: Option<Complete>,
}

impl<E: Engine> TestServer<E> {
    /// Returns a server with this engine, this maximum item size in bytes, and these slab classes.
    #[must_use]
    pub fn new(engine: E, item_size_max: usize, classes: SizeClasses) -> Self {
        Self {
            engine,
            host: TestHost::new(),
            counters: Counters::new(classes.count()),
            settings: Settings {
                limits: Limits { item_size_max, classes, prefix_delimiter: b':' },
                flush_enabled: true,
                read_only: false,
                forwards: false,
                requests_per_poll: 20,
                output_max: 64 << 10,
                for_gateway: false,
                resp_databases: 1,
            },
            opening: Parser::default(),
            now: START,
            complete: None,
        }
    }

    /// Polls a session.
    pub fn poll(
        &mut self,
        session: &mut Session<E>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        self.poll_with_waker(session, input, output, &|| Waker::noop().clone())
    }

    /// Polls a session with a waker that the test provides.
    pub fn poll_with_waker(
        &mut self,
        session: &mut Session<E>,
        input: &[u8],
        output: &mut Vec<u8>,
        waker: &dyn Fn() -> Waker,
    ) -> Progress {
        let Self { engine, host, counters, settings, now, .. } = self;
        let operations = OpContext::new(engine, counters, &settings.limits, *now);
        let progress =
            session.receive(&mut Context { operations, host, settings, waker }, input, output);
        assert!(progress.consumed <= input.len(), "sessions consume at most the input");
        progress
    }

    /// Advances the clock and runs all maintenance that is due. A real driver runs some of it every
    /// second.
    pub fn advance(&mut self, secs: u32) {
        self.now.0 += secs;
        self.engine.begin_batch(self.now);
        self.engine.end_batch();
        while self.engine.maintain(self.now) {}
    }

    /// Returns a new client, whose session starts in the parser state [`TestServer::opening`].
    #[must_use]
    pub fn client(&self) -> TestClient<E> {
        TestClient { session: Session::opening(self.opening, 0), ..TestClient::new() }
    }

    /// Returns the replies to `input` on a new connection.
    ///
    /// # Panics
    /// The last request is incomplete.
    pub fn replies_to(&mut self, input: &[u8]) -> Vec<u8> {
        let mut client = self.client();
        client.send(self, input);
        assert!(client.unread.is_empty() || client.is_closed, "the last request is incomplete");
        client.received
    }
}

/// The client of a session, with the buffers of its driver.
pub struct TestClient<E: Engine> {
    /// The session of the connection.
    pub session: Session<E>,
    /// Input that the session has not consumed.
    pub unread: Vec<u8>,
    /// Output that the client has not read.
    pub unsent: Vec<u8>,
    /// All output that the client has read.
    pub received: Vec<u8>,
    /// Whether the session has closed the connection.
    pub is_closed: bool,
    /// The maximum length of `unsent` so far, in bytes.
    pub unsent_max: usize,
    /// The number of bytes that the client reads after each poll.
    pub takes: usize,
    /// The numbers of answered requests per class.
    pub answered: AnsweredCounts,
}

impl<E: Engine> Default for TestClient<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Engine> TestClient<E> {
    /// Returns a client with a new session.
    #[must_use]
    pub fn new() -> Self {
        Self {
            session: Session::new(),
            unread: Vec::new(),
            unsent: Vec::new(),
            received: Vec::new(),
            is_closed: false,
            unsent_max: 0,
            takes: usize::MAX,
            answered: AnsweredCounts::default(),
        }
    }

    /// Polls the session without reading output. Completes reads and acknowledgements that the
    /// session waits for.
    pub fn poll(&mut self, server: &mut TestServer<E>) -> Progress {
        let mut has_waited = false;
        loop {
            let progress = server.poll(&mut self.session, &self.unread, &mut self.unsent);
            self.unread.drain(..progress.consumed);
            self.answered.add_all(&progress.answered);
            self.unsent_max = self.unsent_max.max(self.unsent.len());
            if progress.hold || progress.next == Next::Wait {
                let complete = server.complete.as_ref();
                complete.expect("sessions wait only for engines with `complete`")();
                has_waited = true;
                continue;
            }
            // After a wait, a poll may end without progress, and the next poll continues.
            let is_idle = has_waited && progress.next == Next::Yield && progress.consumed == 0;
            if !is_idle || self.session.state() != State::Waiting {
                return progress;
            }
        }
    }

    /// Sends `input`, and reads replies until the session requires more input.
    ///
    /// # Panics
    /// A poll makes no progress and requests another poll.
    pub fn send(&mut self, server: &mut TestServer<E>, input: &[u8]) {
        self.unread.extend_from_slice(input);
        while !self.is_closed {
            let (unsent, unread) = (self.unsent.len(), self.unread.len());
            let progress = self.poll(server);
            self.is_closed = matches!(progress.next, Next::Close | Next::Abandon | Next::NotOwner);
            let taken = self.unsent.len().min(self.takes);
            let moved = taken > 0 || self.unsent.len() > unsent || self.unread.len() < unread;
            self.received.extend(self.unsent.drain(..taken));
            // A poll makes no progress if a dump examines a range without items, or if a read from
            // slower storage has ended before the session waits for it.
            let may_be_idle = self.session.state() == State::Dumping || server.complete.is_some();
            match progress.next {
                Next::Read { wanted } => {
                    assert!(wanted > 0);
                    break;
                }
                Next::Yield if may_be_idle => (),
                Next::Yield | Next::Write => assert!(moved, "the poll made no progress"),
                Next::Wait => unreachable!("`TestClient::poll` completes waits"),
                Next::Close | Next::Abandon | Next::NotOwner => (),
            }
        }
        self.received.append(&mut self.unsent);
    }
}
