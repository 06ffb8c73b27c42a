//! Values and answers that are longer than a buffer.

mod dumps;
mod large;
mod pressure;
