//! A session with an engine whose pending reads and acknowledgements the test completes.

use crate::common::{Session, TestCache, TestEngine, TestServer, new_server, segments};
use larder_session::{Next, Progress};
use larder_store::cache::Cache as _;
use larder_store::delayed;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// A waker that counts its calls.
#[derive(Default)]
pub(crate) struct Calls(pub(crate) AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Conversation {
    pub(crate) server: TestServer,
    pub(crate) storage: Arc<delayed::Storage>,
    pub(crate) session: Session,
    pub(crate) calls: Arc<Calls>,
    pub(crate) unread: Vec<u8>,
    pub(crate) output: Vec<u8>,
}

impl Conversation {
    pub(crate) fn new(seed: u64, input: &[u8]) -> Self {
        let mut server = new_server(TestEngine::Segment);
        let storage = delayed::Storage::new(seed);
        server.engine = TestCache::delayed(segments(), Arc::clone(&storage)).cache.engine();
        let (session, calls) = (Session::new(), Arc::default());
        Self { server, storage, session, calls, unread: input.to_vec(), output: Vec::new() }
    }

    pub(crate) fn poll(&mut self) -> Progress {
        let waker = || Waker::from(Arc::clone(&self.calls));
        let Self { server, session, unread, output, .. } = self;
        let progress = server.poll_with_waker(session, unread, output, &waker);
        self.unread.drain(..progress.consumed);
        progress
    }

    pub(crate) fn complete_all(&self) {
        while self.storage.complete(1) > 0 {}
    }

    /// Polls until replies are held. Returns `None` if the session has answered all requests and
    /// held no reply.
    pub(crate) fn run_until_held(&mut self) -> Option<Progress> {
        loop {
            let progress = self.poll();
            match progress.next {
                _ if progress.hold => return Some(progress),
                Next::Wait => self.complete_all(),
                Next::Yield => (),
                Next::Read { .. } | Next::Write | Next::Close | Next::Abandon | Next::NotOwner => {
                    return None;
                }
            }
        }
    }
}
