//! A call to one server: from the pool, over a connection, to its outcome.

use super::link::Link;
use super::pool::{Lease, Pool};
use super::shared::{Opened, Shared};
use super::stream::Stream;
use crate::builder::{self, Settings};
use crate::core::endpoint::resolution::Place;
use crate::core::operation::Operation;
use crate::core::servers::Member;
use crate::core::servers::health::{Admission, Health};
use crate::error::Error;
use crate::metrics::{CloseReason, ServerRecorder};
use std::sync::Arc;
use std::time::Instant;

/// The connections to a server.
#[derive(Debug)]
enum Transport {
    /// Each call has one to itself.
    Pool(Pool),
    Shared(Shared),
}

/// A server, with its connections.
#[derive(Debug)]
pub(crate) struct Server {
    name: Arc<str>,
    place: Arc<Place>,
    transport: Transport,
    health: Health,
    recorder: Arc<ServerRecorder>,
    settings: Settings,
}

impl Member for Server {
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
    pub(crate) fn new(name: &str, place: Place, settings: Settings) -> Self {
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
            place: Arc::new(place),
            transport,
            health: Health::new(settings.refresh.clone(), Arc::clone(&recorder)),
            recorder,
            settings,
        }
    }

    /// Does an operation within the time that a call has.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) async fn call<O: Operation>(&self, operation: &mut O) -> Result<O::Output, Error> {
        let now = Instant::now();
        self.call_admitted(self.admit(now), operation, now).await
    }

    /// The same for a call that was made at `now`, and let through or not.
    ///
    /// # Errors
    /// As [`Server::call`].
    pub(crate) async fn call_admitted<O: Operation>(
        &self,
        admitted: Result<Admission<'_>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<O::Output, Error> {
        let called = match admitted {
            Ok(mut admission) => {
                let deadline = now + self.settings.timeout;
                let mut lease = None;
                let called = self.transact(&mut admission, &mut lease, operation, deadline).await;
                admission.note(called.as_ref().err());
                // The next call in line gets this place and has to see a fault before it tries.
                drop(lease);
                called
            }
            Err(error) => Err(error),
        };
        let ended = called.as_ref().map_or_else(|_| Instant::now(), |(_, read)| *read);
        self.recorder.called(operation.command(), ended - now, called.as_ref().err());
        called.map(|(output, _)| output).or_else(|error| {
            let nothing = (self.settings.degrades && error.is_fault()).then(|| operation.nothing());
            let nothing = nothing.flatten().inspect(|_| self.recorder.degraded());
            nothing.ok_or_else(|| error.of(&self.name))
        })
    }

    /// Its output, and when the reply was read. `lease` receives the connection of a pool that it has used.
    async fn transact<'s, O: Operation>(
        &'s self,
        admission: &mut Admission<'_>,
        lease: &mut Option<Lease<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<(O::Output, Instant), Error> {
        match &self.transport {
            Transport::Pool(pool) => {
                let called = self.call_alone(pool, admission, lease, operation, deadline).await;
                called.map(|output| (output, Instant::now()))
            }
            Transport::Shared(shared) => {
                shared.call(operation, deadline, || self.open(deadline)).await
            }
        }
    }

    /// Does an operation over a connection of its own.
    async fn call_alone<'s, O: Operation>(
        &self,
        pool: &'s Pool,
        admission: &mut Admission<'_>,
        lease: &mut Option<Lease<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Error> {
        let lease = lease.insert(pool.take(deadline).await?);
        loop {
            let was_used = lease.check();
            if !was_used {
                admission.confirm(Instant::now())?;
            }
            let link = lease.link(async { self.open(deadline).await.map(Link::new) }).await?;
            let broken = match link.call(operation, deadline).await {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                lease.close(CloseReason::of(broken.error.kind()));
            }
            // The server has closed it while it was idle: a new one says whether it is there.
            if !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
        }
    }

    async fn open(&self, deadline: Instant) -> Result<Opened, Error> {
        let now = Instant::now();
        let until = self.settings.connect_deadline(now, deadline)?;
        let stream = Stream::connect(&self.place, until.into()).await;
        let stream = stream.map_err(Error::definite)?;
        Ok((stream, self.settings.expiry(now), self.recorder.opened()))
    }
}
