//! Assertions that cost too much to be checked in production.

/// Asserts what would show that memory was corrupted, but costs another look at memory: checked in
/// tests, in debug builds, by fuzzing and with `--cfg strict`, and compiled otherwise but not run.
///
/// Not under loom: what an assertion reads would order the threads that a model wants to race.
macro_rules! strict_assert {
    ($($arguments:tt)+) => {
        if cfg!(all(any(debug_assertions, test, fuzzing, strict), not(loom))) {
            assert!($($arguments)+);
        }
    };
}
