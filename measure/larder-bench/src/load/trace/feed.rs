//! Reads a trace's recorded requests for one thread's connections.
//!
//! Each thread reads all records of the trace and keeps the requests of its own connections, so
//! threads never wait for each other. The hash of a key determines the connection of its requests,
//! so the requests of one key stay in order.

use crate::load::wire::recorded::{Recorded, hash, objection};
use crate::load::workload::Load;
use crate::run_error::RunError;
use crate::settings::{OnMiss, TraceReplay};
use larder_target::Protocol;
use larder_trace::{Form, Reader, Record, TraceError};
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;

/// Maximum total number of queued requests on all connections of a thread. At this limit, a slow
/// connection delays the others.
pub(crate) const WAITING_MAX: usize = 1 << 17;

/// Maximum number of records to read in one event-loop iteration.
const READ_AT_ONCE_MAX: usize = 256;

/// Open loop: minimum number of this thread's requests to read ahead.
const READ_AHEAD: usize = 1 << 16;

/// Open loop: minimum number of groups to read ahead, even if the groups are large. A group
/// consists of the records with the same time. The thread must read all of them before the first is
/// due.
const GROUPS_AHEAD: usize = 2;

/// One thread's requests, in trace order.
///
/// In an open loop, the records with the same time form a group. The due times within a group have
/// even intervals, whose length depends on the group's number of records. A request can therefore
/// be taken only after the last record of its group was read.
#[derive(Debug)]
pub(crate) struct Feed {
    reader: Reader<BufReader<File>>,
    trace: TraceReplay,
    protocol: Protocol,
    /// Total number of connections on all threads.
    connections: usize,
    /// The first connection of this thread.
    first: usize,
    /// Number of connections on this thread.
    own: usize,
    /// Maximum number of further records to read.
    left: u64,
    /// Requests that were read and not taken, each with its connection. In an open loop, their
    /// field `due` contains the record's index in its group. [`take`](Self::take) replaces the
    /// index by the due time.
    read: VecDeque<(usize, Recorded)>,
    /// Open loop: the complete groups. Their requests are at the front of `read`.
    groups: VecDeque<Group>,
    /// Open loop: the incomplete group, whose requests are at the back of `read`. `None` before the
    /// first record and after the last record.
    reading: Option<Group>,
    /// Whether the last record was read.
    is_read: bool,
    error: Option<String>,
}

/// The records with the same time.
#[derive(Clone, Copy, Debug)]
struct Group {
    at_nanos: u64,
    unit_nanos: u64,
    /// Number of records for all threads together.
    records: u64,
    /// Number of this thread's requests in `read`.
    own: usize,
    /// Time from one record to the next, in nanoseconds.
    spread: f64,
}

/// A record with its time.
#[derive(Debug)]
struct Timed {
    at_nanos: u64,
    unit_nanos: u64,
    /// The connection and the request; `None` if the connection belongs to another thread.
    request: Option<(usize, Recorded)>,
}

impl Feed {
    /// Returns the feed of a thread, or `None` if the run replays no trace.
    ///
    /// # Errors
    /// The file cannot be opened or is not a regular file, or its first record cannot be read or
    /// has no equivalent in the protocol.
    pub(crate) fn open(load: &Load, thread: usize) -> Result<Option<Self>, RunError> {
        let settings = &load.settings;
        let Some(trace) = settings.trace.clone() else { return Ok(None) };
        let wrong =
            |error: TraceError| RunError::Trace { file: trace.file.display().to_string(), error };
        let is_file = std::fs::metadata(&trace.file).is_ok_and(|metadata| metadata.is_file());
        if !is_file && trace.file.exists() {
            let reason = "expected a regular file, because each thread reads the trace separately";
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
            read: VecDeque::new(),
            groups: VecDeque::new(),
            reading: None,
            is_read: false,
            error: None,
        };
        let first = feed.read_timed().map_err(wrong)?;
        feed.add(first);
        Ok(Some(feed))
    }

