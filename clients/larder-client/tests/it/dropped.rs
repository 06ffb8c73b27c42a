//! Tests that dropping a call's future at any point never gives a caller another caller's value,
//! and leaks no connection. The environment variable `DROPS` sets the number of dropped futures.

use crate::common::{Action, FakeServer};
use larder_client::{Builder, Client};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

/// Polls a future up to `times` times, but at least once, and then drops the future. Returns `None`
/// if the future did not finish.
async fn poll_times<T>(future: impl Future<Output = T>, times: u64) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    std::future::poll_fn(move |context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        left = left.saturating_sub(1);
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Makes a call and drops its future early. Returns whether the call finished. The value of each
/// key is the key itself.
async fn call(client: &Client, key: &str, random: u64) -> bool {
    let other = format!("{key}-2");
    let polls = random / 8 % 6;
    match random % 4 {
        0 => {
            let keys = [key, &other];
            let found = poll_times(client.get_many(&keys), polls).await;
            let found = found.map(|found| found.expect("the server replies correctly"));
            for (item, key) in found.iter().flatten().zip(keys) {
                assert_eq!(item.as_ref().expect("each item exists").value, key);
            }
            found.is_some()
        }
        1 => poll_times(client.set(key, key, 0), polls).await.is_some(),
        _ => {
            let found = poll_times(client.get(key), polls).await;
            let found = found.map(|found| found.expect("the server replies correctly"));
            assert!(found.as_ref().is_none_or(|value| value.as_deref() == Some(key.as_bytes())));
            found.is_some()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_of_a_pool_mix_up_no_values() {
    drop_futures(|builder| builder.connections(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_of_shared_connections_mix_up_no_values() {
    drop_futures(|builder| builder.shared(2)).await;
}

async fn drop_futures(transport: impl Fn(Builder<Client>) -> Builder<Client>) {
    let drops = std::env::var("DROPS").map_or(20_000, |drops| drops.parse().unwrap());
    let server = FakeServer::start(|request| match request.random % 4 {
        0 => Action::ReplyAfter(Duration::from_micros(request.random / 4 % 300)),
        _ => Action::Reply,
    });
    let builder = Client::builder(format!("127.0.0.1:{}", server.port));
    let minute = Duration::from_secs(60);
    let client = transport(builder.timeout(minute).connect_timeout(minute)).build().unwrap();
    let (dropped, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks = (0..16_u64).map(|task| {
        let (client, dropped, done) = (client.clone(), Arc::clone(&dropped), Arc::clone(&done));
        tokio::spawn(async move {
            for n in 0.. {
                if dropped.load(Ordering::Relaxed) >= drops {
                    break;
                }
                let random = (task << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                let is_done = call(&client, &format!("key-{task}-{n}"), random).await;
                let count = if is_done { &done } else { &dropped };
                count.fetch_add(1, Ordering::Relaxed);
                // Yields to other tasks, because a future that is dropped after few polls does not
                // yield.
                tokio::task::yield_now().await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let (dropped, done) = (dropped.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
    assert!(done > dropped / 20, "{done} calls finished, {dropped} dropped");
    let (open, idle, waiting) = client.connections();
    assert!(open == idle && open <= 8 && waiting == 0, "{open} {idle} {waiting}");
    assert_eq!(client.get("key").await.unwrap().unwrap(), "key");
}
