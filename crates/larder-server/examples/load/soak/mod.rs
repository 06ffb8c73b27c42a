//! Many concurrent connections, each of which checks its replies.
//!
//! Invariants under eviction, expiry and any number of writers:
//! - a value is complete and belongs to its key ([`record`]);
//! - if a key has only one writer, a read returns the last write or a miss. A version that was
//!   deleted, has expired or was found missing never reappears ([`mixed`]);
//! - no two increments of a counter get the same reply. Of all `cas` requests with the same unique,
//!   at most one succeeds. No later operation undoes a change ([`Ledger`]);
//! - of several `cas` requests that race for a key with the same unique, exactly one succeeds,
//!   unless the key is evicted ([`race`]).

mod mixed;
mod race;
mod record;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::options::Options;

/// The number of connections that race for one key. They run in addition to the connections that
/// send mixed commands.
const RACERS: usize = 8;
/// The maximum number of faults that the error lists.
const FAULTS_SHOWN: usize = 10;

/// Runs `threads` mixed connections and the racers for `seconds`. Returns the counts as JSON, or an
/// error if any connection had a fault.
pub(crate) fn run(address: &str, options: &Options) -> io::Result<String> {
    let until = Instant::now() + Duration::from_secs(options.need("seconds")?);
    let threads = options.get("threads").unwrap_or(24);
    let watch = Watch { until, faults: Mutex::default() };
    let epochs = AtomicU64::new(1);
    let races = race::Race::new(address, RACERS);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let (watch, epochs, races) = (&watch, &epochs, &races);
        for racer in 0..RACERS {
            scope.spawn(move || races.run(racer, watch));
        }
        let work = move |thread| mixed::run(address, thread, threads, epochs, watch);
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut total = Tally::default();
    tallies.into_iter().for_each(|tally| total.add(tally));
    total.ledger.judge(&watch);
    watch.verdict()?;
    Ok(total.json(races.rounds()))
}

/// The time at which all connections stop, and the faults so far. The first fault stops them
/// earlier.
struct Watch {
    until: Instant,
    faults: Mutex<Vec<String>>,
}

impl Watch {
    fn over(&self) -> bool {
        Instant::now() >= self.until || self.faults.lock().is_ok_and(|faults| !faults.is_empty())
    }

    fn fault(&self, what: String) {
        if let Ok(mut faults) = self.faults.lock() {
            faults.push(what);
        }
    }

    /// Runs `step` and returns its result. If `step` fails, records the error as a fault and returns
    /// `None`.
    fn check<T>(&self, step: impl FnOnce() -> io::Result<T>) -> Option<T> {
        step().map_err(|error| self.fault(error.to_string())).ok()
    }

    fn verdict(&self) -> io::Result<()> {
        let Ok(faults) = self.faults.lock() else { return Err(io::Error::other("a panic")) };
        if faults.is_empty() {
            return Ok(());
        }
        let shown = faults.iter().take(FAULTS_SHOWN).cloned().collect::<Vec<_>>().join("\n  ");
        Err(io::Error::other(format!("{} faults:\n  {shown}", faults.len())))
    }
}

/// One connection's counts, and its changes to shared keys.
#[derive(Default)]
struct Tally {
    requests: u64,
    hits: u64,
    misses: u64,
    ledger: Ledger,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.hits += other.hits;
        self.misses += other.misses;
        self.ledger.numbers.extend(other.ledger.numbers);
        self.ledger.uniques.extend(other.ledger.uniques);
    }

    fn json(&self, races: u64) -> String {
        let Self { requests, hits, misses, ledger } = self;
        let (numbers, cas) = (ledger.numbers.len(), ledger.uniques.len());
        format!(
            r#"{{"requests": {requests}, "hits": {hits}, "misses": {misses}, "numbers": {numbers}, "cas_won": {cas}, "races": {races}}}"#
        )
    }
}

/// All acknowledged changes of shared keys. The check at the end searches them for duplicates,
/// because a key must never get the same number twice. A connection that creates a key again gives
/// it the first number of a new epoch.
#[derive(Default)]
struct Ledger {
    /// The replies of increments and the values stored by `cas`: (key, number).
    numbers: Vec<(u64, u64)>,
    /// The uniques of successful `cas` requests: (key, unique).
    uniques: Vec<(u64, u64)>,
}

impl Ledger {
    fn judge(&mut self, watch: &Watch) {
        for (what, changes) in [("number", &mut self.numbers), ("cas unique", &mut self.uniques)] {
            changes.sort_unstable();
            for pair in changes.windows(2).filter(|pair| pair[0] == pair[1]) {
                let (key, number) = pair[0];
                watch.fault(format!("shared key {key}: {what} {number} was given out twice"));
            }
        }
    }
}

/// The lowest bit of the epoch in a number. The epoch occupies this bit and all higher bits.
const EPOCH_SHIFT: u32 = 24;

/// Returns the first number of a new epoch.
fn new_epoch(epochs: &AtomicU64) -> u64 {
    epochs.fetch_add(1, Ordering::Relaxed) << EPOCH_SHIFT
}
