//! The thread that serves HTTP and gRPC.

#[cfg(feature = "grpc")]
use crate::grpc;
use crate::http;
use crate::items::Items;
use crate::server_view::ServerView;
use crate::web::app::{App, Shared};
use crate::web::connections::{
    Activity, Connections, EndOrder, LongLivedResponse, OpenConnection, REQUEST_TIME,
};
use crate::web::idle::IdleStream;
use crate::web::memory::{Busy, Purpose, Reservation, WAIT_STEP};
use crate::web::progress::{RequestBody, RequestResources, ResponseBody, UnreadBody};
use crate::worker::{CacheItems, drop_handle};
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use larder_operations::Counters;
use larder_store::erased;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower_service::Service;

/// The maximum length of an HTTP/1 request's head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// The time limit for receiving the head of an HTTP/1 request.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// The server closes a connection on which no read or write completes for this time.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// The interval of HTTP/2 pings to peers that may have gRPC streams. A connection whose peer
/// answers pings never reaches [`IDLE_TIME`], because the sum of this interval and
/// [`PING_ANSWER_TIME`] is shorter.
const PING_TIME: Duration = Duration::from_secs(15);
/// The time limit for the reply to a ping.
const PING_ANSWER_TIME: Duration = Duration::from_secs(10);
/// Memory reserved for a connection, in bytes. An idle HTTP/2 connection uses 20 KiB.
const CONNECTION_LEN: usize = 24 << 10;
/// Memory reserved for a request, in bytes: its head, buffers and the state of its handler.
const REQUEST_LEN: usize = 16 << 10;
/// The memory, in bytes, that the server counts for a request's head in addition to the path and
/// header fields.
const HEAD_LEN_MIN: usize = 512;
/// Additional memory reserved for a TLS connection, in bytes: a record in each direction, and keys.
const TLS_LEN: usize = 48 << 10;
/// The maximum number of concurrent requests on an HTTP/2 connection.
const STREAMS_MAX: u32 = 32;
/// The flow-control window of an HTTP/2 stream, in bytes.
const STREAM_WINDOW: u32 = 32 << 10;
/// The flow-control window of an HTTP/2 connection, in bytes.
const CONNECTION_WINDOW: u32 = 64 << 10;
/// After a failed `accept`, for example because no file descriptor is free, the server waits this
/// long before it accepts again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// If a handler has not read the whole body of an HTTP/1 request, the server reads the rest for at
/// most this time. If the body has not ended within this time, the server closes the connection
/// after the reply.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// The time limit for active requests when the server stops.
const END_TIME: Duration = Duration::from_secs(2);

/// A listening non-blocking socket, and the interfaces that it serves.
#[derive(Debug)]
pub struct WebListener {
    /// The socket. It must be bound, listening and non-blocking.
    pub socket: std::net::TcpListener,
    /// The interfaces at this address.
    pub interfaces: Interfaces,
    /// The TLS settings; `None` for plain connections.
    pub tls: Option<WebTls>,
}

/// TLS settings of an address.
#[derive(Clone)]
pub struct WebTls {
    /// The function that returns the configuration for a new connection. The configuration must
    /// offer HTTP's protocols through ALPN.
    pub configuration: Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    /// The time limit of a handshake.
    pub handshake_time: Duration,
}

impl fmt::Debug for WebTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTls").finish_non_exhaustive()
    }
}

impl WebTls {
    async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from((self.configuration)());
        timeout(self.handshake_time, acceptor.accept(stream)).await?
    }
}

/// The interfaces at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interfaces {
    /// HTTP without gRPC.
    Http,
    /// gRPC, over HTTP/2.
    #[cfg(feature = "grpc")]
    Grpc,
    /// HTTP and gRPC, distinguished by the path of the request.
    #[cfg(feature = "grpc")]
    HttpAndGrpc,
}

/// Settings of HTTP and gRPC.
#[derive(Clone, Debug)]
pub struct WebConfig {
    /// Host names that clients may use for the server, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use the server.
    pub origins: Vec<String>,
    /// The maximum number of open connections. A further connection replaces an idle or slow one,
    /// or is refused if no connection is idle or slow.
    pub connections_max: usize,
}

/// A thread that serves a cache over HTTP and gRPC until it is stopped.
#[derive(Debug)]
pub struct WebServer {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl WebServer {
    /// Starts serving `cache` at these addresses. No other thread may write to `counters`.
    ///
    /// # Errors
    /// The system cannot create the thread or its event queue, or cannot register a socket.
    pub fn start(
        listeners: Vec<WebListener>,
        config: WebConfig,
        cache: &erased::Cache,
        view: Arc<dyn ServerView>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let items = CacheItems::new(cache.clone(), Arc::clone(&view), counters);
        Self::start_items(listeners, config, Box::new(items), view)
    }

