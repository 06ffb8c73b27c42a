//! The thread that serves HTTP, and its connections.

use super::app::{App, Shared};
use super::connections::{Activity, Connections, LastPart};
use super::memory::Reserved;
use super::router::router;
use crate::items::Items;
use crate::metrics::Metrics;
use crate::server_view::ServerView;
use crate::worker::{CacheItems, uninstall};
use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use larder_operations::Counters;
use larder_store::cache::Cache;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;

/// The largest head of a request, in bytes, and how long it may take.
const HEAD_MAX: usize = 16 << 10;
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a connection may stay without any byte read or written.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// What is counted for a connection of what may be kept for it, in bytes.
const CONNECTION_LEN: usize = 32 << 10;
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
    /// How many connections may be open at once. Others take the places of those without a request.
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
        let connections = Connections::new(connections_max);
        let app = App(Arc::new(Shared { items, view, metrics, connections, hosts, origins }));
        let router = router(app.clone());
        let mut accepting = Vec::new();
        {
            let _entered = runtime.enter();
            for listener in listeners {
                let acceptor = Acceptor {
                    listener: TcpListener::from_std(listener)?,
                    router: router.clone(),
                    app: app.clone(),
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
    router: Router,
    app: App,
}

impl Acceptor {
    /// Accepts connections until it is stopped, and ends when they have ended.
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let connections = GracefulShutdown::new();
        let mut end = pin!(stopped.changed());
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                // The sender is dropped if the server panics.
                _ = &mut end => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    if let Some(held) = self.reserve().await {
                        self.serve(stream, held, &connections);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection for HTTP cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        if timeout(END_TIME, connections.shutdown()).await.is_err() {
            tracing::debug!("connections for HTTP are closed with requests under way");
        }
    }

    /// Reserves memory for a connection, if need be that of another one, which is closed.
    async fn reserve(&self) -> Option<Reserved> {
        let mut reserved = Reserved::nothing(&self.app.view);
        loop {
            if reserved.grow_to(CONNECTION_LEN) {
                return Some(reserved);
            }
            if !self.app.connections.close_one() {
                tracing::debug!("a connection for HTTP is closed: there is no memory for it");
                return None;
            }
            // The task that was told to end does so.
            yield_now().await;
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
        let (router, activity) = (self.router.clone(), Activity::new());
        let of_service = Arc::clone(&activity);
        let service = service_fn(move |request: Request<Incoming>| {
            let (mut router, underway) = (router.clone(), of_service.begin());
            async move {
                let response = router.call(request.map(Body::new)).await;
                response.map(|response| {
                    response.map(|body| Body::new(LastPart { body, _underway: underway }))
                })
            }
        });
        let connection = builder.serve_connection(io, service).into_owned();
        let connection = connections.watch(connection);
        let is_open = self.app.connections.add(activity, || {
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error, "a connection for HTTP ends with an error");
                }
                drop(kept);
            });
            task.abort_handle()
        });
        if !is_open {
            tracing::debug!("a connection for HTTP is closed: all others have requests");
        }
    }
}
