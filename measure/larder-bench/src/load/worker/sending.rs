//! Sends the requests of a worker: chooses the times and the clients.

use super::{CATCH_UP_TIME, Worker};
use crate::load::client::Client;
use crate::load::nanos;
use crate::load::pace::bursts::Next;
use std::time::Duration;

impl Worker<'_> {
    /// Sends the first requests of a closed loop. Later requests follow replies.
    pub(super) fn begin(&mut self) {
        for index in 0..self.clients.len() {
            if !self.is_open_loop() {
                self.fill_pipeline(index, self.now());
            }
        }
    }

    /// Continues a client after an event or a pause. Removes the client if it is done. In a run
    /// with a schedule, a ready client unblocks the schedule. In other runs, the client sends
    /// further requests.
    #[inline]
    pub(super) fn go_on(&mut self, index: usize, elapsed: Duration) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if client.is_done() {
            self.retire(index);
        } else if let Some(schedule) = &mut self.schedule {
            if schedule.blocked && client.is_ready(self.load) {
                (schedule.blocked, schedule.free_at) = (false, nanos(elapsed));
            }
        } else if self.bursts.is_some() {
            if self.end.is_none_or(|end| elapsed < end + CATCH_UP_TIME) {
                self.send_burst(index, nanos(elapsed));
            }
        } else if !self.has_ended(elapsed) || self.is_open_replay() && !self.is_too_late(elapsed) {
            self.fill_pipeline(index, nanos(elapsed));
        }
    }

    /// Sends the due requests of an open loop while clients are free. The latency of a request that
    /// has to wait for a client still counts from its scheduled time.
    pub(super) fn send_due_requests(&mut self, now: Duration) {
        if self.is_too_late(now) {
            return;
        }
        while let Some(schedule) = &mut self.schedule
            && !schedule.blocked
            && schedule.due() <= now
            && self.end.is_none_or(|end| schedule.due() < end)
        {
            let all = self.clients.len();
            let idle = |index: &usize| {
                self.clients[*index].as_ref().is_some_and(|client| client.is_ready(self.load))
            };
            let Some(index) = (0..all).map(|i| (schedule.client + i) % all).find(idle) else {
                schedule.blocked = true;
                return;
            };
            let due = nanos(schedule.due());
            let lateness = nanos(self.start.elapsed()).saturating_sub(due.max(schedule.free_at));
            self.stats.sent_late(lateness);
            schedule.advance();
            schedule.client = (index + 1) % all;
            self.fill_pipeline(index, due);
        }
    }

    /// Returns whether [`CATCH_UP_TIME`] has passed since the end of the run.
    pub(super) fn is_too_late(&self, now: Duration) -> bool {
        self.end.is_some_and(|end| now >= end + CATCH_UP_TIME)
    }

    /// Distributes a limited number of recorded requests to the queues of their clients: due
    /// requests or, in a closed loop, enough to keep the clients busy. Clients whose queues were
    /// empty send immediately.
    pub(super) fn replay(&mut self, elapsed: Duration) {
        let is_late = self.is_too_late(elapsed);
        let Some(replay) = &mut self.replay else { return };
        let end = self.end.map_or(u64::MAX, nanos);
        let has_ended = self.end.is_some_and(|end| elapsed >= end);
        if is_late || has_ended && !replay.is_open_loop() {
            return;
        }
        let had_ended = replay.has_ended();
        let ready = replay.distribute(nanos(elapsed), end, &mut self.clients);
        let ends_now = replay.has_ended() && !had_ended;
        for index in ready {
            self.fill_pipeline(index, self.now());
        }
        if ends_now {
            for index in 0..self.clients.len() {
                if self.clients[index].as_ref().is_some_and(Client::is_done) {
                    self.retire(index);
                }
            }
        }
    }

    /// Starts the due bursts.
    pub(super) fn begin_bursts(&mut self, now: Duration) {
        while let Some(bursts) = &mut self.bursts
            && bursts.due() <= now
            && self.end.is_none_or(|end| bursts.due() < end)
        {
            let due = nanos(bursts.due());
            bursts.advance();
            for index in 0..self.clients.len() {
                let elapsed = nanos(self.start.elapsed());
                if self.send_burst(index, elapsed) == Some(due) {
                    self.stats.sent_late(elapsed.saturating_sub(due));
                }
            }
        }
    }

    /// Sends requests of a client's bursts until its pipeline is full. The latency of requests in a
    /// burst that this call starts counts from the due time of the burst. The latency of other
    /// requests counts from `now`. Returns the due time of the last burst that this call has
    /// started, or `None` if it has started none.
    fn send_burst(&mut self, index: usize, now: u64) -> Option<u64> {
        let (bursts, client) = (self.bursts.as_mut()?, self.clients[index].as_mut()?);
        if client.is_dormant() {
            bursts.skip(index);
            return None;
        }
        let (mut at, mut began, mut is_due) = (now, None, false);
        while client.is_ready(self.load)
            && client.has_room(self.load)
            && let Some(next) = bursts.next(index)
        {
            if let Next::First(due) = next {
                (at, began) = (due, Some(due));
            }
            client.enqueue(self.load, at, &mut self.writer, &mut self.stats, &mut self.unsent);
            is_due = true;
        }
        if client.left() == Some(0) {
            bursts.retire(index);
        }
        if is_due {
            self.send(index);
        }
        began
    }

    /// Sends requests until the client's pipeline is full or no request is left. Their latency
    /// counts from `at`. In an open loop over a trace, it counts from their due times.
    fn fill_pipeline(&mut self, index: usize, at: u64) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if !client.is_ready(self.load) {
            return;
        }
        client.fill(self.load, at, &mut self.writer, &mut self.stats, &mut self.unsent);
        if let Some(replay) = &mut self.replay {
            replay.sent(index, client);
        }
        self.send(index);
    }

    /// Sends the output buffers of a client's connections, and drops connections that fail.
    #[inline]
    pub(super) fn send(&mut self, index: usize) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        let start = self.start;
        let now = || nanos(start.elapsed());
        let lost = client.send(self.load, now, &mut self.stats);
        if self.servers > 1 && client.is_idle() && !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
        if !lost.is_empty() {
            self.drop_connections(index, lost);
        }
    }
}
