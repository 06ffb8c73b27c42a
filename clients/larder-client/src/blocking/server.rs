//! A call to one server, over a pooled or a shared connection.

use super::link::Link;
use super::pool::{Pool, PooledConnection};
use super::shared::{Call, Shared};
use super::stream::{NewConnection, Stream};
use super::wait::Wait;
use crate::builder::{self, Settings};
use crate::core::endpoint::resolution::Endpoint;
use crate::core::operation::Operation;
use crate::core::outcome::Progress;
use crate::core::servers::ServerHandle;
use crate::core::servers::health::{Admission, Health};
use crate::error::Error;
use crate::metrics::{CloseReason, ServerRecorder};
use std::sync::Arc;
use std::time::Instant;

/// The connections to a server.
#[derive(Debug)]
enum Transport {
    /// Each call uses a connection of its own.
    Pool(Pool),
    /// Calls share connections.
    Shared(Shared),
}

/// A server with its connections and its breaker.
#[derive(Debug)]
pub(crate) struct Server {
    name: Arc<str>,
    endpoint: Arc<Endpoint>,
    transport: Transport,
    health: Health,
    recorder: Arc<ServerRecorder>,
    wait: Wait,
    settings: Settings,
}

/// A call whose requests are sent or queued.
pub(crate) struct StartedCall<'s> {
    at: Instant,
    admission: Admission<'s>,
    attempt: Attempt<'s>,
    deadline: Instant,
}

/// An attempt to carry out an operation.
enum Attempt<'s> {
    PooledAttempt(PooledAttempt<'s>),
    Shared(&'s Shared, Call<'s>),
}

/// An attempt over a pooled connection.
struct PooledAttempt<'s> {
    pooled: PooledConnection<'s>,
    /// Whether an earlier call has used the connection.
    was_used: bool,
    progress: Progress,
}

impl ServerHandle for Server {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn recorder(&self) -> &ServerRecorder {
        &self.recorder
    }

    fn is_available(&self, now: Instant) -> bool {
        self.health.is_available(now)
    }

    fn admit(&self, now: Instant) -> Result<Admission<'_>, Error> {
        self.health.admit(now)
    }

    fn close(&self) {
        match &self.transport {
            Transport::Pool(pool) => pool.close(),
            Transport::Shared(shared) => shared.close(),
        }
    }

    fn connections(&self) -> (usize, usize, usize) {
        match &self.transport {
            Transport::Pool(pool) => pool.counts(),
            Transport::Shared(shared) => shared.counts(),
        }
    }
}

impl Server {
    pub(crate) fn new(name: &str, endpoint: Endpoint, settings: Settings) -> Self {
        let wait = Wait(settings.waiter.clone());
        let recorder = Arc::new(ServerRecorder::new(name));
        let transport = match settings.transport {
            builder::Transport::Pool(max) => {
                let idle_time_max = settings.idle_time_max;
                Transport::Pool(Pool::new(max, idle_time_max, wait.clone(), recorder.clone()))
            }
            builder::Transport::Shared(max) => Transport::Shared(Shared::new(max, wait.clone())),
        };
        Self {
            name: name.into(),
            endpoint: Arc::new(endpoint),
            transport,
            wait,
            health: Health::new(settings.refresh.clone(), Arc::clone(&recorder)),
            recorder,
            settings,
        }
    }

