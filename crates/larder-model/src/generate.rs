//! Requests made up.
