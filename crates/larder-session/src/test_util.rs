//! A server in memory, for tests, fuzzing and measurements of sessions. The feature `server` enables it.
//!
//! Both ends of a connection are in one process, as in quinn's `Pair`: [`TestClient`] is the client, and does
//! what a driver does for a session; [`TestServer`] is the server, with a clock that only its owner moves.

use crate::{
    Context, Conversation, Group, Host, Next, Owner, Progress, Route, Session, Settings, ShardMap,
    State, StatsAnswer,
};
use larder_operations::{AnsweredCounts, Counters, Limits, OpContext};
use larder_protocol::reply::resp::Replication;
use larder_protocol::reply::{Servers, StatsRefusal};
use larder_protocol::{Credentials, Parser};
use larder_store::{Engine, Seconds, SizeClasses};
use std::cell::Cell;
use std::task::Waker;

/// The time at which the clock of a server starts, in Unix seconds.
pub const START: Seconds = Seconds(1_700_000_000);

/// Makes the way to another node.
pub type OpenRoute = Box<dyn Fn(Group, Conversation) -> Box<dyn Route> + Send>;

/// The host of the sessions of a server.
pub struct TestHost {
    /// How many bytes all sessions together may reserve.
    pub memory_limit: usize,
    /// The names and passwords of the users.
    pub users: Vec<(&'static [u8], &'static [u8])>,
    /// Other nodes answer requests about items, by way of this.
    pub leader: Option<OpenRoute>,
    /// Look-ups of this group's items are answered here all the same.
    pub reads_copy: bool,
    /// The servers of the cluster, if there is one.
    pub servers: Option<Servers>,
    /// What the server is to other servers.
    pub replication: Option<Replication>,
    /// All requests for this group's items are.
    pub leads: bool,
    /// How keys are divided among groups.
    pub shard_map: Option<Box<dyn ShardMap + Send>>,
    reserved: Cell<usize>,
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
            reads_copy: false,
            servers: None,
            replication: None,
            leads: false,
            shard_map: None,
            reserved,
            has_authenticated,
        }
    }

    /// How many bytes all sessions together have reserved.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.reserved.get()
    }

    /// Whether anybody has logged in.
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

    fn owner(&self) -> Owner {
        match (&self.leader, self.reads_copy) {
            _ if self.leads => Owner::Local,
            (None, _) => Owner::Local,
            (Some(_), false) => Owner::Remote,
            (Some(_), true) => Owner::RemoteWithLocalReads,
        }
    }

    fn shard_map(&self) -> Option<&dyn ShardMap> {
        self.shard_map.as_ref().map(|shard_map| &**shard_map as &dyn ShardMap)
    }

    fn open_route(&self, group: Group, conversation: Conversation) -> Box<dyn Route> {
        let open = self.leader.as_ref().expect("it is asked for only if there is one");
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

    fn release(&self, bytes: usize) {
        let left = self.reserved.get().checked_sub(bytes);
        self.reserved.set(left.expect("no more is released than was reserved"));
    }
}

/// An engine, and everything else that the sessions of a server share.
pub struct TestServer<E: Engine> {
    /// The cache.
    pub engine: E,
    /// The host that sessions call.
    pub host: TestHost,
    /// The counters of all sessions.
    pub counters: Counters,
    /// The settings of all sessions.
    pub settings: Settings,
    /// How conversations begin.
    pub opening: Parser,
    /// The time of the clock.
    pub now: Seconds,
    /// Ends one of the reads and acknowledgements that are under way; `None` for engines that have none.
    pub complete: Option<fn(&mut E)>,
}

impl<E: Engine> TestServer<E> {
    /// A server with `engine`. Items have at most `item_size_max` bytes, and are counted by `classes`.
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

    /// Calls a session for one turn.
    pub fn poll(
        &mut self,
        session: &mut Session<E>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        self.poll_with_waker(session, input, output, &|| Waker::noop().clone())
    }

