//! The program that `scripts/instructions` measures: `instructions REQUEST ROUNDS` answers that
//! many batches of 16 requests, one poll for each batch. The batches cycle through 4,096 of 100,000
//! items (keys of 20 bytes, values of 100). The script takes the difference of two runs to exclude
//! the start.

mod workload;

use workload::{Conversation, batches};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a request's name");
    let rounds: usize = arguments.next().and_then(|text| text.parse().ok()).expect("rounds");
    let mut conversation = Conversation::start(&kind);
    // Every run generates the same batches, so their cost is not in the difference of two runs.
    let batches = batches(&kind);
    let mut answered = 0;
    for batch in batches.iter().cycle().take(rounds) {
        answered += conversation.poll(batch);
    }
    assert!(kind == "nothing" || rounds == 0 || answered > 0, "the session has replied");
}