    fn start_items(
        listeners: Vec<WebListener>,
        config: WebConfig,
        items: Box<dyn Items>,
        view: Arc<dyn ServerView>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        view.web_counts().note_use();
        let (stop, stopped) = watch::channel(false);
        let WebConfig { hosts, origins, connections_max } = config;
        let connections = Connections::new(connections_max);
        let app = App(Arc::new(Shared {
            items,
            view,
            connections,
            hosts,
            origins,
            #[cfg(feature = "grpc")]
            stopping: stopped.clone(),
        }));
        let mut accepting = Vec::new();
        {
            let _entered = runtime.enter();
            for WebListener { socket, interfaces, tls } in listeners {
                let acceptor = Acceptor {
                    listener: TcpListener::from_std(socket)?,
                    router: interfaces.router(&app),
                    interfaces,
                    tls,
                    app: app.clone(),
                };
                accepting.push(runtime.spawn(acceptor.run(stopped.clone())));
            }
        }
        let name = "larder-web".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            run(&runtime, accepting);
            drop(runtime);
            drop_handle();
        })?;
        Ok(Self { stop, thread })
    }

    /// Finishes active requests for up to two seconds, closes all connections, and joins the
    /// thread.
    pub fn stop(self) {
        // Sending fails if the thread panicked and dropped the receivers.
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP and gRPC thread panicked: this is a bug");
        }
    }
}

fn run(runtime: &Runtime, accepting: Vec<tokio::task::JoinHandle<()>>) {
    runtime.block_on(async {
        for acceptor in accepting {
            // Joining fails if the task panicked. The panic was reported already.
            let _ = acceptor.await;
        }
    });
}

impl Interfaces {
    /// Returns the routes of these interfaces.
    fn router(self, app: &App) -> Router {
        match self {
            Self::Http => http::router(app.clone()),
            #[cfg(feature = "grpc")]
            Self::Grpc => grpc::router(app),
            #[cfg(feature = "grpc")]
            Self::HttpAndGrpc => http::router(app.clone()).merge(grpc::services(app)),
        }
    }

    fn has_http(self) -> bool {
        match self {
            Self::Http => true,
            #[cfg(feature = "grpc")]
            Self::Grpc => false,
            #[cfg(feature = "grpc")]
            Self::HttpAndGrpc => true,
        }
    }

    fn has_grpc(self) -> bool {
        self != Self::Http
    }
}

struct Acceptor {
    listener: TcpListener,
    interfaces: Interfaces,
    tls: Option<WebTls>,
    router: Router,
    app: App,
}

impl Acceptor {
    /// Accepts connections until the server stops, then waits for their active requests for at most
    /// [`END_TIME`].
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut end = pin!(stopped.changed());
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                // `changed` fails if the server panicked and dropped the sender.
                _ = &mut end => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let reserved = tokio::select! {
                        reserved = self.reserve() => reserved,
                        _ = &mut end => break,
                    };
                    if let Some(reserved) = reserved {
                        let counted = OpenConnection::new(&self.app.view);
                        self.serve(stream, (reserved, counted));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "gateway: accepting a connection failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        if timeout(END_TIME, self.app.connections.close_all(END_TIME)).await.is_err() {
            tracing::debug!("gateway: stopped with unfinished requests");
        }
    }

    /// Reserves memory for a connection. If there is not enough, closes idle and slow connections.
    /// If there are none, waits until requests release memory. Returns `None` after
    /// [`REQUEST_TIME`]: then, all connections have requests with progress.
    async fn reserve(&self) -> Option<Reservation> {
        let mut reserved = Reservation::empty(&self.app.view);
        let len = CONNECTION_LEN + if self.tls.is_some() { TLS_LEN } else { 0 };
        let started = Instant::now();
        loop {
            if reserved.grow_for(Purpose::Connection, len) {
                return Some(reserved);
            }
            if self.app.connections.close_for_new() {
                // Yield, so that the task of the closed connection can finish and release its
                // memory.
                yield_now().await;
            } else if started.elapsed() < REQUEST_TIME {
                sleep(WAIT_STEP).await;
            } else {
                tracing::debug!("gateway: refused a connection: no memory");
                return None;
            }
        }
    }

    /// Serves a connection in a new task, which holds `guard` until it terminates. If the limit of
    /// open connections is reached and no connection is idle or slow, drops the new connection and
    /// `guard`.
    fn serve(&self, stream: TcpStream, guard: impl Send + 'static) {
        let _ = stream.set_nodelay(true);
        let stream = IdleStream::new(stream, IDLE_TIME);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        if !self.interfaces.has_http() {
            builder = builder.http2_only();
        }
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
        // A watch can be silent for a long time, so pings must detect a dead peer.
        if self.interfaces.has_grpc() {
            builder.http2().keep_alive_interval(PING_TIME).keep_alive_timeout(PING_ANSWER_TIME);
        }
        let (router, activity) = (self.router.clone(), Activity::new());
        let (app, interfaces) = (self.app.clone(), self.interfaces);
        let of_service = Arc::clone(&activity);
        let service = service_fn(move |request: Request<Incoming>| {
            let is_grpc = interfaces.has_grpc() && is_grpc(&request);
            app.view.web_counts().count_request(is_grpc);
            answer(app.clone(), router.clone(), Arc::clone(&of_service), request, is_grpc)
        });
        let tls = self.tls.clone();
        let serving = async move |mut order: EndOrder| match tls {
            None => {
                let io = TokioIo::new(stream);
                until_ordered(builder.serve_connection(io, service).into_owned(), order).await
            }
            Some(tls) => {
                let io = tokio::select! {
                    stream = tls.accept(stream) => TokioIo::new(stream?),
                    _ = order.wait() => return Ok(()),
                };
                until_ordered(builder.serve_connection(io, service).into_owned(), order).await
            }
        };
        let is_open = self.app.connections.add(activity, |order| {
            let task = tokio::spawn(async move {
                if let Err(error) = serving(order).await {
                    tracing::debug!(error, "gateway: connection failed");
                }
                drop(guard);
            });
            task.abort_handle()
        });
        if !is_open {
            tracing::debug!("gateway: refused a connection: all others have active requests");
        }
    }
}

