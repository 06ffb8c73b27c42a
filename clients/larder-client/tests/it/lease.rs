//! Tests `get_or_compute` with servers that have no leases or are unreachable. larder-server's
//! `tests/it/client/items.rs` tests the leases of real servers.

use crate::common::any_client::each_client;
use crate::common::{Action, FakeServer, Request};
use larder_client::{ComputeError, ErrorKind, Interrupted, Lease, WaitCondition, Waiter, blocking};
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// Starts a server without meta commands. The server has an item after the first `add`. Also
/// returns the verbs of the requests.
fn old_server() -> (FakeServer, Arc<Mutex<Vec<String>>>) {
    let verbs = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&verbs);
    let behave = move |request: &Request| {
        let mut seen = seen.lock().unwrap();
        let has_item = seen.iter().any(|verb| verb == "add");
        seen.push(request.verb.clone());
        match &*request.verb {
            "mn" => Action::Send(b"ERROR\r\n".to_vec()),
            "get" if !has_item => Action::Send(b"END\r\n".to_vec()),
            _ => Action::Reply,
        }
    };
    (FakeServer::start(behave), verbs)
}

#[test]
fn a_server_without_leases_gets_one_add_for_many_callers() {
    each_client(|client| {
        let (server, verbs) = old_server();
        let client = client(format!("127.0.0.1:{}", server.port)).timeout(MILLIS(60_000));
        let client = client.connections(60).build().unwrap();
        let computed = AtomicU32::new(0);
        let compute = || {
            computed.fetch_add(1, Ordering::Relaxed);
            // Waits until the lookups of all callers have replies.
            let count = |verb| verbs.lock().unwrap().iter().filter(|seen| *seen == verb).count();
            while count("get") < 50 || client.connections().0 != client.connections().1 {
                thread::sleep(MILLIS(1));
            }
            thread::sleep(MILLIS(100));
            Ok::<_, Infallible>("key")
        };
        thread::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| {
                    let value = client.get_or_compute("key", Lease::ttl(60), compute).unwrap();
                    assert_eq!(value, "key");
                });
            }
        });
        assert_eq!(computed.load(Ordering::Relaxed), 1);
        // Now the item exists, so the call does not compute its value.
        let value = client.get_or_compute("key", Lease::ttl(60), || Err::<String, _>("computed"));
        assert_eq!(value.unwrap(), "key");
        let verbs = verbs.lock().unwrap();
        let count = |verb| verbs.iter().filter(|seen| *seen == verb).count();
        // Concurrent callers may each probe for meta commands.
        assert!((1..=50).contains(&count("mn")));
        assert_eq!(verbs[verbs.len() - 2..], ["add", "get"]);
        assert_eq!((count("get"), count("add")), (51, 1));
    });
}

#[test]
fn a_value_is_computed_if_the_server_is_unreachable() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let client = client(address).build().unwrap();
        for n in 0..20_u32 {
            let found = client.get_or_compute("k", Lease::ttl(60), || Ok::<_, ()>(n.to_string()));
            assert_eq!(found.unwrap(), n.to_string());
            let failed = client.get_or_compute("k", Lease::ttl(60), || Err::<String, _>(n));
            assert!(matches!(failed, Err(ComputeError::Compute(error)) if error == n));
        }
    });
}

#[test]
fn a_value_is_computed_if_the_server_is_silent() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Silence);
        let client =
            client(format!("127.0.0.1:{}", server.port)).timeout(MILLIS(400)).build().unwrap();
        let start_time = Instant::now();
        let found = client.get_or_compute("k", Lease::ttl(60), || Ok::<_, ()>("v"));
        assert_eq!(found.unwrap(), "v");
        assert!(
            (MILLIS(400)..MILLIS(800)).contains(&start_time.elapsed()),
            "{:?}",
            start_time.elapsed()
        );
    });
}

#[test]
fn an_invalid_key_or_a_closed_client_is_a_cache_error() {
    each_client(|client| {
        let (server, _) = old_server();
        let client = client(format!("127.0.0.1:{}", server.port)).build().unwrap();
        let kind = |key: &str| {
            let computed = client.get_or_compute(key, Lease::ttl(60), || Ok::<_, ()>("v"));
            let Err(ComputeError::Cache(error)) = computed else { panic!("{computed:?}") };
            error.kind().clone()
        };
        assert!(matches!(kind(&"k".repeat(251)), ErrorKind::Key(_)));
        client.close();
        assert!(matches!(kind("k"), ErrorKind::ClientClosed));
    });
}

#[derive(Debug, Default)]
struct Stop(AtomicBool);

impl Waiter for Stop {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        while !waiting.poll(MILLIS(1)) && Instant::now() < end {
            if waiting.socket().is_none() && self.0.load(Ordering::Relaxed) {
                return Err(Interrupted);
            }
        }
        Ok(())
    }
}

#[test]
fn waiting_for_another_thread_s_computation_can_be_interrupted() {
    let (server, verbs) = old_server();
    let stop = Arc::new(Stop::default());
    let builder = blocking::Client::builder(format!("127.0.0.1:{}", server.port));
    let waiter: Arc<dyn Waiter> = Arc::<Stop>::clone(&stop);
    let client = builder.waiter(waiter).timeout(MILLIS(60_000)).build().unwrap();
    let (began, other_is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(Ordering::Relaxed) {
            thread::sleep(MILLIS(1));
        }
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            client.get_or_compute("key", Lease::ttl(60), || {
                began.store(true, Ordering::Relaxed);
                wait_for(&other_is_over);
                Ok::<_, ()>("key")
            })
        });
        wait_for(&began);
        stop.0.store(true, Ordering::Relaxed);
        let other = client.get_or_compute("key", Lease::ttl(60), || Err::<String, _>(()));
        other_is_over.store(true, Ordering::Relaxed);
        let Err(ComputeError::Cache(error)) = other else { panic!("{other:?}") };
        assert!(matches!(error.kind(), ErrorKind::Interrupted), "{error}");
        assert_eq!(first.join().unwrap().unwrap(), "key");
    });
    assert_eq!(verbs.lock().unwrap().last().unwrap(), "add");
}
