//! The final statistics of a worker: counts unsent and unanswered requests.

use super::{Worker, WorkerEnd};
use crate::load::client::Client;
use crate::load::connection::Connection;
use crate::load::nanos;
use crate::load::stats::LoadStats;
use crate::settings::Stop;
use std::sync::mpsc::Sender;

impl Worker<'_> {
    /// Counts unsent and unanswered requests, with their waiting time so far, and sends the last
    /// report to `reports`.
    pub(super) fn finish(mut self, reports: &Sender<LoadStats>) -> WorkerEnd {
        let now = self.start.elapsed();
        let open = self.clients.iter().flatten();
        let connections = open.clone().flat_map(Client::connections);
        let handshaking = connections.filter(|connection| connection.is_handshaking()).count();
        let left = match self.load.settings.stop {
            Stop::Requests(_) => self.left_of_lost + open.filter_map(Client::left).sum::<u64>(),
            Stop::After(_) | Stop::EndOfTrace => u64::MAX,
        };
        let until = self.end.map_or(now, |end| end.min(now));
        if let Some(schedule) = self.schedule.take() {
            schedule.count_never_sent(until, now, left, self.load, &mut self.stats);
        }
        if let Some(bursts) = self.bursts.take() {
            bursts.count_never_sent(now, left, self.load, &mut self.stats);
        }
        let trace_error = self.replay.take().and_then(|replay| {
            let clients = self.clients.iter_mut().flatten();
            replay.count_never_sent(nanos(until), nanos(now), clients, &mut self.stats)
        });
        let mut open = std::mem::take(&mut self.clients);
        let connections = open.iter_mut().flatten().flat_map(Client::connections_mut);
        let client_stats = connections.filter_map(Connection::take_client);
        self.client_stats.extend(client_stats.map(|stats| *stats));
        let open = open.into_iter().flatten().flat_map(Client::into_pending);
        std::mem::take(&mut self.unsent).count(nanos(now), &mut self.stats);
        for request in open.chain(std::mem::take(&mut self.unanswered)) {
            request.never_answered(nanos(now), &mut self.stats);
        }
        self.report(reports);
        let time = match self.end {
            _ if self.control.is_stopped() => until.max(self.last_event),
            Some(end) if now >= end => end.max(self.last_event),
            _ => self.last_event,
        };
        WorkerEnd { time, lost: self.lost, handshaking, clients: self.client_stats, trace_error }
    }
}
