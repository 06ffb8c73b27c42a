//! Opens, drops and reconnects the connections of a worker during the run.

use super::{CHECK_EVERY, REOPEN_AFTER, Worker};
use crate::load::client::Client;
use crate::load::nanos;
use mio::Token;
use std::io::Error;
use std::time::Duration;

impl Worker<'_> {
    /// Opens the connections of the next step's clients when the step is due.
    pub(super) fn open_more(&mut self, elapsed: Duration) {
        let (Some(steps), Some(next)) = (self.load.settings.steps, self.next_step) else { return };
        if elapsed < next {
            return;
        }
        self.next_step = Some(next + steps.every);
        let is_dormant = |client: &Option<Client>| client.as_ref().is_some_and(Client::is_dormant);
        let dormant = (0..self.clients.len()).filter(|at| is_dormant(&self.clients[*at]));
        let dormant: Vec<usize> = dormant.take(steps.step).collect();
        if dormant.is_empty() {
            self.next_step = None;
        }
        let load = self.load;
        for index in dormant {
            for server in 0..self.servers {
                if let Some(connection) = self.connection(index, server) {
                    let opened = connection.begin_opening(load);
                    self.begin_serving(index, server, opened);
                }
            }
        }
    }

    /// Registers a connection for events after the worker has started to open it. Drops the
    /// connection if `opened` is an error or the registration fails.
    pub(super) fn begin_serving(
        &mut self,
        index: usize,
        server: usize,
        opened: std::io::Result<()>,
    ) {
        let token = Token(index * self.servers + server);
        let client = self.clients[index].as_mut();
        let Some(connection) = client.and_then(|client| client.connection(server)) else { return };
        let registry = self.poll.registry();
        let result = opened.and_then(|()| connection.socket.register(registry, token));
        if let Err(error) = result {
            self.drop_connection(index, server, &error);
        }
    }

    /// Drops connections that have taken too long to open during the run.
    pub(super) fn drop_overdue(&mut self, elapsed: Duration) {
        let settings = &self.load.settings;
        let opens_some = settings.steps.is_some()
            || settings.reconnect_interval.is_some()
            || settings.reconnect_on_error;
        if !opens_some || elapsed < self.opening_checked + CHECK_EVERY {
            return;
        }
        self.opening_checked = elapsed;
        for place in 0..self.clients.len() * self.servers {
            let (index, server) = (place / self.servers, place % self.servers);
            let load = self.load;
            let connection = self.connection(index, server);
            if let Some(error) = connection.and_then(|connection| connection.overdue(load)) {
                self.drop_connection(index, server, &error);
            }
        }
    }

    #[cold]
    pub(super) fn drop_connections(&mut self, index: usize, lost: Vec<(usize, Error)>) {
        for (server, error) in lost {
            self.drop_connection(index, server, &error);
        }
    }

    /// Handles the loss of a connection. With `--reconnect-on-error`, schedules its reconnect.
    /// Otherwise removes the connection, and also its client if this was the client's last
    /// connection.
    #[cold]
    pub(super) fn drop_connection(&mut self, index: usize, server: usize, error: &Error) {
        if self.load.settings.reconnect_on_error {
            return self.reopen_later(index, server);
        }
        let Some(client) = &mut self.clients[index] else { return };
        let Some(mut connection) = client.take_connection(server) else { return };
        self.client_stats.extend(connection.take_client().map(|stats| *stats));
        self.stats.fault(&connection.describe_loss(self.load, error), 1);
        self.unanswered.extend(connection.into_pending());
        self.lost += 1;
        self.control.lost_connection();
        if self.servers > 1 {
            self.stats.of_server(server).lost_connections += 1;
            self.waiting.push(index);
        }
        if client.is_lost() {
            self.left_of_lost += client.left().unwrap_or(0);
            if let Some(replay) = &mut self.replay {
                let end = self.end.map_or(u64::MAX, nanos);
                replay.lost(index, client, nanos(self.start.elapsed()), end);
            }
            self.clients[index] = None;
            self.busy -= 1;
        }
    }

    /// Schedules the reconnect of a lost connection. If the connection was open, counts the loss
    /// and the outstanding requests.
    #[cold]
    fn reopen_later(&mut self, index: usize, server: usize) {
        let elapsed = self.start.elapsed();
        let Some(connection) = self.connection(index, server) else { return };
        if connection.is_lost() {
            return;
        }
        let was_open = connection.is_open();
        let lost = connection.lose();
        self.reopening.push((index, server, elapsed + REOPEN_AFTER));
        // A failed reconnect does not count. Either the loss of the connection was already counted,
        // or `--reconnect-interval` caused the reconnect and no request is outstanding.
        if was_open {
            let now = nanos(elapsed);
            let waited = lost.iter().map(|request| (request.kind(), request.waited(now)));
            self.stats.lost_connection(now, waited);
        }
    }

    /// Starts the due reconnects, unless the run has ended. Removes a client that is already done
    /// instead of reconnecting it.
    pub(super) fn reopen_lost(&mut self, elapsed: Duration) {
        if self.reopening.is_empty() || self.has_ended(elapsed) {
            return;
        }
        let (due, later) =
            std::mem::take(&mut self.reopening).into_iter().partition(|(.., at)| *at <= elapsed);
        self.reopening = later;
        let due: Vec<(usize, usize, Duration)> = due;
        for (index, server, _) in due {
            if self.clients[index].as_ref().is_some_and(Client::is_done) {
                self.retire(index);
                continue;
            }
            let load = self.load;
            if let Some(connection) = self.connection(index, server) {
                let reopened = connection.reopen(load);
                self.begin_serving(index, server, reopened);
            }
        }
    }
}
