//! Measurements of an asynchronous client. All tasks run on one thread, because the driver has one
//! core.

use larder_bench::clients::{
    Arguments, Connections, Errors, Failure, Harness, Load, Mode, OUTAGE_MIN, RECOVERY_MAX,
    RECOVERY_PAUSE, ThreadItem, Times,
};
use larder_target::process::own_cpu_secs;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

/// An asynchronous client library.
pub(crate) trait AsyncLibrary: Send + Sync + 'static {
    /// The client's name in CSV lines.
    const NAME: &'static str;
    /// A client with its connections. Clones share the connections.
    type Client: Clone + Send + Sync + 'static;

    /// Creates a client of the server at `HOST:PORT`. Each step of a call times out after a second.
    fn connect(server: &str, connections: Connections) -> Result<Self::Client, String>;

    /// Stores a value that does not expire.
    fn set(
        client: &Self::Client,
        key: &str,
        value: &[u8],
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the value of a key, or `None` if the server does not have the key.
    fn get(
        client: &Self::Client,
        key: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, String>> + Send;

    /// Returns the values of the keys that exist, in the order of `keys`.
    fn get_many(
        client: &Self::Client,
        keys: &[&str],
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, String>> + Send;
}

/// A [`Harness`] whose callers are tasks.
pub(crate) struct Tasks<'a, L> {
    arguments: &'a Arguments,
    runtime: Runtime,
    library: PhantomData<L>,
}

/// The state of a task.
struct Caller<L: AsyncLibrary> {
    server: String,
    /// `None` if each operation opens a connection.
    client: Option<L::Client>,
    item: ThreadItem,
}

impl<'a, L: AsyncLibrary> Tasks<'a, L> {
    pub(crate) fn new(arguments: &'a Arguments) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { arguments, runtime, library: PhantomData })
    }

    fn connect(&self, connections: Connections) -> Result<L::Client, Failure> {
        L::connect(&self.arguments.server, connections).map_err(Failure::Client)
    }

    fn callers(&self, count: usize) -> Result<Vec<Arc<Caller<L>>>, Failure> {
        let mode = self.arguments.mode;
        let shared = mode.of_all().map(|all| self.connect(all)).transpose()?;
        let caller = |thread| {
            let client = match mode {
                Mode::Thread => Some(self.connect(Connections::Pool(1))?),
                Mode::Shared | Mode::Pool | Mode::None => shared.clone(),
            };
            let (server, item) =
                (self.arguments.server.clone(), ThreadItem::new(self.arguments, thread));
            Ok(Arc::new(Caller { server, client, item }))
        };
        (0..count).map(caller).collect()
    }
}

impl<L: AsyncLibrary> Caller<L> {
    fn client(&self) -> Result<L::Client, Failure> {
        match &self.client {
            Some(client) => Ok(client.clone()),
            None => L::connect(&self.server, Connections::Pool(1)).map_err(Failure::Client),
        }
    }

    async fn set(&self, number: usize) -> Result<(), Failure> {
        let client = self.client()?;
        L::set(&client, &self.item.key, self.item.value(number)).await.map_err(Failure::Client)
    }

    async fn get(&self, number: usize) -> Result<(), Failure> {
        let client = self.client()?;
        let found = L::get(&client, &self.item.key).await.map_err(Failure::Client)?;
        self.item.judge(number, found.as_deref())
    }
}

impl<L: AsyncLibrary> Harness for Tasks<'_, L> {
    const NAME: &'static str = L::NAME;

    fn check(&self) -> Result<(), Failure> {
        let client = self.connect(Connections::Pool(1))?;
        let found = self.runtime.block_on(L::get(&client, "bench"));
        found.map(drop).map_err(Failure::Client)
    }

    fn times(&self, threads: usize, rounds: u16) -> Result<Times, Failure> {
        let callers = self.callers(threads)?;
        let mut found = Times::default();
        for round in 0..=rounds {
            let barrier = Arc::new(Barrier::new(threads));
            let results = self.runtime.block_on(async {
                let spawn = |caller: &Arc<Caller<L>>| {
                    let (caller, barrier) = (Arc::clone(caller), Arc::clone(&barrier));
                    tokio::spawn(async move {
                        barrier.wait().await;
                        let start_time = Instant::now();
                        let mut errors = Errors::default();
                        for number in 0..2 {
                            // After a failed set, the stored value is unknown.
                            if errors.count(caller.set(number).await)? {
                                errors.count(caller.get(number).await)?;
                            }
                        }
                        Ok((start_time.elapsed(), errors))
                    })
                };
                joined(callers.iter().map(spawn).collect()).await
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
        let callers = self.callers(threads)?;
        let barrier = Arc::new(Barrier::new(threads + 1));
        self.runtime.block_on(async {
            let spawn = |caller: &Arc<Caller<L>>| {
                let (caller, barrier) = (Arc::clone(caller), Arc::clone(&barrier));
                tokio::spawn(async move {
                    let mut errors = Errors::default();
                    errors.count(caller.set(0).await)?;
                    barrier.wait().await;
                    barrier.wait().await;
                    set_and_get(&caller, time, errors).await
                })
            };
            let tasks = callers.iter().map(spawn).collect();
            // The first wait returns when all tasks are ready. The second wait starts them.
            barrier.wait().await;
            let (start_time, cpu_before) = (Instant::now(), own_cpu_secs());
            barrier.wait().await;
            let results = joined(tasks).await;
            Load::of(results, start_time.elapsed(), own_cpu_secs() - cpu_before)
        })
    }

    fn many(&self, keys: usize, calls: u32) -> Result<f64, Failure> {
        let connections = self.arguments.mode.of_all().unwrap_or(Connections::Pool(1));
        let client = self.connect(connections)?;
        let items: Vec<_> = (0..keys).map(|n| ThreadItem::new(self.arguments, n)).collect();
        let names: Vec<&str> = items.iter().map(|item| &*item.key).collect();
        self.runtime.block_on(async {
            for item in &items {
                L::set(&client, &item.key, item.value(0)).await.map_err(Failure::Client)?;
            }
            let cpu_before = own_cpu_secs();
            for _ in 0..calls {
                let found = L::get_many(&client, &names).await.map_err(Failure::Client)?;
                for (place, item) in items.iter().enumerate() {
                    item.judge(0, found.get(place).map(Vec::as_slice))?;
                }
            }
            Ok((own_cpu_secs() - cpu_before) * 1e6 / f64::from(calls))
        })
    }

    fn recovery(&self) -> Result<Option<Duration>, Failure> {
        let callers = self.callers(1)?;
        let (start_time, mut failing) = (Instant::now(), None);
        self.runtime.block_on(async {
            while start_time.elapsed() < RECOVERY_MAX {
                let before = Instant::now();
                let succeeded = callers[0].set(0).await.is_ok();
                if !succeeded || before.elapsed() >= OUTAGE_MIN {
                    failing.get_or_insert(before);
                }
                if let Some(since) = failing.filter(|_| succeeded) {
                    return Ok(Some(since.elapsed()));
                }
                tokio::time::sleep(RECOVERY_PAUSE).await;
            }
            Ok(None)
        })
    }
}

/// Sets and gets without a pause for `time`. Returns the latencies of the successful operations,
/// and the errors.
async fn set_and_get<L: AsyncLibrary>(
    caller: &Caller<L>,
    time: Duration,
    mut errors: Errors,
) -> Result<(Vec<Duration>, Errors), Failure> {
    let mut latencies = Vec::new();
    let mut before = Instant::now();
    let end = before + time;
    let mut number = 0;
    while before < end {
        for is_set in [true, false] {
            let outcome = match is_set {
                true => caller.set(number).await,
                false => caller.get(number).await,
            };
            let succeeded = errors.count(outcome)?;
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
}

async fn joined<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        match task.await {
            Ok(result) => results.push(result),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    results
}
