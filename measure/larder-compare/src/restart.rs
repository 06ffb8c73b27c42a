//! Restarts a server during a load, and checks that the restart kept the correct items.
//!
//! The check uses its own items, because the load cannot detect an old value or a deleted item that
//! has reappeared. It sets the items before the load, changes some and deletes others just before
//! the signal, and looks them up after the restart.

use super::results::RestartResult;
use super::suite::{EndSignal, Restart, Server};
use larder_bench::Measured;
use larder_target::ServerAddress;
use larder_target::blocking::{BATCH_MAX, Connection, Dialect, Item};
use larder_target::launch::{Launched, Restarted};
use std::io;
use std::time::{Duration, Instant};

/// The time and the parameters of a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    after: Duration,
    signal: EndSignal,
    pause: Duration,
}

impl Plan {
    pub(crate) fn of(restart: Restart, server: &Server) -> Self {
        Self {
            after: Duration::from_secs_f64(restart.after_secs),
            signal: server.restart_signal.unwrap_or(restart.signal),
            pause: Duration::from_secs_f64(server.restart_pause_secs),
        }
    }
}

/// Number of items to change, and of items to delete, just before a restart.
const ITEMS: usize = 1000;
/// Maximum time from the start of the new process to its first accepted connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A scheduled restart, with the check of items before and after it.
#[derive(Debug)]
pub(crate) struct RestartCheck {
    plan: Plan,
    address: ServerAddress,
    start: Instant,
    restarted: Option<Restarted>,
    result: RestartResult,
}

impl RestartCheck {
    /// Sets the items to change or delete just before the restart. The caller then starts the load.
    pub(crate) fn new(plan: Plan, address: &ServerAddress) -> Result<Self, String> {
        let address = address.clone();
        let mut connection = open(&address)?;
        for kind in [CHANGED, DELETED] {
            set(&mut connection, kind, OLD).map_err(described)?;
        }
        let (start, result) = (Instant::now(), RestartResult::default());
        Ok(Self { plan, address, start, restarted: None, result })
    }

    /// Does nothing until the restart is due. Then changes and deletes items, restarts the server,
    /// waits until it accepts a connection, and checks the items.
    pub(crate) fn restart_when_due(&mut self, server: &mut Launched) -> Result<(), String> {
        if self.restarted.is_some() || self.start.elapsed() < self.plan.after {
            return Ok(());
        }
        let mut connection = open(&self.address)?;
        set(&mut connection, CHANGED, NEW).map_err(described)?;
        delete(&mut connection).map_err(described)?;
        self.result.items_before = items(&mut connection)?;
        drop(connection);
        let restarted = server.restart(self.plan.signal.into(), self.plan.pause)?;
        self.restarted = Some(restarted);
        let mut connection = loop {
            match open(&self.address) {
                Ok(connection) => break connection,
                Err(_) if restarted.started.elapsed() < ANSWER_TIMEOUT => {
                    if let Some(report) = server.exit_report() {
                        return Err(format!("exited during the restart: {report}"));
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        };
        self.result.items_after = items(&mut connection)?;
        self.check_items(&mut connection).map_err(described)
    }

    /// Counts items that are missing, have a wrong value, or have reappeared after their deletion.
    fn check_items(&mut self, connection: &mut Connection) -> io::Result<()> {
        for keys in keys(CHANGED).chunks(BATCH_MAX) {
            let result = &mut self.result;
            connection.get(keys, |_, value| match value {
                Some(value) if value == NEW => (),
                Some(_) => result.changed_wrong += 1,
                None => result.changed_lost += 1,
            })?;
        }
        for keys in keys(DELETED).chunks(BATCH_MAX) {
            let result = &mut self.result;
            connection.get(keys, |_, value| result.deleted_back += u64::from(value.is_some()))?;
        }
        Ok(())
    }

    /// Returns the result of the check, combined with the load's statistics of the restart. Fails
    /// if the load ended before the restart.
    pub(crate) fn result(self, measured: &Measured) -> Result<RestartResult, String> {
        let Some(Restarted { signalled, ended, started }) = self.restarted else {
            return Err("the load ended before the restart".to_owned());
        };
        let seen = measured.outcome.interruption.unwrap_or_default();
        let since = |at: f64| (measured.begun + Duration::from_secs_f64(at)) - signalled;
        Ok(RestartResult {
            ended_secs: (ended - signalled).as_secs_f64(),
            started_secs: (started - signalled).as_secs_f64(),
            answered_secs: seen.answered_secs.map(|at| since(at).as_secs_f64()),
            hit_secs: seen.hit_secs.map(|at| since(at).as_secs_f64()),
            found_after: (seen.hits_after, seen.misses_after),
            ..self.result
        })
    }
}

/// Describes errors of the server: wrong values, and deleted items that have reappeared. Returns
/// `None` if there are none.
pub(crate) fn value_errors(result: &RestartResult) -> Option<String> {
    let RestartResult { changed_wrong, deleted_back, .. } = result;
    (changed_wrong + deleted_back > 0).then(|| {
        format!(
            "after the restart: {changed_wrong} wrong values, {deleted_back} deleted items back"
        )
    })
}

const CHANGED: &str = "larder-restart-changed";
const DELETED: &str = "larder-restart-deleted";
const OLD: &[u8] = &[b'o'; 600];
const NEW: &[u8] = &[b'n'; 600];

fn keys(kind: &str) -> Vec<String> {
    (0..ITEMS).map(|number| format!("{kind}-{number}")).collect()
}

fn open(address: &ServerAddress) -> Result<Connection, String> {
    Connection::open(address, Dialect::Text).map_err(described)
}

fn described(error: io::Error) -> String {
    format!("check of items around the restart: {error}")
}

fn set(connection: &mut Connection, kind: &str, value: &[u8]) -> io::Result<()> {
    for keys in keys(kind).chunks(BATCH_MAX) {
        connection.set(keys.iter().map(|key| Item { key: key.as_bytes(), value, ttl_secs: 0 }))?;
    }
    Ok(())
}

fn delete(connection: &mut Connection) -> io::Result<()> {
    for keys in keys(DELETED).chunks(BATCH_MAX) {
        connection.delete(keys)?;
    }
    Ok(())
}

fn items(connection: &mut Connection) -> Result<u64, String> {
    let stats = connection.stats().map_err(described)?;
    let items = stats.get("curr_items").and_then(|items| items.parse().ok());
    items.ok_or_else(|| "the server does not report its number of items (curr_items)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_values_and_deleted_items_are_wrong() {
        let lost = RestartResult { changed_lost: 1000, ..RestartResult::default() };
        assert_eq!(value_errors(&lost), None);
        let old = RestartResult { changed_wrong: 1, ..lost };
        let back = RestartResult { deleted_back: 3, ..lost };
        assert!(value_errors(&old).is_some_and(|why| why.contains("1 wrong values")));
        assert!(value_errors(&back).is_some_and(|why| why.contains("3 deleted items back")));
    }
}
