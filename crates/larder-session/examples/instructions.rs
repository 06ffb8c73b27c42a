//! The program that `scripts/instructions` measures. `instructions REQUEST ROUNDS` answers ROUNDS
//! batches of 16 requests, with one poll per batch. The batches cycle through 4,096 of 100,000
//! items (keys of 20 bytes, values of 100 bytes). The script subtracts the instruction counts of
//! two runs to exclude the startup.

mod workload;

use workload::{Conversation, batches};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a request's name");
    let rounds: usize = arguments.next().and_then(|text| text.parse().ok()).expect("rounds");
    let mut conversation = Conversation::start(&kind);
    // Every run generates the same batches, so the cost of generating them cancels in the
    // difference of two runs.
    let batches = batches(&kind);
    let mut answered = 0;
    for batch in batches.iter().cycle().take(rounds) {
        answered += conversation.poll(batch);
    }
    assert!(kind == "nothing" || rounds == 0 || answered > 0, "the session has replied");
}
