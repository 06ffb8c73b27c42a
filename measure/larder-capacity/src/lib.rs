//! Measures the capacity of a cache: the number of items in its memory ([`fill`]) and its miss
//! ratio ([`hitratio`]), compared with simulated eviction policies ([`simulate`]).
#![forbid(unsafe_code)]

pub mod fill;
pub mod hitratio;
pub mod simulate;
mod values;
