//! The thread that serves HTTP, and its connections.

use super::app::{App, Shared};
use super::router::router;
use crate::items::Items;
use crate::metrics::Metrics;
use crate::server_view::ServerView;
use crate::worker::{CacheItems, uninstall};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use larder_operations::Counters;
use larder_store::cache::Cache;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

/// The largest head of a request, in bytes, and how long it may take.
const HEAD_MAX: usize = 16 << 10;
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a connection may stay without any byte read or written.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// What is counted for a connection of what may be kept for it, in bytes.
const CONNECTION_LEN: usize = 96 << 10;
/// Requests at the same time on a connection of HTTP/2, and the bytes of their bodies that may be under way.
const STREAMS_MAX: u32 = 32;
const STREAM_WINDOW: u32 = 32 << 10;
const CONNECTION_WINDOW: u32 = 64 << 10;
/// How long to wait when the system has no file descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests may take that are under way when the server ends.
const END_TIME: Duration = Duration::from_secs(2);

/// Settings of HTTP.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Names that clients may have for the server, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Origins whose pages may use the server.
    pub origins: Vec<String>,
    /// How many connections may be open at once; others wait.
    pub connections_max: usize,
}

/// Serves a cache over HTTP until it is stopped. While nobody asks, its thread sleeps.
#[derive(Debug)]
pub struct HttpServer {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Serves `cache` on these sockets, which listen already and never block. Requests are counted in
    /// `counters`, which no other thread uses.
    ///
    /// # Errors
    /// The system has no thread or event queue for it.
    pub fn start<C: Cache + Send>(
        listeners: Vec<std::net::TcpListener>,
        config: HttpConfig,
        cache: &C,
        view: Arc<dyn ServerView>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let items = CacheItems::new(cache.clone(), Arc::clone(&view), counters);
        Self::start_items(listeners, config, Box::new(items), view)
    }

    fn start_items(
        listeners: Vec<std::net::TcpListener>,
        config: HttpConfig,
        items: Box<dyn Items>,
        view: Arc<dyn ServerView>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let metrics = Metrics::new(Arc::clone(&view));
        let HttpConfig { hosts, origins, connections_max } = config;
        let app = App(Arc::new(Shared { items, view: Arc::clone(&view), metrics, hosts, origins }));
        let (router, room) = (router(app), Arc::new(Semaphore::new(connections_max)));
        let mut accepting = Vec::new();
        {
            let _entered = runtime.enter();
            for listener in listeners {
                let acceptor = Acceptor {
                    listener: TcpListener::from_std(listener)?,
                    room: Arc::clone(&room),
                    router: router.clone(),
                    view: Arc::clone(&view),
                };
                accepting.push(runtime.spawn(acceptor.run(stopped.clone())));
            }
        }
        let name = "larder-http".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            run(&runtime, accepting);
            drop(runtime);
            uninstall();
        })?;
        Ok(Self { stop, thread })
    }

    /// Answers what is under way, closes all connections, and ends the thread.
    pub fn stop(self) {
        // The receivers do not exist any more if the thread panicked.
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread for HTTP panicked, and this is a bug");
        }
    }
}

fn run(runtime: &Runtime, accepting: Vec<tokio::task::JoinHandle<()>>) {
    runtime.block_on(async {
        for acceptor in accepting {
            // It fails if the task panicked, which was reported then.
            let _ = acceptor.await;
        }
    });
}

struct Acceptor {
    listener: TcpListener,
    room: Arc<Semaphore>,
    router: Router,
    view: Arc<dyn ServerView>,
}

impl Acceptor {
    /// Accepts connections until it is stopped, and ends when they have ended.
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let connections = GracefulShutdown::new();
        let mut end = pin!(stopped.changed());
        loop {
            let accept = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&self.room).acquire_owned().await.ok()?;
                Some((self.listener.accept().await, permit))
            };
            let accepted = tokio::select! {
                accepted = accept => accepted,
                // The sender is dropped if the server panics.
                _ = &mut end => break,
            };
            match accepted {
                Some((Ok((stream, _)), permit)) => {
                    if let Some(held) = Reserved::new(&self.view, CONNECTION_LEN) {
                        self.serve(stream, (permit, held), &connections);
                    }
                }
                Some((Err(error), _)) => {
                    tracing::debug!(%error, "a connection for HTTP cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
                None => break,
            }
        }
        if timeout(END_TIME, connections.shutdown()).await.is_err() {
            tracing::debug!("connections for HTTP are closed with requests under way");
        }
    }

    /// Serves a connection in a task of its own, to whose end `kept` is kept.
    fn serve(&self, stream: TcpStream, kept: impl Send + 'static, connections: &GracefulShutdown) {
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(Some(IDLE_TIME));
        stream.set_write_timeout(Some(IDLE_TIME));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(HEAD_MAX)
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(16 << 10)
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(STREAM_WINDOW as usize);
        let io = TokioIo::new(Box::pin(stream));
        let service = TowerToHyperService::new(self.router.clone());
        let connection = builder.serve_connection(io, service).into_owned();
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection for HTTP ends with an error");
            }
            drop(kept);
        });
    }
}

/// Memory that is counted for a connection.
struct Reserved {
    view: Arc<dyn ServerView>,
    len: usize,
}

impl Reserved {
    fn new(view: &Arc<dyn ServerView>, len: usize) -> Option<Self> {
        view.reserve(len).then(|| Self { view: Arc::clone(view), len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.view.release(self.len);
    }
}
