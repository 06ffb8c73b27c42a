//! Assertions that are too expensive for production.

/// An assertion that would detect corrupted memory but needs another read of memory. It runs in
/// tests, in debug builds, in fuzzing and with `--cfg strict`. Other builds compile it but do not
/// run it.
///
/// Loom models do not run it either: its reads would order threads whose race the model checks.
macro_rules! strict_assert {
    ($($arguments:tt)+) => {
        if cfg!(all(any(debug_assertions, test, fuzzing, strict), not(loom))) {
            assert!($($arguments)+);
        }
    };
}
