//! A call to one server, over a pooled or a shared connection.

use super::link::Link;
use super::pool::{Pool, PooledConnection};
use super::shared::{NewConnection, Shared};
use super::stream::Stream;
use crate::builder::{self, Settings};
use crate::core::endpoint::resolution::Endpoint;
use crate::core::operation::Operation;
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
    settings: Settings,
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
        let recorder = Arc::new(ServerRecorder::new(name));
        let transport = match settings.transport {
            builder::Transport::Pool(max) => {
                Transport::Pool(Pool::new(max, settings.idle_time_max, recorder.clone()))
            }
            builder::Transport::Shared(max) => {
                Transport::Shared(Shared::new(max, recorder.clone()))
            }
        };
        Self {
            name: name.into(),
            endpoint: Arc::new(endpoint),
            transport,
            health: Health::new(settings.refresh.clone(), Arc::clone(&recorder)),
            recorder,
            settings,
        }
    }

    /// Carries out an operation within the time limit of a call.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) async fn call<O: Operation>(&self, operation: &mut O) -> Result<O::Output, Error> {
        let now = Instant::now();
        self.call_admitted(self.admit(now), operation, now).await
    }

    /// Like [`Server::call`], for a call that started at `now`. `admitted` is the result of
    /// admitting the call.
    ///
    /// # Errors
    /// Like [`Server::call`].
    pub(crate) async fn call_admitted<O: Operation>(
        &self,
        admitted: Result<Admission<'_>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<O::Output, Error> {
        let called = match admitted {
            Ok(mut admission) => {
                let deadline = now + self.settings.timeout;
                let mut pooled = None;
                let called = self.transact(&mut admission, &mut pooled, operation, deadline).await;
                admission.note(called.as_ref().err());
                // Releases the permit only after the breaker has recorded a fault, so that the next
                // waiting call finds the breaker open before it connects.
                drop(pooled);
                called
            }
            Err(error) => Err(error),
        };
        let ended = called.as_ref().map_or_else(|_| Instant::now(), |(_, read)| *read);
        self.recorder.called(operation.command(), ended - now, called.as_ref().err());
        called.map(|(output, _)| output).or_else(|error| {
            let empty =
                (self.settings.degrades && error.is_fault()).then(|| operation.empty_output());
            let empty = empty.flatten().inspect(|_| self.recorder.degraded());
            empty.ok_or_else(|| error.of(&self.name))
        })
    }

    /// Carries out an operation. Returns the output and the time at which the reply was read. With
    /// a pool, sets `pooled` to the operation's connection.
    async fn transact<'s, O: Operation>(
        &'s self,
        admission: &mut Admission<'_>,
        pooled: &mut Option<PooledConnection<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<(O::Output, Instant), Error> {
        match &self.transport {
            Transport::Pool(pool) => {
                let called = self.call_alone(pool, admission, pooled, operation, deadline).await;
                called.map(|output| (output, Instant::now()))
            }
            Transport::Shared(shared) => {
                shared.call(operation, deadline, || self.open(deadline)).await
            }
        }
    }

    /// Carries out an operation over a pooled connection.
    async fn call_alone<'s, O: Operation>(
        &self,
        pool: &'s Pool,
        admission: &mut Admission<'_>,
        pooled: &mut Option<PooledConnection<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Error> {
        let pooled = pooled.insert(pool.take(deadline).await?);
        loop {
            let was_used = pooled.check();
            if !was_used {
                admission.confirm(Instant::now())?;
            }
            let link = pooled.link(async { self.open(deadline).await.map(Link::new) }).await?;
            let broken = match link.call(operation, deadline).await {
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
        }
    }

    async fn open(&self, deadline: Instant) -> Result<NewConnection, Error> {
        let now = Instant::now();
        let until = self.settings.connect_deadline(now, deadline)?;
        let stream = Stream::connect(&self.endpoint, until.into()).await;
        let stream = stream.map_err(Error::definite)?;
        Ok((stream, self.settings.expiry(now), self.recorder.opened()))
    }
}
