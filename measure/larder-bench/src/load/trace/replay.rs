//! Distributes the recorded requests of a thread among its clients.

use crate::load::client::Client;
use crate::load::requests::trace_queue::TraceQueue;
use crate::load::stats::LoadStats;
use crate::load::stats::unsent::Unsent;
use crate::load::trace::feed::{Feed, WAITING_MAX};
use crate::load::wire::recorded::Recorded;
use crate::load::workload::Load;
use crate::run_error::RunError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of requests to distribute in one event-loop iteration.
const AT_ONCE_MAX: usize = 256;

/// The replay of a trace on one thread.
#[derive(Debug)]
pub(crate) struct Replay {
    feed: Feed,
    is_open_loop: bool,
    /// Number of waiting requests per client.
    waiting: Vec<usize>,
    waiting_sum: usize,
    /// Number of clients with fewer waiting requests than a full pipeline.
    short: usize,
    pipeline: usize,
    /// Whether the last requests were distributed.
    has_ended: bool,
    /// Requests of lost clients. In an open loop, their waiting time starts at their due time. In a
    /// closed loop, it starts at the distribution of the request or, for a request that was already
    /// in the queue, at the loss of the client.
    lost: Unsent,
}

impl Replay {
    /// Returns the replay of a thread, or `None` if the run replays no trace. In an open loop,
    /// reads the thread's first requests, because they can be due immediately.
    ///
    /// # Errors
    /// The trace cannot be opened, its first record cannot be read or sent, or the run was
    /// interrupted.
    pub(crate) fn open(
        load: &Load,
        thread: usize,
        interrupted: &AtomicBool,
    ) -> Result<Option<Self>, RunError> {
        let Some(mut feed) = Feed::open(load, thread)? else { return Ok(None) };
        let is_open_loop = load.settings.is_open_loop();
        while is_open_loop && !feed.has_next() && !feed.has_ended() {
            if interrupted.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            feed.read_some();
        }
        Ok(Some(Self {
            feed,
            is_open_loop,
            waiting: vec![0; load.settings.clients],
            waiting_sum: 0,
            short: load.settings.clients,
            pipeline: load.settings.pipeline,
            has_ended: false,
            lost: Unsent::default(),
        }))
    }

    pub(crate) fn is_open_loop(&self) -> bool {
        self.is_open_loop
    }

    /// Returns whether the last requests of the trace were distributed.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether further requests will become due even if all clients are lost.
    pub(crate) fn is_due_later(&self) -> bool {
        self.is_open_loop && !self.has_ended
    }

    /// Returns the time at which the event loop must next call [`distribute`](Self::distribute), in
    /// nanoseconds since the start of the run. Returns `None` if no further request is due before
    /// `end`, or if clients must first send requests from their queues.
    pub(crate) fn due(&self, end: u64) -> Option<u64> {
        if self.has_ended || !self.has_room() {
            return None;
        }
        if !self.is_open_loop {
            return Some(0);
        }
        let due = self.feed.due().filter(|due| *due < end)?;
        Some(if self.feed.wants_more() { 0 } else { due })
    }

    /// Returns whether the queues of the clients may receive further requests.
    fn has_room(&self) -> bool {
        self.waiting_sum < WAITING_MAX && (self.is_open_loop || self.short > 0)
    }

    /// Returns whether the open loop has unsent requests that are due before `end`.
    pub(crate) fn is_behind(&self, end: u64) -> bool {
        let due = self.feed.due();
        self.is_open_loop && (self.waiting_sum > 0 || due.is_some_and(|due| due < end))
    }

    /// Moves requests to the queues of their clients. In an open loop, moves the requests that were
    /// due until `now` and before `end`. In a closed loop, moves enough requests to keep the
    /// clients busy. Counts requests of lost clients in `lost`. Then reads further records. A call
    /// distributes a limited number of requests and reads a limited number of records. Returns the
    /// clients whose queues were empty and received requests.
    pub(crate) fn distribute(
        &mut self,
        now: u64,
        end: u64,
        clients: &mut [Option<Client>],
    ) -> Vec<usize> {
        let mut given = Vec::new();
        if self.has_ended {
            return given;
        }
        for _ in 0..AT_ONCE_MAX {
            let is_due = self.feed.due().is_some_and(|due| due <= now && due < end);
            if !is_due || !self.has_room() {
                break;
            }
            let Some((index, request)) = self.feed.take() else { break };
            if self.waiting[index] == 0 {
                given.push(index);
            }
            self.give(index, request, clients, now);
        }
        if self.has_room() && self.feed.wants_more() {
            self.feed.read_some();
        }
        self.has_ended = self.feed.has_ended();
        if self.has_ended {
            let queues = clients.iter_mut().flatten().filter_map(Client::trace);
            queues.for_each(|queue| queue.has_ended = true);
        }
        given
    }

