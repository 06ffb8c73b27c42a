//! Tokio's runtimes: a task for each connection and each UDP socket. Either there are as many
//! current-thread runtimes as threads, which get connections in turn, or there is one work-stealing
//! runtime, where a task may continue on another thread after each wait.
//!
//! A worker context stays on its thread: a task uses that of the thread it is on, for one turn.

mod client;
mod hold;
mod shared;
mod stream;

use super::dispatch::{Accepted, MAINTENANCE, Workers};
use crate::connection::NextAction;
use crate::net::udp::Endpoint;
use crate::server::Server;
use client::Client;
use hold::Hold;
use larder_store::erased;
use shared::{Shared, install, uninstall};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

/// How long a round of maintenance occupies its thread in the work-stealing runtime, so that the next
/// one runs on another thread.
const ROUND: Duration = Duration::from_micros(50);

/// The runtimes as the acceptor sees them.
pub(super) struct Runtimes {
    shared: Arc<Shared>,
    handles: Vec<Handle>,
    /// Whose turn it is.
    turn: usize,
    /// The threads of current-thread runtimes, and how they are ended.
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// The work-stealing runtime.
    runtime: Option<Runtime>,
}

impl Workers for Runtimes {
    fn dispatch(&mut self, accepted: Accepted) {
        self.handles[self.turn].spawn(serve_connection(Arc::clone(&self.shared), accepted));
        self.turn = (self.turn + 1) % self.handles.len();
    }

    fn wake_all(&self) -> io::Result<()> {
        self.shared.phase_changed.notify_waiters();
        Ok(())
    }

    fn join(self) {
        for (end, thread) in self.threads {
            // The receiver does not exist any more if the thread panicked.
            let _ = end.send(());
            if thread.join().is_err() {
                tracing::error!(
                    "a worker thread panicked: its connections were lost, and this is a bug"
                );
            }
        }
        drop(self.runtime);
    }
}

/// Starts a current-thread runtime for each share of UDP sockets.
pub(super) fn start_each(
    server: &Arc<Server>,
    cache: &erased::Cache,
    shares: Vec<Vec<std::net::UdpSocket>>,
) -> io::Result<Runtimes> {
    let shared = Shared::new(server);
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for (index, udp) in shares.into_iter().enumerate() {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        handles.push(runtime.handle().clone());
        runtime.spawn(maintain(Arc::clone(&shared)));
        spawn_endpoints(runtime.handle(), &shared, udp);
        let (end, ended) = oneshot::channel();
        let (server, cache) = (Arc::clone(server), cache.clone());
        let name = format!("larder-{index}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            install(index, &server, &cache);
            // A dropped sender ends the runtime too.
            let _ = runtime.block_on(ended);
            drop(runtime);
            uninstall();
        })?;
        threads.push((end, thread));
    }
    Ok(Runtimes { shared, handles, turn: 0, threads, runtime: None })
}

/// Starts one work-stealing runtime.
pub(super) fn start_all(
    server: &Arc<Server>,
    cache: &erased::Cache,
    udp: Vec<std::net::UdpSocket>,
) -> io::Result<Runtimes> {
    let shared = Shared::new(server);
    let (indices, names) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (server, cache) = (Arc::clone(server), cache.clone());
    let runtime = Builder::new_multi_thread()
        .worker_threads(server.options.threads)
        .thread_name_fn(move || format!("larder-{}", names.fetch_add(1, Relaxed)))
        .on_thread_start(move || install(indices.fetch_add(1, Relaxed), &server, &cache))
        .on_thread_stop(uninstall)
        .enable_all()
        .build()?;
    let handle = runtime.handle();
    handle.spawn(heartbeat(Arc::clone(&shared)));
    handle.spawn(do_rounds(Arc::clone(&shared)));
    spawn_endpoints(handle, &shared, udp);
    let handles = vec![handle.clone()];
    Ok(Runtimes { shared, handles, turn: 0, threads: Vec::new(), runtime: Some(runtime) })
}

fn spawn_endpoints(handle: &Handle, shared: &Arc<Shared>, udp: Vec<std::net::UdpSocket>) {
    for socket in udp {
        handle.spawn(answer_datagrams(Arc::clone(shared), socket));
    }
}

/// A current-thread runtime's maintenance.
async fn maintain(shared: Arc<Shared>) {
    loop {
        shared.with_worker(|worker| worker.heartbeat());
        if shared.maintain() {
            yield_now().await;
        } else {
            sleep(MAINTENANCE).await;
        }
    }
}

/// The work-stealing runtime's maintenance. Each thread has open segments of its own to maintain: a
/// busy thread does so at its turns, and these tasks run on the idle ones.
async fn do_rounds(shared: Arc<Shared>) {
    loop {
        sleep(MAINTENANCE).await;
        let mut rounds = JoinSet::new();
        for _ in 0..shared.server.options.threads {
            rounds.spawn(do_round(Arc::clone(&shared)));
        }
        while rounds.join_next().await.is_some() {}
    }
}

async fn do_round(shared: Arc<Shared>) {
    while shared.maintain() {
        yield_now().await;
    }
    std::thread::sleep(ROUND);
}

/// Notes that the work-stealing runtime is alive. Any of its threads may do so.
async fn heartbeat(shared: Arc<Shared>) {
    loop {
        (0..shared.server.options.threads).for_each(|worker| shared.server.heartbeat(worker));
        sleep(MAINTENANCE).await;
    }
}

async fn answer_datagrams(shared: Arc<Shared>, socket: std::net::UdpSocket) {
    if let Err(error) = try_answer_datagrams(&shared, socket).await {
        tracing::error!(%error, "a UDP socket is not served any more: its event queue failed");
    }
}

async fn try_answer_datagrams(shared: &Shared, socket: std::net::UdpSocket) -> io::Result<()> {
    let socket = UdpSocket::from_std(socket)?;
    let mut endpoint = Endpoint::new(&shared.server.options);
    let hold = poll_fn(|cx| Poll::Ready(Hold::new(cx.waker()))).await;
    loop {
        if endpoint.awaits_writing() {
            socket.writable().await?;
        } else {
            socket.readable().await?;
        }
        let mut turn = || {
            shared.with_worker(|worker| {
                worker.serve_datagrams(&mut endpoint, &socket, worker.now(), &|| hold.waker())
            })
        };
        loop {
            match turn() {
                NextAction::PollAgain => yield_now().await,
                NextAction::Hold => hold.woken().await,
                NextAction::Wait | NextAction::Close => break,
            }
        }
    }
}

/// A connection's task.
async fn serve_connection(shared: Arc<Shared>, accepted: Accepted) {
    let info = Arc::clone(&accepted.info);
    match Client::begin(&shared, accepted) {
        Ok(client) => Box::new(client).run().await,
        Err(error) => {
            tracing::warn!(%error, "a connection is closed: the system refuses to watch it for events");
            shared.server.dismiss(&info);
        }
    }
}
