//! Makers of missing values in tasks, and in tasks and threads together.

use larder_cache::{Bytes, Cache, InsertOptions, Typed};
use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

fn cache() -> Cache {
    Cache::builder().memory(2 << 20).build().unwrap()
}

/// Records whether a task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future that the test polls.
struct Task<'f, T> {
    future: Pin<Box<dyn Future<Output = T> + 'f>>,
    flag: Arc<Flag>,
}

impl<'f, T> Task<'f, T> {
    fn new(future: impl Future<Output = T> + 'f) -> Self {
        Self { future: Box::pin(future), flag: Arc::default() }
    }

    fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(Arc::clone(&self.flag));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }
}

/// Polls a future on this thread until it is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap()
}

/// Completes when the gate is open. The test polls its task again, so no waker is needed.
async fn opened(gate: &Cell<bool>) {
    poll_fn(|_| if gate.get() { Poll::Ready(()) } else { Poll::Pending }).await;
}

fn made(value: &'static str) -> Poll<Bytes> {
    Poll::Ready(Bytes::from_static(value.as_bytes()))
}

#[test]
fn tasks_wait_for_one_maker_without_blocking_their_thread() {
    let (cache, gate) = (cache(), Cell::new(false));
    let mut maker = Task::new(cache.get_or_insert_async("key", async {
        opened(&gate).await;
        "value"
    }));
    let mut others: Vec<_> = (0..3)
        .map(|_| Task::new(cache.get_or_insert_async("key", async { panic!("one maker") as &str })))
        .collect();
    assert!(maker.poll().is_pending());
    others.iter_mut().for_each(|other| assert!(other.poll().is_pending()));
    gate.set(true);
    assert_eq!(maker.poll(), made("value"));
    for other in &mut others {
        assert!(other.is_woken());
        assert_eq!(other.poll(), made("value"));
    }
    // A hit does not poll the maker.
    let hit = cache.get_or_insert_async("key", async { panic!("there is a value") as &str });
    assert_eq!(block_on(hit), "value");
}

#[test]
fn a_dropped_maker_lets_the_next_task_make_the_value() {
    let cache = cache();
    let mut maker = Task::new(cache.get_or_insert_async("key", pending::<&str>()));
    let mut next = Task::new(cache.get_or_insert_async("key", ready("next")));
    assert!(maker.poll().is_pending() && next.poll().is_pending());
    drop(maker);
    assert!(next.is_woken());
    assert_eq!(next.poll(), made("next"));
}

#[test]
fn a_dropped_maker_lets_a_waiting_thread_make_the_value() {
    let cache = cache();
    let mut maker = Task::new(cache.get_or_insert_async("key", pending::<&str>()));
    assert!(maker.poll().is_pending());
    thread::scope(|scope| {
        let thread = scope.spawn(|| cache.get_or_insert_with("key", || "thread"));
        // Either the thread is already waiting for the maker, or it starts later and finds no
        // maker. In both cases, the thread must make the value.
        thread::sleep(Duration::from_millis(20));
        drop(maker);
        assert_eq!(thread.join().unwrap(), "thread");
    });
}

#[test]
fn a_maker_that_panics_or_fails_lets_the_next_task_make_the_value() {
    let (cache, gate) = (cache(), Cell::new(false));
    let mut panics = Task::new(cache.get_or_insert_async("key", async {
        opened(&gate).await;
        panic!("a maker panics, on purpose") as &str
    }));
    let mut fails = Task::new(cache.try_get_or_insert_async("key", async { Err::<&str, _>("no") }));
    let mut makes = Task::new(cache.get_or_insert_async("key", ready("made")));
    assert!(panics.poll().is_pending() && fails.poll().is_pending() && makes.poll().is_pending());
    gate.set(true);
    assert!(catch_unwind(AssertUnwindSafe(|| panics.poll())).is_err());
    assert!(fails.is_woken() && makes.is_woken());
    assert_eq!(fails.poll(), Poll::Ready(Err("no")));
    assert_eq!(makes.poll(), made("made"));
}

#[test]
fn a_wait_that_is_dropped_leaves_nothing_behind() {
    let (cache, gate) = (cache(), Cell::new(false));
    let mut maker = Task::new(cache.get_or_insert_async("key", async {
        opened(&gate).await;
        "value"
    }));
    let mut wait = Task::new(cache.get_or_insert_async("key", ready("other")));
    assert!(maker.poll().is_pending() && wait.poll().is_pending());
    let flag = Arc::clone(&wait.flag);
    drop(wait);
    assert_eq!(Arc::strong_count(&flag), 1, "the waker was dropped");
    gate.set(true);
    assert_eq!(maker.poll(), made("value"));
    assert!(!flag.0.load(Ordering::SeqCst));
}

#[test]
fn a_value_that_is_not_stored_reaches_all_tasks() {
    let cache = Cache::builder().memory(2 << 20).item_size_max(10).build().unwrap();
    let gate = Cell::new(false);
    let mut maker = Task::new(cache.get_or_insert_async("key", async {
        opened(&gate).await;
        vec![1; 100]
    }));
    let mut other = Task::new(cache.get_or_insert_async("key", ready("")));
    assert!(maker.poll().is_pending() && other.poll().is_pending());
    gate.set(true);
    assert!(maker.poll().is_ready());
    assert_eq!(other.poll(), Poll::Ready(vec![1; 100].into()));
    assert!(!cache.contains("key"));
}

