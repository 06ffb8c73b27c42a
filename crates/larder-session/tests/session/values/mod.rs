//! Tests of values and replies that are longer than a buffer.

mod dumps;
mod large;
mod pressure;
