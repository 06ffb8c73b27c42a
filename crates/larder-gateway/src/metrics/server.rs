//! The thread that serves metrics.

use super::answer::serve;
use crate::server_view::ServerView;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The maximum number of open connections.
const CONNECTIONS_MAX: usize = 32;
/// After a failed `accept`, for example because no file descriptor is free, the server waits this
/// long before it accepts again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A thread that serves metrics until it is stopped.
#[derive(Debug)]
pub struct MetricsServer {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl MetricsServer {
    /// Starts serving the metrics of `view` on these listening non-blocking sockets.
    ///
    /// # Errors
    /// The system cannot create the thread or its event queue, or cannot register a socket.
    pub fn start(
        listeners: Vec<std::net::TcpListener>,
        view: Arc<dyn ServerView>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        {
            let _entered = runtime.enter();
            let open = Arc::default();
            for listener in listeners {
                let listener = TcpListener::from_std(listener)?;
                runtime.spawn(accept(listener, Arc::clone(&view), Arc::clone(&open)));
            }
        }
        let (stop, stopped) = oneshot::channel();
        let name = "larder-metrics".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(|| run(runtime, stopped))?;
        Ok(Self { stop, thread })
    }

    /// Closes all connections, including those with unanswered requests, and joins the thread.
    pub fn stop(self) {
        // Sending fails if the thread panicked and dropped the receiver.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the metrics thread panicked: this is a bug");
        }
    }
}

fn run(runtime: Runtime, stopped: oneshot::Receiver<()>) {
    // Dropping the sender also stops the thread.
    let _ = runtime.block_on(stopped);
}

async fn accept(listener: TcpListener, view: Arc<dyn ServerView>, open: Arc<OpenConnections>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let task = tokio::spawn(serve(stream, Arc::clone(&view)));
                open.add(task.abort_handle());
            }
            Err(error) => {
                tracing::debug!(%error, "metrics: accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct OpenConnections(Mutex<VecDeque<AbortHandle>>);

impl OpenConnections {
    /// Adds a connection. If there are too many, closes the oldest connection: a scrape takes
    /// milliseconds, so the peer of that connection is slow.
    fn add(&self, connection: AbortHandle) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connection);
    }
}