#[test]
fn a_maker_that_needs_its_own_value_makes_it_twice() {
    let cache = cache();
    let nested = cache.get_or_insert_async("task", async {
        let inner = cache.get_or_insert_async("task", ready("inner")).await;
        assert_eq!(inner, "inner");
        "outer"
    });
    assert_eq!(block_on(nested), "outer");
    // A thread waits for a task, and the task requests the value that the thread makes.
    let nested = cache.get_or_insert_with("thread", || {
        let inner = block_on(cache.get_or_insert_async("thread", ready("inner")));
        assert_eq!(inner, "inner");
        "outer"
    });
    assert_eq!(nested, "outer");
    // A maker in a task requests its own value with the blocking method.
    let nested = cache.get_or_insert_async("both", async {
        assert_eq!(cache.get_or_insert_with("both", || "inner"), "inner");
        "outer"
    });
    assert_eq!(block_on(nested), "outer");
}

#[test]
fn makers_of_tasks_that_need_each_other_do_not_wait_forever() {
    let (cache, gate) = (cache(), Cell::new(false));
    let mut one = Task::new(cache.get_or_insert_async("one", async {
        opened(&gate).await;
        cache.get_or_insert_async("two", ready("inner")).await;
        "outer"
    }));
    let mut two = Task::new(cache.get_or_insert_async("two", async {
        cache.get_or_insert_async("one", ready("inner")).await
    }));
    assert!(one.poll().is_pending());
    assert!(two.poll().is_pending(), "its maker waits for the value of the first task");
    gate.set(true);
    assert_eq!(one.poll(), made("outer"));
    assert!(two.is_woken());
    // The second task also gets the value that the first task made.
    assert_eq!(two.poll(), made("outer"));
}

#[test]
fn a_wait_that_moves_into_a_maker_is_a_dependency_from_then_on() {
    let (cache, gate) = (cache(), Cell::new(false));
    let mut one = Task::new(cache.get_or_insert_async("one", async {
        opened(&gate).await;
        cache.get_or_insert_async("two", ready("inner")).await;
        "outer"
    }));
    assert!(one.poll().is_pending());
    // The wait for `one` starts outside of the maker of `two`.
    let mut wait = Box::pin(cache.get_or_insert_async("one", ready("inner")));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut two = Task::new(cache.get_or_insert_async("two", wait));
    assert!(two.poll().is_pending());
    gate.set(true);
    assert_eq!(one.poll(), made("outer"));
    assert!(two.poll().is_ready());
}

#[test]
fn tasks_and_threads_share_one_maker() {
    let runtime = runtime();
    let cache = cache();
    let attempts = Arc::new(AtomicUsize::new(0));
    for key in 0..50_u32 {
        let (sender, results) = mpsc::channel();
        for number in 0..16 {
            let (cache, attempts, sender) = (cache.clone(), Arc::clone(&attempts), sender.clone());
            let name = key.to_le_bytes();
            if number % 2 == 0 {
                runtime.spawn(async move {
                    let value = cache.get_or_insert_async(name, async {
                        attempts.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        name.to_vec()
                    });
                    sender.send(value.await).unwrap();
                });
            } else {
                thread::spawn(move || {
                    let value = cache.get_or_insert_with(name, || {
                        attempts.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(1));
                        name.to_vec()
                    });
                    sender.send(value).unwrap();
                });
            }
        }
        drop(sender);
        let results: Vec<_> = results.iter().collect();
        assert_eq!(results, vec![key.to_le_bytes().to_vec(); 16]);
    }
    assert_eq!(attempts.load(Ordering::Relaxed), 50);
}

#[test]
fn every_call_ends_while_others_are_cancelled() {
    let runtime = runtime();
    let cache = cache();
    let tasks = (0..2_000_u32).map(|number| {
        let cache = cache.clone();
        runtime.spawn(async move {
            let key = (number % 7).to_le_bytes();
            let make = async {
                for _ in 0..number % 5 {
                    tokio::task::yield_now().await;
                }
                match number % 3 {
                    0 => Err(()),
                    _ => Ok((key.to_vec(), InsertOptions::new())),
                }
            };
            let call = cache.try_get_or_insert_async(key, make);
            let cancel = async {
                for _ in 0..number % 11 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                value = call => assert!(value.is_err() || value.is_ok_and(|value| value == key[..])),
                () = cancel => (),
            }
            cache.remove(key);
        })
    });
    let tasks: Vec<_> = tasks.collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    // No maker is left.
    for key in 0..7_u32 {
        cache.remove(key.to_le_bytes());
        assert_eq!(block_on(cache.get_or_insert_async(key.to_le_bytes(), ready("last"))), "last");
    }
}

#[test]
fn typed_makers_decode_and_replace_values() {
    let numbers: Typed<str, u64> = Typed::new(cache());
    let words: Typed<str, String> = Typed::new(numbers.cache().clone());
    assert_eq!(block_on(numbers.get_or_insert_async("a", ready(7))), 7);
    assert_eq!(block_on(numbers.get_or_insert_async("a", pending())), 7);
    let failed =
        block_on(numbers.try_get_or_insert_async("b", InsertOptions::new(), ready(Err("no"))));
    assert_eq!((failed, numbers.get("b")), (Err("no"), None));
    numbers.insert("c", &u64::MAX).unwrap();
    let made = block_on(words.get_or_insert_async("c", async { "replaced".to_owned() }));
    assert_eq!((made.as_str(), words.get("c").as_deref()), ("replaced", Some("replaced")));
}

#[test]
fn futures_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let (cache, numbers) = (cache(), Typed::<str, u64>::new(cache()));
    is_send(&cache.get_or_insert_async("key", async { "value" }));
    is_send(&numbers.get_or_insert_async("key", async { 1 }));
}
