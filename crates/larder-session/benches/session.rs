//! Measures a session with the segment engine and 16 requests per poll: `cargo bench -p
//! larder-session`. Times are per poll, and rates are in requests per second.

#[path = "../examples/workload/mod.rs"]
mod workload;

use divan::Bencher;
use divan::counter::ItemsCount;
use workload::{BATCH, Conversation, batches};

fn main() {
    divan::main();
}

/// Measures polls with requests of one kind. All lookups are hits.
#[divan::bench(args = ["get", "mg", "binary-get", "set", "ms"])]
fn poll(bencher: Bencher<'_, '_>, kind: &str) {
    let (mut conversation, batches) = (Conversation::start(kind), batches(kind));
    let mut next = batches.iter().cycle();
    bencher
        .counter(ItemsCount::new(BATCH))
        .bench_local(|| conversation.poll(next.next().expect("a cycle never ends")));
}