    /// Like [`TestServer::turn`], with the waker of the test.
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
        assert!(progress.consumed <= input.len(), "no more is consumed than there is");
        progress
    }

    /// Advances the clock, and does all maintenance that is due. A driver does some of it each second.
    pub fn advance(&mut self, secs: u32) {
        self.now.0 += secs;
        self.engine.begin_batch(self.now);
        self.engine.end_batch();
        while self.engine.maintain(self.now) {}
    }

    /// A peer that has sent nothing, whose conversation begins as [`TestServer::opening`] says.
    #[must_use]
    pub fn client(&self) -> TestClient<E> {
        TestClient { session: Session::opening(self.opening, 0), ..TestClient::new() }
    }

    /// The answers that a new peer receives to `input`.
    ///
    /// # Panics
    /// The last request is not whole.
    pub fn replies_to(&mut self, input: &[u8]) -> Vec<u8> {
        let mut peer = self.client();
        peer.send(self, input);
        assert!(peer.unread.is_empty() || peer.is_closed, "the last request is whole");
        peer.received
    }
}

/// The client of a session, and the buffers that a driver keeps for the session.
pub struct TestClient<E: Engine> {
    /// The session that the client talks to.
    pub session: Session<E>,
    /// Input that the session has not consumed.
    pub unread: Vec<u8>,
    /// Output that the peer has not read.
    pub unsent: Vec<u8>,
    /// Output that the peer has read.
    pub received: Vec<u8>,
    /// Whether the session has closed the connection.
    pub is_closed: bool,
    /// The largest length of `unsent` so far, in bytes.
    pub unsent_max: usize,
    /// How many bytes the peer reads after each turn.
    pub takes: usize,
    /// The requests that were answered.
    pub answered: AnsweredCounts,
}

impl<E: Engine> Default for TestClient<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Engine> TestClient<E> {
    /// A peer that has sent nothing.
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

    /// One turn, after which the peer reads nothing. Reads and acknowledgements that the session waits for
    /// end at once.
    pub fn poll(&mut self, server: &mut TestServer<E>) -> Progress {
        let mut has_waited = false;
        loop {
            let progress = server.poll(&mut self.session, &self.unread, &mut self.unsent);
            self.unread.drain(..progress.consumed);
            self.answered.add_all(&progress.answered);
            self.unsent_max = self.unsent_max.max(self.unsent.len());
            if progress.hold || progress.next == Next::Wait {
                let complete = server.complete.expect("the engine has something to wait for");
                complete(&mut server.engine);
                has_waited = true;
                continue;
            }
            // The wait of the session is over, and it continues with the next turn.
            let goes_on = has_waited && progress.next == Next::Yield && progress.consumed == 0;
            if !goes_on || self.session.state() != State::Waiting {
                return progress;
            }
        }
    }

    /// Sends `input`, and reads answers until the session wants more input.
    ///
    /// # Panics
    /// A turn does nothing and yet asks for another.
    pub fn send(&mut self, server: &mut TestServer<E>, input: &[u8]) {
        self.unread.extend_from_slice(input);
        while !self.is_closed {
            let (unsent, unread) = (self.unsent.len(), self.unread.len());
            let progress = self.poll(server);
            self.is_closed = matches!(progress.next, Next::Close | Next::Abandon);
            let taken = self.unsent.len().min(self.takes);
            let moved = taken > 0 || self.unsent.len() > unsent || self.unread.len() < unread;
            self.received.extend(self.unsent.drain(..taken));
            // A dump may come to a range without items, and a read of slower storage may have ended before
            // the session waited for it.
            let may_be_idle = self.session.state() == State::Dumping || server.complete.is_some();
            match progress.next {
                Next::Read { wanted } => {
                    assert!(wanted > 0);
                    break;
                }
                Next::Yield if may_be_idle => (),
                Next::Yield | Next::Write => assert!(moved, "a turn for nothing"),
                Next::Wait => unreachable!("a peer's turn ends waits"),
                Next::Close | Next::Abandon => (),
            }
        }
        self.received.append(&mut self.unsent);
    }
}
