//! One event loop per worker thread. Each worker owns its connections and its context. Workers
//! share only the cache and the [`Server`].

mod event_loop;
mod wakers;

use super::dispatch::{Accepted, Workers};
use super::worker::WorkerContext;
use crate::process::platform;
use crate::server::Server;
use event_loop::{EventLoop, WAKER};
use larder_store::cache::Cache;
use mio::{Poll, Waker};
use std::io;
use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use wakers::{LoopWaker, Resumed};

/// Starts one worker per element of `shares`. The element contains that worker's UDP sockets.
pub(in crate::driver) fn start<C: Cache>(
    server: &Arc<Server>,
    cache: &C,
    shares: Vec<Vec<UdpSocket>>,
) -> io::Result<EventLoops> {
    let shares = shares.into_iter().enumerate();
    let workers = shares.map(|(index, udp)| spawn(index, server, cache, udp));
    Ok(EventLoops { workers: workers.collect::<io::Result<Vec<_>>>()?, next: 0 })
}

/// The workers, for the accepting thread.
pub(in crate::driver) struct EventLoops {
    workers: Vec<Worker>,
    /// The index of the worker that gets the next connection.
    next: usize,
}

struct Worker {
    connections: Sender<Accepted>,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

impl Workers for EventLoops {
    fn dispatch(&mut self, accepted: Accepted) {
        let worker = &self.workers[self.next];
        self.next = (self.next + 1) % self.workers.len();
        if worker.connections.send(accepted).is_ok()
            && let Err(error) = worker.waker.wake()
        {
            tracing::error!(%error, "waking a worker thread failed: the connection waits for the next event; restart the server if this repeats");
        }
    }

    fn wake_all(&self) -> io::Result<()> {
        self.workers.iter().try_for_each(|worker| worker.waker.wake())
    }

    fn join(self) {
        for Worker { thread, connections, .. } in self.workers {
            drop(connections);
            if thread.join().is_err() {
                tracing::error!(
                    "worker thread: it panicked and its connections were lost; please report this bug"
                );
            }
        }
    }
}

fn spawn<C: Cache>(
    index: usize,
    server: &Arc<Server>,
    cache: &C,
    udp: Vec<UdpSocket>,
) -> io::Result<Worker> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
    let loop_waker = std::task::Waker::from(Arc::new(LoopWaker(Arc::clone(&waker))));
    let resumed = Arc::new(Resumed {
        list: Mutex::default(),
        waker: Arc::clone(&waker),
        looks_again: AtomicBool::new(false),
    });
    let (connections, inbox) = channel();
    let (server, cache) = (Arc::clone(server), cache.clone());
    let thread = std::thread::Builder::new().name(format!("larder-{index}")).spawn(move || {
        if server.options.pin {
            platform::pin_to_core(index);
        }
        let worker = WorkerContext::new(index, server, cache.engine());
        let mut worker = EventLoop::new(poll, inbox, worker, loop_waker, resumed);
        match worker.attach(udp) {
            Ok(()) => worker.run(),
            Err(error) => {
                tracing::error!(%error, "worker thread: registering a UDP socket failed, and the thread ends; restart the server");
            }
        }
    })?;
    Ok(Worker { connections, waker, thread })
}
