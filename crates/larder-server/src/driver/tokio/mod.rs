//! The Tokio drivers: one task per connection and per UDP socket. `tokio-current-thread` runs one
//! runtime per worker thread, and assigns connections to the runtimes round-robin.
//! `tokio-multi-thread` runs one work-stealing runtime, where a task may move to another thread
//! whenever it waits.
//!
//! A worker context stays on its thread. A task borrows the context of its current thread for one
//! poll.

mod client;
mod hold;
mod shared;
mod stream;

use super::dispatch::{Accepted, MAINTENANCE, Workers};
use crate::connection::NextAction;
use crate::net::udp::Endpoint;
use crate::server::Server;
use client::Client;
use hold::ResumeFlag;
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

/// A maintenance task of the work-stealing runtime blocks its thread for this duration, which makes
/// another thread run the next maintenance task.
const MAINTENANCE_BLOCK: Duration = Duration::from_micros(50);

/// The runtimes, for the accepting thread.
pub(super) struct Runtimes {
    shared: Arc<Shared>,
    handles: Vec<Handle>,
    /// The index of the runtime that gets the next connection.
    next: usize,
    /// The threads of current-thread runtimes, each with the sender that stops it.
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// The work-stealing runtime; `None` with current-thread runtimes.
    runtime: Option<Runtime>,
}

impl Workers for Runtimes {
    fn dispatch(&mut self, accepted: Accepted) {
        self.handles[self.next].spawn(serve_connection(Arc::clone(&self.shared), accepted));
        self.next = (self.next + 1) % self.handles.len();
    }

    fn wake_all(&self) -> io::Result<()> {
        self.shared.phase_changed.notify_waiters();
        Ok(())
    }

    fn join(self) {
        for (end, thread) in self.threads {
            // Sending fails if the thread has panicked and dropped its receiver.
            let _ = end.send(());
            if thread.join().is_err() {
                tracing::error!(
                    "worker thread: it panicked and its connections were lost; please report this bug"
                );
            }
        }
        drop(self.runtime);
    }
}

/// Starts one current-thread runtime for each element of `shares`, which contains the UDP sockets
/// of that runtime.
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
            // Dropping the sender also stops the runtime.
            let _ = runtime.block_on(ended);
            drop(runtime);
            uninstall();
        })?;
        threads.push((end, thread));
    }
    Ok(Runtimes { shared, handles, next: 0, threads, runtime: None })
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
    handle.spawn(maintain_all_threads(Arc::clone(&shared)));
    spawn_endpoints(handle, &shared, udp);
    let handles = vec![handle.clone()];
    Ok(Runtimes { shared, handles, next: 0, threads: Vec::new(), runtime: Some(runtime) })
}

fn spawn_endpoints(handle: &Handle, shared: &Arc<Shared>, udp: Vec<std::net::UdpSocket>) {
    for socket in udp {
        handle.spawn(answer_datagrams(Arc::clone(shared), socket));
    }
}

/// Runs the maintenance of a current-thread runtime.
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

/// Runs the maintenance of the work-stealing runtime. Each thread must maintain its own open
/// segments. A busy thread does this after one of its polls. For the idle threads, this function
/// spawns one task per thread.
async fn maintain_all_threads(shared: Arc<Shared>) {
    loop {
        sleep(MAINTENANCE).await;
        let mut tasks = JoinSet::new();
        for _ in 0..shared.server.options.threads {
            tasks.spawn(maintain_one_thread(Arc::clone(&shared)));
        }
        while tasks.join_next().await.is_some() {}
    }
}

async fn maintain_one_thread(shared: Arc<Shared>) {
    while shared.maintain() {
        yield_now().await;
    }
    std::thread::sleep(MAINTENANCE_BLOCK);
}

/// Records that the work-stealing runtime is alive. The thread that runs this task records a
/// heartbeat for every thread.
async fn heartbeat(shared: Arc<Shared>) {
    loop {
        (0..shared.server.options.threads).for_each(|worker| shared.server.heartbeat(worker));
        sleep(MAINTENANCE).await;
    }
}

async fn answer_datagrams(shared: Arc<Shared>, socket: std::net::UdpSocket) {
    if let Err(error) = try_answer_datagrams(&shared, socket).await {
        tracing::error!(%error, "UDP socket: its event queue failed, and the server stops reading it; restart the server");
    }
}

async fn try_answer_datagrams(shared: &Shared, socket: std::net::UdpSocket) -> io::Result<()> {
    let socket = UdpSocket::from_std(socket)?;
    let mut endpoint = Endpoint::new(&shared.server.options);
    let resume = poll_fn(|cx| Poll::Ready(ResumeFlag::new(cx.waker()))).await;
    loop {
        if endpoint.awaits_writing() {
            socket.writable().await?;
        } else {
            socket.readable().await?;
        }
        let mut poll_socket = || {
            shared.with_worker(|worker| {
                worker.serve_datagrams(&mut endpoint, &socket, worker.now(), &|| resume.waker())
            })
        };
        loop {
            match poll_socket() {
                NextAction::PollAgain => yield_now().await,
                NextAction::Hold => resume.woken().await,
                NextAction::Wait | NextAction::Close => break,
            }
        }
    }
}

/// Runs the task of a connection.
async fn serve_connection(shared: Arc<Shared>, accepted: Accepted) {
    let info = Arc::clone(&accepted.info);
    match Client::open(&shared, accepted) {
        Ok(client) => Box::new(client).run().await,
        Err(error) => {
            tracing::warn!(%error, peer = info.peer, "connection closed: registering it for events failed; raise the limits of the system's event queue (fs.epoll.max_user_watches)");
            shared.server.dismiss(&info);
        }
    }
}
