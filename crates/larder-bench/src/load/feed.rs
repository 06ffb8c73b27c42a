//! The recorded requests of a trace for the connections of one thread.
//!
//! Each thread reads the whole trace and keeps what belongs to its connections, so threads never wait
//! for each other. A request belongs to the connection that the hash of its key says, so those of one
//! key stay in order.

use super::connection::Load;
use super::recorded::{Recorded, hash, objection};
use crate::run::RunError;
use crate::settings::{OnMiss, TraceReplay};
use larder_target::Protocol;
use larder_trace::{Form, Reader, Record, TraceError};
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;

/// Maximum number of requests of a thread that were read and wait for their connections. A connection
/// that is far behind holds the others up then.
pub(crate) const WAITING_MAX: usize = 1 << 17;

/// The requests of one thread, in the order of the trace.
#[derive(Debug)]
pub(crate) struct Feed {
    reader: Reader<BufReader<File>>,
    trace: TraceReplay,
    protocol: Protocol,
    /// Number of connections of all threads, the first one of this thread, and their number.
    connections: usize,
    first: usize,
    own: usize,
    /// Number of records that may still be read.
    left: u64,
    /// Open loop: the first record of the next group of the same time, with its connection if it is
    /// one of this thread.
    next: Option<Timed>,
    /// Requests that were read and not taken, with their connections.
    read: VecDeque<(usize, Recorded)>,
    has_ended: bool,
    error: Option<String>,
}

/// A record with its time.
#[derive(Debug)]
struct Timed {
    at_nanos: u64,
    unit_nanos: u64,
    request: Option<(usize, Recorded)>,
}

impl Feed {
    /// The requests of a thread; none if the run replays no trace.
    ///
    /// # Errors
    /// The file cannot be opened, or its first record cannot be read.
    pub(crate) fn open(load: &Load, thread: usize) -> Result<Option<Self>, RunError> {
        let settings = &load.settings;
        let Some(trace) = settings.trace.clone() else { return Ok(None) };
        let wrong =
            |error: TraceError| RunError::Trace { file: trace.file.display().to_string(), error };
        let is_file = std::fs::metadata(&trace.file).is_ok_and(|metadata| metadata.is_file());
        if !is_file && trace.file.exists() {
            let reason = "each thread reads the trace by itself, so it has to be a regular file";
            return Err(wrong(std::io::Error::other(reason).into()));
        }
        let reader = Reader::open(&trace.file).map_err(|error| wrong(error.into()))?;
        let mut feed = Self {
            reader,
            protocol: settings.protocol,
            connections: settings.connections(),
            first: thread * settings.clients,
            own: settings.clients,
            left: trace.requests.unwrap_or(u64::MAX),
            trace: trace.clone(),
            next: None,
            read: VecDeque::new(),
            has_ended: false,
            error: None,
        };
        feed.next = feed.read_timed().map_err(wrong)?;
        feed.has_ended = feed.next.is_none();
        Ok(Some(feed))
    }

    /// Why the trace could not be read to its end.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When the next request is due, in nanoseconds since the start of the run; none at the end.
    pub(crate) fn due(&mut self) -> Option<u64> {
        self.ensure_read();
        self.read.front().map(|(_, request)| request.due.unwrap_or(0))
    }

    /// The next request, with its connection among those of this thread; none at the end.
    pub(crate) fn take(&mut self) -> Option<(usize, Recorded)> {
        self.ensure_read();
        self.read.pop_front()
    }

    /// Reads until there is a request, or the trace ends.
    fn ensure_read(&mut self) {
        while self.read.is_empty() && !self.has_ended {
            let read = match self.trace.speed {
                Some(speed) => self.read_group(speed),
                None => self.read_one(),
            };
            if let Err(error) = read {
                self.error = Some(format!("trace {}: {error}", self.trace.file.display()));
                self.has_ended = true;
            }
        }
    }

    fn read_one(&mut self) -> Result<(), TraceError> {
        match self.next.take() {
            Some(timed) => self.read.extend(timed.request),
            None => self.has_ended = true,
        }
        self.next = self.read_timed()?;
        Ok(())
    }

    /// Reads the records of the same time, and spreads them evenly over the unit of that time, or
    /// until the next time if that is sooner.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a time that is not negative and needs no last digit"
    )]
    fn read_group(&mut self, speed: f64) -> Result<(), TraceError> {
        let Some(first) = self.next.take() else {
            self.has_ended = true;
            return Ok(());
        };
        let (at_nanos, unit_nanos) = (first.at_nanos, first.unit_nanos);
        let mut count = 1_u64;
        let mut own: Vec<(u64, (usize, Recorded))> =
            first.request.map(|request| (0, request)).into_iter().collect();
        // A wrong line ends the trace after the requests before it.
        let mut result = Ok(());
        loop {
            match self.read_timed() {
                Ok(Some(timed)) if timed.at_nanos == at_nanos => {
                    own.extend(timed.request.map(|request| (count, request)));
                    count += 1;
                }
                Ok(later) => {
                    self.next = later;
                    break;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let until_next = self.next.as_ref().map_or(unit_nanos, |next| next.at_nanos - at_nanos);
        let spread = until_next.min(unit_nanos) as f64 / count as f64;
        for (place, (connection, request)) in own {
            let due = (at_nanos as f64 + spread * place as f64) / speed;
            self.read.push_back((connection, Recorded { due: Some(due as u64), ..request }));
        }
        result
    }

    /// Reads a record; none at the end of the trace or of the number of requests.
    fn read_timed(&mut self) -> Result<Option<Timed>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Some(record) = self.reader.read_record()? else { return Ok(None) };
        let Record { at_nanos, unit_nanos, operation, .. } = record;
        let hash = usize::try_from(hash(record.key) % self.connections as u64).unwrap_or(0);
        let place = hash.checked_sub(self.first).filter(|place| *place < self.own);
        let request = place.map(|place| (place, Recorded::new(&record)));
        if let Some(why) = objection(self.protocol, operation) {
            return Err(self.reader.objection(why));
        }
        let request = request.map(|(place, request)| (place, self.adapted(request)));
        Ok(Some(Timed { at_nanos, unit_nanos, request }))
    }

    /// A request with what the settings change.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float of 0 or more, which saturates"
    )]
    fn adapted(&self, request: Recorded) -> Recorded {
        let sets_on_miss = match self.trace.on_miss {
            Some(on_miss) => on_miss == OnMiss::Set,
            None => self.reader.form() == Some(Form::LookAside),
        };
        let ttl_secs = match (request.ttl_secs, self.trace.speed) {
            (0, _) | (_, None) => request.ttl_secs,
            (ttl_secs, Some(speed)) => ((f64::from(ttl_secs) / speed).round() as u32).max(1),
        };
        Recorded { ttl_secs, set_on_miss: sets_on_miss && request.is_get(), ..request }
    }
}
