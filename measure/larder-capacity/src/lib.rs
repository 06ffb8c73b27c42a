//! The capacity of a cache: how many items its memory holds ([`fill`]), and how many requests it misses
//! ([`hitratio`]), next to simulated policies ([`simulate`]).
#![forbid(unsafe_code)]

pub mod fill;
pub mod hitratio;
pub mod simulate;
mod values;