/// Serves a connection until it is closed. After an order to close, accepts no further requests,
/// sends an HTTP/2 peer a GOAWAY with the last accepted stream, and stops when the time limit in
/// the order has passed.
async fn until_ordered<C: GracefulConnection>(
    connection: C,
    mut order: EndOrder,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    let time = tokio::select! {
        ended = connection.as_mut() => return ended,
        time = order.wait() => time,
    };
    connection.as_mut().graceful_shutdown();
    if time.is_zero() {
        // Another task waits for the memory of this connection, so poll only once. A timer could
        // take a millisecond.
        return match poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await {
            Poll::Ready(ended) => ended,
            Poll::Pending => Ok(()),
        };
    }
    timeout(time, connection).await.unwrap_or(Ok(()))
}

/// Estimates how many bytes of memory a request's head uses.
fn head_len(request: &Request<Incoming>) -> usize {
    let fields = request.headers().iter();
    let fields: usize = fields.map(|(name, value)| name.as_str().len() + value.len()).sum();
    HEAD_LEN_MIN + request.uri().path().len() + fields
}

/// Answers a request. The request's memory is reserved until the last chunk of the reply is
/// dropped.
async fn answer(
    app: App,
    mut router: Router,
    activity: Arc<Activity>,
    request: Request<Incoming>,
    is_grpc: bool,
) -> Result<Response<Body>, Infallible> {
    let underway = activity.start();
    let mut reserved = Reservation::empty(&app.view);
    if let Err(busy) = reserved.admit(&app, REQUEST_LEN, head_len(&request)).await {
        return Ok(refused(busy, is_grpc));
    }
    let is_http1 = request.version() < Version::HTTP_2;
    // A client with `Expect` sends no body until the server has sent an interim or final response.
    let awaits_continue = request.headers().contains_key(EXPECT);
    let unread = UnreadBody::default();
    let received = |body| Body::new(RequestBody::new(body, Arc::clone(&activity), unread.clone()));
    let mut response = router.call(request.map(received)).await?;
    // If a part of the body stays unread, hyper closes the HTTP/1 connection. Announce the close to
    // the client.
    let has_ended = async || timeout(DRAIN_TIME, unread.drain()).await.unwrap_or(false);
    if is_http1 && (awaits_continue && unread.is_left() || !has_ended().await) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let is_long_lived = response.extensions().get::<LongLivedResponse>().is_some();
    let underway = Some(underway).filter(|_| !is_long_lived);
    let lasting = Arc::new(RequestResources { _active: underway, _reserved: reserved });
    Ok(response.map(|body| Body::new(ResponseBody { body, lasting, activity })))
}

fn refused(busy: Busy, is_grpc: bool) -> Response<Body> {
    #[cfg(feature = "grpc")]
    if is_grpc {
        return grpc::refused(busy);
    }
    let _ = is_grpc;
    http::refused(busy)
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
