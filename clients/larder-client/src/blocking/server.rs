//! A call to one server: from the pool, over a connection, to its outcome.

use super::link::Link;
use super::pool::{Lease, Pool};
use super::shared::{Call, Shared};
use super::stream::{Opened, Stream};
use super::wait::Wait;
use crate::builder::{self, Settings};
use crate::core::endpoint::resolution::Place;
use crate::core::operation::Operation;
use crate::core::outcome::Progress;
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
    wait: Wait,
    settings: Settings,
}

/// An operation that was begun.
pub(crate) struct Begun<'s> {
    at: Instant,
    admission: Admission<'s>,
    attempt: Attempt<'s>,
    deadline: Instant,
}

/// An attempt to do an operation.
enum Attempt<'s> {
    Alone(Alone<'s>),
    Shared(&'s Shared, Call<'s>),
}

/// An attempt over a connection of its own.
struct Alone<'s> {
    lease: Lease<'s>,
    /// Whether the connection was used before.
    was_used: bool,
    progress: Progress,
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
            place: Arc::new(place),
            transport,
            wait,
            health: Health::new(settings.refresh.clone(), Arc::clone(&recorder)),
            recorder,
            settings,
        }
    }

    /// Does an operation within the time that a call has.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn call<O: Operation>(&self, operation: &mut O) -> Result<O::Output, Error> {
        let now = Instant::now();
        self.call_admitted(self.admit(now), operation, now)
    }

    /// The same for a call that was made at `now`, and let through or not.
    ///
    /// # Errors
    /// As [`Server::call`].
    pub(crate) fn call_admitted<O: Operation>(
        &self,
        admitted: Result<Admission<'_>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<O::Output, Error> {
        let begun = self.begin_admitted(admitted, operation, now);
        self.finish(begun, operation)
    }

    /// Begins an operation of a call that was made at `now`: what can be sent without waiting is sent. [`Server::finish`]
    /// goes on.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn begin<O: Operation>(
        &self,
        operation: &mut O,
        now: Instant,
    ) -> Result<Begun<'_>, Error> {
        self.begin_admitted(self.admit(now), operation, now)
    }

    fn begin_admitted<'s, O: Operation>(
        &'s self,
        admitted: Result<Admission<'s>, Error>,
        operation: &mut O,
        now: Instant,
    ) -> Result<Begun<'s>, Error> {
        let deadline = now + self.settings.timeout;
        let begun = admitted.and_then(|mut admission| {
            let mut failed = None;
            match self.start(&mut admission, &mut failed, operation, deadline) {
                Ok(attempt) => Ok(Begun { at: now, admission, attempt, deadline }),
                Err(error) => {
                    admission.note(Some(&error));
                    // The next call in line gets this place and has to see the fault before it tries.
                    drop(failed);
                    Err(error)
                }
            }
        });
        begun.inspect_err(|error| {
            self.recorder.called(operation.command(), now.elapsed(), Some(error));
        })
    }

    /// Starts an operation. `failed` receives the lease of a pool if there is an error after it was taken.
    fn start<'s, O: Operation>(
        &'s self,
        admission: &mut Admission<'_>,
        failed: &mut Option<Lease<'s>>,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<Attempt<'s>, Error> {
        match &self.transport {
            Transport::Pool(pool) => {
                let mut lease = pool.take(deadline)?;
                let was_used = lease.check();
                let confirmed = if was_used { Ok(()) } else { admission.confirm(Instant::now()) };
                let linked = confirmed.and_then(|()| lease.link(|| self.link(deadline)));
                match linked.map(|link| link.begin(operation)) {
                    Ok(progress) => Ok(Attempt::Alone(Alone { lease, was_used, progress })),
                    Err(error) => {
                        *failed = Some(lease);
                        Err(error)
                    }
                }
            }
            Transport::Shared(shared) => {
                let call = shared.begin(operation, deadline, || self.open(deadline))?;
                Ok(Attempt::Shared(shared, call))
            }
        }
    }

    /// Ends what was begun with the same operation.
    ///
    /// # Errors
    /// [`Error`]; it is over by the deadline.
    pub(crate) fn finish<O: Operation>(
        &self,
        begun: Result<Begun<'_>, Error>,
        operation: &mut O,
    ) -> Result<O::Output, Error> {
        let called = begun.and_then(|Begun { at, admission, attempt, deadline }| {
            let (called, lease) = match attempt {
                Attempt::Alone(Alone { mut lease, was_used, progress }) => {
                    let called =
                        self.finish_alone(&mut lease, was_used, progress, operation, deadline);
                    (called, Some(lease))
                }
                Attempt::Shared(shared, call) => {
                    (shared.finish(call, operation, deadline, || self.open(deadline)), None)
                }
            };
            admission.note(called.as_ref().err());
            // The next call in line gets this place and has to see a fault before it tries.
            drop(lease);
            self.recorder.called(operation.command(), at.elapsed(), called.as_ref().err());
            called
        });
        called.or_else(|error| {
            let nothing = (self.settings.degrades && error.is_fault()).then(|| operation.nothing());
            let nothing = nothing.flatten().inspect(|_| self.recorder.degraded());
            nothing.ok_or_else(|| error.of(&self.name))
        })
    }

    fn finish_alone<O: Operation>(
        &self,
        lease: &mut Lease<'_>,
        mut was_used: bool,
        mut progress: Progress,
        operation: &mut O,
        deadline: Instant,
    ) -> Result<O::Output, Error> {
        loop {
            let link = lease.link(|| self.link(deadline))?;
            let broken = match link.finish(operation, progress, deadline) {
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
            was_used = false;
            progress = lease.link(|| self.link(deadline))?.begin(operation);
        }
    }

    fn link(&self, deadline: Instant) -> Result<Link, Error> {
        self.open(deadline).map(Link::new)
    }

    fn open(&self, deadline: Instant) -> Result<Opened, Error> {
        let now = Instant::now();
        let until = self.settings.connect_deadline(now, deadline)?;
        let stream = Stream::connect(&self.place, until, &self.wait);
        let stream = stream.map_err(Error::definite)?;
        Ok((stream, self.settings.expiry(now), self.recorder.opened()))
    }
}