    fn give(&mut self, index: usize, request: Recorded, clients: &mut [Option<Client>], now: u64) {
        match clients[index].as_mut().and_then(Client::trace) {
            Some(queue) => {
                queue.push(request);
                self.set_waiting(index, self.waiting[index] + 1);
            }
            None => self.lost.add(request.kind(), request.due.unwrap_or(now)),
        }
    }

    /// Updates a client's number of waiting requests after it has sent some.
    pub(crate) fn sent(&mut self, index: usize, client: &mut Client) {
        let left = client.trace().map_or(0, |queue| queue.len());
        self.set_waiting(index, left);
    }

    fn set_waiting(&mut self, index: usize, waiting: usize) {
        let before = std::mem::replace(&mut self.waiting[index], waiting);
        self.waiting_sum = self.waiting_sum + waiting - before;
        self.short += usize::from(waiting < self.pipeline);
        self.short -= usize::from(before < self.pipeline);
    }

    /// Moves the waiting requests of a lost client that are due before `end` to `self.lost`.
    pub(crate) fn lost(&mut self, index: usize, client: &mut Client, now: u64, end: u64) {
        // Treats the queue of the lost client as full, so the client does not count in `short`, and
        // a closed loop does not read further requests for it.
        self.set_waiting(index, self.pipeline);
        self.waiting_sum -= self.pipeline;
        for request in client.trace().into_iter().flat_map(TraceQueue::drain) {
            let due = request.due.unwrap_or(now);
            if due < end {
                self.lost.add(request.kind(), due);
            }
        }
    }

    /// Counts unsent requests that were due before `until` as never sent, with their waiting times
    /// until `now`. A closed loop counts only the requests of lost clients. If an error ended the
    /// trace before `until`, returns that error.
    pub(crate) fn count_never_sent<'c>(
        mut self,
        until: u64,
        now: u64,
        clients: impl Iterator<Item = &'c mut Client>,
        stats: &mut LoadStats,
    ) -> Option<String> {
        self.lost.count(now, stats);
        let mut count = |kind, due: u64| {
            if due < until {
                stats.never_sent(kind, 1, now.saturating_sub(due));
            }
        };
        let waiting = clients.filter_map(Client::trace).flat_map(TraceQueue::drain);
        waiting.for_each(|request| {
            if let Some(due) = request.due {
                count(request.kind(), due);
            }
        });
        while self.is_open_loop
            && let Some(due) = self.feed.due().filter(|due| *due < until)
        {
            match self.feed.take() {
                Some((_, request)) => count(request.kind(), due),
                None => self.feed.read_some(),
            }
        }
        self.feed.error().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Returns a single-threaded replay of `text`.
    fn replay(text: &str, options: &str, interrupted: bool) -> Result<Replay, RunError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.csv");
        std::fs::write(&file, text).unwrap();
        let line = format!("bench -s 127.0.0.1 -t 1 -c 1 --trace {} {options}", file.display());
        let settings = Line::parse_from(line.split_whitespace()).arguments.settings().unwrap();
        let load = Load::new(&settings).unwrap();
        Ok(Replay::open(&load, 0, &AtomicBool::new(interrupted))?.unwrap())
    }

    /// The first request is due immediately, so its group is read before the run, even if it has
    /// many records.
    #[test]
    fn the_first_requests_are_read_before_the_run() {
        let text = "0,k,1,1,1,get,0\n".repeat(1000);
        let replay = replay(&text, "--speed 1", false).unwrap();
        assert!(replay.feed.has_next());
    }

    #[test]
    fn a_signal_before_the_run_ends_it() {
        let text = "0,k,1,1,1,get,0\n".repeat(1000);
        let error = replay(&text, "--speed 1", true).unwrap_err();
        assert!(matches!(error, RunError::Interrupted), "{error}");
    }
}
