//! Measurements of a blocking client.

use super::arguments::{Arguments, Connections};
use super::caller::{Caller, connect};
use super::harness::{Harness, OUTAGE_MIN, RECOVERY_MAX, RECOVERY_PAUSE};
use super::library::Library;
use super::results::{Errors, Failure, Load, Times};
use larder_target::process::own_cpu_secs;
use std::marker::PhantomData;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// A [`Harness`] whose callers are threads.
#[derive(Debug)]
pub struct Threads<'a, L> {
    arguments: &'a Arguments,
    library: PhantomData<L>,
}

impl<'a, L: Library> Threads<'a, L> {
    /// Returns a harness whose threads use the library `L`.
    #[must_use]
    pub fn new(arguments: &'a Arguments) -> Self {
        Self { arguments, library: PhantomData }
    }

    /// Returns the client that all threads share, if the mode has one.
    fn shared(&self) -> Result<Option<L::Client>, Failure> {
        self.arguments.mode.of_all().map(|all| connect::<L>(self.arguments, all)).transpose()
    }

    fn callers<'c>(
        &'c self,
        shared: Option<&'c L::Client>,
        count: usize,
    ) -> Result<Vec<Caller<'c, L>>, Failure> {
        (0..count).map(|thread| Caller::new(self.arguments, shared, thread)).collect()
    }
}

impl<L: Library> Harness for Threads<'_, L> {
    const NAME: &'static str = L::NAME;

    fn check(&self) -> Result<(), Failure> {
        let client = connect::<L>(self.arguments, Connections::Pool(1))?;
        L::get(&client, "bench").map(drop).map_err(Failure::client)
    }

    fn times(&self, threads: usize, rounds: u16) -> Result<Times, Failure> {
        let shared = self.shared()?;
        let callers = self.callers(shared.as_ref(), threads)?;
        let mut found = Times::default();
        for round in 0..=rounds {
            let barrier = Barrier::new(threads);
            let results = in_threads(&callers, |caller| {
                barrier.wait();
                let start_time = Instant::now();
                let mut errors = Errors::default();
                for number in 0..2 {
                    // After a failed set, the stored value is unknown.
                    if errors.count(caller.set(number))? {
                        errors.count(caller.get(number))?;
                    }
                }
                Ok((start_time.elapsed(), errors))
            });
            for (thread, result) in results.into_iter().enumerate() {
                let (time, errors) = result?;
                if errors.count == 0 && round > 0 {
                    found.times.push((round, thread, time));
                }
                found.errors.add(errors);
            }
        }
        Ok(found)
    }

    fn load(&self, threads: usize, time: Duration) -> Result<Load, Failure> {
        let shared = self.shared()?;
        let callers = self.callers(shared.as_ref(), threads)?;
        let barrier = Barrier::new(threads + 1);
        let run = |caller: &Caller<'_, L>| {
            let (mut latencies, mut errors) = (Vec::new(), Errors::default());
            errors.count(caller.set(0))?;
            // Between these two waits, the main thread reads the CPU time of this process.
            barrier.wait();
            barrier.wait();
            let mut before = Instant::now();
            let end = before + time;
            let mut number = 0;
            while before < end {
                for operation in [Caller::set, Caller::get] {
                    let succeeded = errors.count(operation(caller, number))?;
                    let now = Instant::now();
                    if succeeded {
                        latencies.push(now - before);
                    }
                    before = now;
                    if !succeeded {
                        break;
                    }
                }
                number += 1;
            }
            Ok((latencies, errors))
        };
        let (results, cpu_secs, took) = thread::scope(|scope| {
            let workers: Vec<_> =
                callers.iter().map(|caller| scope.spawn(|| run(caller))).collect();
            barrier.wait();
            let (start_time, cpu_before) = (Instant::now(), own_cpu_secs());
            barrier.wait();
            let results: Vec<_> = workers.into_iter().map(joined).collect();
            (results, own_cpu_secs() - cpu_before, start_time.elapsed())
        });
        Load::of(results, took, cpu_secs)
    }

    fn many(&self, keys: usize, calls: u32) -> Result<f64, Failure> {
        let client = self
            .shared()?
            .map_or_else(|| connect::<L>(self.arguments, Connections::Pool(1)), Ok)?;
        let callers = self.callers(Some(&client), keys)?;
        callers.iter().try_for_each(|caller| caller.set(0))?;
        let names: Vec<&str> = callers.iter().map(|caller| &*caller.item.key).collect();
        let cpu_before = own_cpu_secs();
        for _ in 0..calls {
            let mut judged = Ok(());
            let visit = |place: usize, value: Option<&[u8]>| {
                let right = callers[place].item.judge(0, value);
                judged = std::mem::replace(&mut judged, Ok(())).and(right);
            };
            L::get_many(&client, &names, visit).map_err(Failure::client)?;
            judged?;
        }
        Ok((own_cpu_secs() - cpu_before) * 1e6 / f64::from(calls))
    }

    fn recovery(&self) -> Result<Option<Duration>, Failure> {
        let shared = self.shared()?;
        let callers = self.callers(shared.as_ref(), 1)?;
        let (start_time, mut failing) = (Instant::now(), None);
        while start_time.elapsed() < RECOVERY_MAX {
            let before = Instant::now();
            let succeeded = callers[0].set(0).is_ok();
            if !succeeded || before.elapsed() >= OUTAGE_MIN {
                failing.get_or_insert(before);
            }
            if let Some(since) = failing.filter(|_| succeeded) {
                return Ok(Some(since.elapsed()));
            }
            thread::sleep(RECOVERY_PAUSE);
        }
        Ok(None)
    }
}

/// Runs `run` once per caller, each in its own thread.
fn in_threads<L: Library, T: Send>(
    callers: &[Caller<'_, L>],
    run: impl Fn(&Caller<'_, L>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let workers: Vec<_> = callers.iter().map(|caller| scope.spawn(|| run(caller))).collect();
        workers.into_iter().map(joined).collect()
    })
}

fn joined<T>(worker: thread::ScopedJoinHandle<'_, T>) -> T {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