    /// Returns the error that ended the trace. Returns `None` if there is no error, or if requests
    /// before the error were not taken yet.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref().filter(|_| self.has_ended())
    }

    /// Returns whether the last request was taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_read && self.read.is_empty()
    }

    /// Returns whether the caller must call [`read_some`](Self::read_some): a closed loop has no
    /// request left, or an open loop has fewer requests than [`READ_AHEAD`] or fewer groups than
    /// [`GROUPS_AHEAD`].
    pub(crate) fn wants_more(&self) -> bool {
        let has_few = match self.trace.speed {
            Some(_) => self.groups.len() < GROUPS_AHEAD || self.read.len() < READ_AHEAD,
            None => self.read.is_empty(),
        };
        has_few && !self.is_read
    }

    /// Returns the time at which the next request is due, in nanoseconds since the start of the
    /// run. If the request was not read yet, returns the earliest possible time. In a closed loop,
    /// returns 0. At the end of the trace, returns `None`.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.has_ended() {
            return None;
        }
        let Some(speed) = self.trace.speed else { return Some(0) };
        let next = self.read.front().and_then(|(_, request)| request.due);
        match (self.groups.front(), &self.reading) {
            (Some(group), _) => Some(group.due(next.unwrap_or(0), speed)),
            (None, Some(reading)) => Some(reading.due(0, speed)),
            (None, None) => Some(0),
        }
    }

    /// Removes and returns the next request, with the index of its connection in this thread.
    /// Returns `None` at the end of the trace, or if the caller must call
    /// [`read_some`](Self::read_some) first.
    pub(crate) fn take(&mut self) -> Option<(usize, Recorded)> {
        if !self.has_next() {
            return None;
        }
        let (connection, request) = self.read.pop_front()?;
        let Some(speed) = self.trace.speed else { return Some((connection, request)) };
        let group = self.groups.front_mut()?;
        let due = group.due(request.due.unwrap_or(0), speed);
        group.own -= 1;
        if group.own == 0 {
            self.groups.pop_front();
        }
        Some((connection, Recorded { due: Some(due), ..request }))
    }

    /// Returns whether a request can be taken.
    pub(crate) fn has_next(&self) -> bool {
        match self.trace.speed {
            Some(_) => !self.groups.is_empty(),
            None => !self.read.is_empty(),
        }
    }

    /// Reads at most [`READ_AT_ONCE_MAX`] records.
    pub(crate) fn read_some(&mut self) {
        for _ in 0..READ_AT_ONCE_MAX {
            if self.is_read {
                return;
            }
            match self.read_timed() {
                Ok(timed) => self.add(timed),
                // A line that cannot be read or sent ends the trace after the requests before it.
                Err(error) => {
                    self.error = Some(format!("trace {}: {error}", self.trace.file.display()));
                    self.add(None);
                }
            }
        }
    }

    /// Adds a record, or the end of the trace.
    fn add(&mut self, timed: Option<Timed>) {
        if self.trace.speed.is_some() {
            return self.add_to_group(timed);
        }
        match timed {
            Some(timed) => self.read.extend(timed.request),
            None => self.is_read = true,
        }
    }

    fn add_to_group(&mut self, timed: Option<Timed>) {
        let next_nanos = timed.as_ref().map(|timed| timed.at_nanos);
        if self.reading.is_some_and(|group| Some(group.at_nanos) != next_nanos) {
            let group = self.reading.take().map(|group| group.spread_until(next_nanos));
            self.groups.extend(group.filter(|group| group.own > 0));
        }
        let Some(Timed { at_nanos, unit_nanos, request }) = timed else {
            self.is_read = true;
            return;
        };
        let group = self.reading.get_or_insert(Group {
            at_nanos,
            unit_nanos,
            records: 0,
            own: 0,
            spread: 0.0,
        });
        let due = Some(group.records);
        group.records += 1;
        if let Some((connection, request)) = request {
            group.own += 1;
            self.read.push_back((connection, Recorded { due, ..request }));
        }
    }

    /// Reads a record; `None` at the end of the trace or at the request limit.
    fn read_timed(&mut self) -> Result<Option<Timed>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Some(record) = self.reader.read_record()? else { return Ok(None) };
        let Record { at_nanos, unit_nanos, operation, .. } = record;
        let hash = usize::try_from(hash(record.key) % self.connections as u64).unwrap_or(0);
        let index = hash.checked_sub(self.first).filter(|index| *index < self.own);
        let request = index.map(|index| (index, Recorded::new(&record)));
        if let Some(why) = objection(self.protocol, operation) {
            return Err(self.reader.objection(why));
        }
        let request = request.map(|(index, request)| (index, self.adapted(request)));
        Ok(Some(Timed { at_nanos, unit_nanos, request }))
    }

    /// Applies `--on-miss` and `--speed` to a request.
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