    /// Carries out an operation within the time limit of a call.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) fn call<O: Operation>(&self, operation: &mut O) -> Result<O::Output, Error> {
        let now = Instant::now();
        self.call_admitted(self.admit(now), operation, now)
    }

    /// Like [`Server::call`], for a call that started at `now`. `admitted` is the result of
    /// admitting the call.
    ///
    /// # Errors
    /// Like [`Server::call`].
    pub(crate) fn call_admitted<O: Operation>(
        &self,
        admitted: Result<Admission<'_>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<O::Output, Error> {
        let started = self.start_admitted(admitted, operation, now);
        self.finish(started, operation)
    }

    /// Starts an operation for a call that started at `now`. Sends as many bytes as the socket
    /// accepts without waiting, or leaves the requests in a shared connection's queue.
    /// [`Server::finish`] completes the operation.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) fn start<O: Operation>(
        &self,
        operation: &mut O,
        now: Instant,
    ) -> Result<StartedCall<'_>, Error> {
        self.start_admitted(self.admit(now), operation, now)
    }

    fn start_admitted<'s, O: Operation>(
        &'s self,
        admitted: Result<Admission<'s>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<StartedCall<'s>, Error> {
        let deadline = now + self.settings.timeout;
        let started = admitted.and_then(|mut admission| {
            let mut failed = None;
            match self.start_attempt(&mut admission, &mut failed, operation, deadline) {
                Ok(attempt) => Ok(StartedCall { at: now, admission, attempt, deadline }),
                Err(error) => {
                    admission.note(Some(&error));
                    // Returns the slot to the pool only after the breaker has recorded a fault,
                    // so that the next waiting call finds the breaker open before it connects.
                    drop(failed);
                    Err(error)
                }
            }
        });
        started.inspect_err(|error| {
            self.recorder.called(operation.command(), now.elapsed(), Some(error));
        })
    }

    /// Starts an attempt. If the attempt fails after it has acquired a pooled connection, moves
    /// that connection to `failed`.
    fn start_attempt<'s, O: Operation>(
        &'s self,
        admission: &mut Admission<'_>,
        failed: &mut Option<PooledConnection<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<Attempt<'s>, Error> {
        match &self.transport {
            Transport::Pool(pool) => {
                let mut pooled = pool.take(deadline)?;
                let was_used = pooled.check();
                let confirmed = if was_used { Ok(()) } else { admission.confirm(Instant::now()) };
                let linked = confirmed.and_then(|()| pooled.link(|| self.link(deadline)));
                match linked.map(|link| link.start(operation)) {
                    Ok(progress) => {
                        Ok(Attempt::PooledAttempt(PooledAttempt { pooled, was_used, progress }))
                    }
                    Err(error) => {
                        *failed = Some(pooled);
                        Err(error)
                    }
                }
            }
            Transport::Shared(shared) => {
                let call = shared.start(operation, deadline, || self.open(deadline))?;
                Ok(Attempt::Shared(shared, call))
            }
        }
    }

    /// Finishes a started operation.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) fn finish<O: Operation>(
        &self,
        started: Result<StartedCall<'_>, Error>,
        operation: &mut O,
    ) -> Result<O::Output, Error> {
        let called = started.and_then(|StartedCall { at, admission, attempt, deadline }| {
            let (called, pooled) = match attempt {
                Attempt::PooledAttempt(PooledAttempt { mut pooled, was_used, progress }) => {
                    let called =
                        self.finish_alone(&mut pooled, was_used, progress, operation, deadline);
                    (called, Some(pooled))
                }
                Attempt::Shared(shared, call) => {
                    (shared.finish(call, operation, deadline, || self.open(deadline)), None)
                }
            };
            admission.note(called.as_ref().err());
            // Returns the slot to the pool only after the breaker has recorded a fault, so that the
            // next waiting call finds the breaker open before it connects.
            drop(pooled);
            self.recorder.called(operation.command(), at.elapsed(), called.as_ref().err());
            called
        });
        called.or_else(|error| {
            let empty =
                (self.settings.degrades && error.is_fault()).then(|| operation.empty_output());
            let empty = empty.flatten().inspect(|_| self.recorder.degraded());
            empty.ok_or_else(|| error.of(&self.name))
        })
    }

    fn finish_alone<O: Operation>(
        &self,
        pooled: &mut PooledConnection<'_>,
        mut was_used: bool,
        mut progress: Progress,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Error> {
        loop {
            let link = pooled.link(|| self.link(deadline))?;
            let broken = match link.finish(operation, progress, deadline) {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                pooled.close(CloseReason::of(broken.error.kind()));
            }
            // Repeats the call if the server had closed the idle connection. The next attempt opens
            // a new connection, which shows whether the server still works.
            if !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
            was_used = false;
            progress = pooled.link(|| self.link(deadline))?.start(operation);
        }
    }

    fn link(&self, deadline: Instant) -> Result<Link, Error> {
        self.open(deadline).map(Link::new)
    }

    fn open(&self, deadline: Instant) -> Result<NewConnection, Error> {
        let now = Instant::now();
        let until = self.settings.connect_deadline(now, deadline)?;
        let stream = Stream::connect(&self.endpoint, until, &self.wait);
        let stream = stream.map_err(Error::definite)?;
        Ok((stream, self.settings.expiry(now), self.recorder.opened()))
    }
}
