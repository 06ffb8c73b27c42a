//! Work to be counted: `instructions REQUEST ROUNDS` answers that many batches of 16 requests, each
//! for another of 100,000 items (keys of 20 bytes, values of 100), in one turn each. Counting two runs
//! and taking the difference leaves the requests alone; `scripts/instructions` does.

mod workload;

use workload::{Conversation, batches};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a request's name");
    let rounds: usize = arguments.next().and_then(|text| text.parse().ok()).expect("rounds");
    let mut conversation = Conversation::begin();
    // All batches are written before: drawing them is not counted twice.
    let batches = batches(&kind);
    let mut answered = 0;
    for batch in batches.iter().cycle().take(rounds) {
        answered += conversation.turn(batch);
    }
    assert!(kind == "nothing" || rounds == 0 || answered > 0, "somebody answers");
}
