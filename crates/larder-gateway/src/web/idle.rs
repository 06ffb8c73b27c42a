//! A socket with an idle timeout.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A socket with an idle timeout. If no read or write completes for `time_max`, the waiting reads
/// and writes fail.
pub(crate) struct IdleStream {
    stream: TcpStream,
    time_max: Duration,
    /// The time of the last completed read or write.
    moved: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl IdleStream {
    pub(crate) fn new(stream: TcpStream, time_max: Duration) -> Self {
        Self { stream, time_max, moved: Instant::now(), sleep: Box::pin(sleep(time_max)) }
    }

    /// Takes the result of polling a read or write. If the read or write has completed, restarts
    /// the idle timeout. If it is still pending and the idle timeout has passed, returns an error.
    fn watch<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.moved = Instant::now();
            return polled;
        }
        loop {
            let end = self.moved + self.time_max;
            if self.sleep.deadline() < end {
                self.sleep.as_mut().reset(end);
            }
            match self.sleep.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if self.moved.elapsed() < self.time_max => (),
                Poll::Ready(()) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            }
        }
    }
}

impl AsyncRead for IdleStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watch(polled, cx)
    }
}

impl AsyncWrite for IdleStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.watch(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
