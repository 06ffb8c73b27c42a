//! A session over the segment engine, 16 requests a turn: `cargo bench -p larder-session`. Times are a
//! turn's; the rate is requests.

#[path = "../examples/workload/mod.rs"]
mod workload;

use divan::Bencher;
use divan::counter::ItemsCount;
use workload::{BATCH, Conversation, batches};

fn main() {
    divan::main();
}

/// A turn of each kind of request, all hits.
#[divan::bench(args = ["get", "mg", "binary-get", "set", "ms"])]
fn poll(bencher: Bencher<'_, '_>, kind: &str) {
    let (mut conversation, batches) = (Conversation::begin(kind), batches(kind));
    let mut next = batches.iter().cycle();
    bencher
        .counter(ItemsCount::new(BATCH))
        .bench_local(|| conversation.poll(next.next().expect("it goes round")));
}