impl Group {
    /// Spreads the records of the group evenly over the time until the next group, but at most over
    /// one unit of the recorded times.
    #[expect(clippy::cast_precision_loss, reason = "a time needs no last digit")]
    fn spread_until(self, next_nanos: Option<u64>) -> Self {
        let until_next = next_nanos.map_or(self.unit_nanos, |next| next - self.at_nanos);
        Self { spread: until_next.min(self.unit_nanos) as f64 / self.records as f64, ..self }
    }

    /// Returns the due time of the group's record at `index`, in nanoseconds since the start of the
    /// run.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a time that is not negative and needs no last digit"
    )]
    fn due(&self, index: u64, speed: f64) -> u64 {
        ((self.at_nanos as f64 + self.spread * index as f64) / speed) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;
    use std::fmt::Write as _;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Returns the feed of the first thread that replays `text`.
    fn feed(text: &str, options: &str) -> Feed {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.csv");
        std::fs::write(&file, text).unwrap();
        let line = format!("bench -s 127.0.0.1 -c 1 --trace {} {options}", file.display());
        let settings = Line::parse_from(line.split_whitespace()).arguments.settings().unwrap();
        Feed::open(&Load::new(&settings).unwrap(), 0).unwrap().unwrap()
    }

    fn all_due(mut feed: Feed) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(due) = feed.due() {
            match feed.take() {
                Some((_, request)) => {
                    assert_eq!(request.due, Some(due));
                    all.push(due);
                }
                None => feed.read_some(),
            }
        }
        all
    }

    /// One call reads a limited number of records, even if one second has many records or most
    /// records belong to other threads.
    #[test]
    fn a_step_reads_a_limited_number_of_records() {
        let mut text = String::new();
        for number in 0..10_000 {
            let _ = writeln!(text, "{},k,1,1,1,get,0", number / 5000);
        }
        for options in ["-t 1 --speed 1", "-t 1", "-t 2 --speed 1", "-t 2"] {
            let mut feed = feed(&text, options);
            let (mut requests, mut steps) = (0, 0);
            while !feed.has_ended() {
                let line = feed.reader.line();
                if feed.take().is_some() {
                    requests += 1;
                    assert_eq!(feed.reader.line(), line, "{options}: take() reads nothing");
                } else {
                    assert!(feed.wants_more(), "{options}");
                    feed.read_some();
                    steps += 1;
                    let read = feed.reader.line() - line;
                    assert!(read <= READ_AT_ONCE_MAX as u64, "{options}: {read} records");
                }
            }
            assert!(requests == 10_000 || options.contains("-t 2") && requests == 0, "{options}");
            assert!(steps >= 10_000 / READ_AT_ONCE_MAX, "{options}: {steps}");
        }
    }

    #[test]
    fn records_of_the_same_time_are_spread() {
        let text = "5,a,1\n5,b,1\n5,c,1\n5,d,1\n6.5,e,1\n6.6,f,1\n6.6,g,1\n9,h,1\n9,i,1\n";
        let millis: Vec<u64> =
            all_due(feed(text, "-t 1 --speed 1")).into_iter().map(|due| due / 1_000_000).collect();
        assert_eq!(millis, [0, 250, 500, 750, 1500, 1600, 1650, 4000, 4500]);
        let faster = all_due(feed(text, "-t 1 --speed 100"));
        assert_eq!(faster[..2], [0, 2_500_000]);
    }

    #[test]
    fn the_next_second_is_read_before_it_comes() {
        let mut text = String::new();
        for number in 0..2000 {
            let _ = writeln!(text, "{},k{number},1,1,1,get,0", number / 1000);
        }
        let mut feed = feed(&text, "-t 1 --speed 1");
        while feed.wants_more() {
            feed.read_some();
        }
        assert_eq!((feed.read.len(), feed.groups.len()), (2000, 2));
    }

    /// A malformed line is reported only after the requests of the earlier lines were taken.
    #[test]
    fn a_wrong_line_is_named_when_it_is_reached() {
        for options in ["-t 1", "-t 1 --speed 1"] {
            let mut feed = feed("0,a,1\n1,b,1\n2,c,1,soon\n", options);
            feed.read_some();
            assert_eq!((feed.take().is_some(), feed.error()), (true, None), "{options}");
            assert!(feed.take().is_some() && feed.take().is_none());
            assert!(feed.error().unwrap().contains("line 3: the TTL"), "{options}");
        }
    }
}
