//! Assertions that cost too much to be checked in production.

/// An assertion that would detect corrupted memory, but needs another read of memory. It is checked in
/// tests, in debug builds, by fuzzing and with `--cfg strict`; other builds compile it but do not run
/// it.
///
/// Loom models do not run it either: its reads would order threads that a model wants to race.
macro_rules! strict_assert {
    ($($arguments:tt)+) => {
        if cfg!(all(any(debug_assertions, test, fuzzing, strict), not(loom))) {
            assert!($($arguments)+);
        }
    };
}
