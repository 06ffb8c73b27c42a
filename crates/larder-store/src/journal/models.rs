//! Model checks of the ring. `loom` lets each load return every value that its ordering allows.
//! `shuttle` tries thousands of orders of steps. Run with
//!
//! ```text
//! RUSTFLAGS='--cfg loom' cargo test -p larder-store --lib --target-dir target/loom models
//! RUSTFLAGS='--cfg shuttle' cargo test -p larder-store --lib --target-dir target/shuttle models
//! ```
//!
//! The models detect each of these mutations: an entry that is written before it is announced;
//! `append` or `take` without its fence (loom); an entry that is published with `Relaxed` (loom).

use super::ring::model::a_reader_takes_no_torn_entry;

#[cfg(loom)]
#[test]
fn loom_models_of_the_ring() {
    loom::model(|| {
        a_reader_takes_no_torn_entry(|run| {
            let thread = loom::thread::spawn(run);
            Box::new(move || thread.join().unwrap())
        });
    });
}

#[cfg(shuttle)]
#[test]
fn models_of_the_ring() {
    let model = || {
        a_reader_takes_no_torn_entry(|run| {
            let thread = shuttle::thread::spawn(run);
            Box::new(move || thread.join().unwrap())
        });
    };
    shuttle::check_random(model, 2000);
    shuttle::check_pct(model, 2000, 3);
}
