//! The integration tests of larder-capacity, one program.

mod fill;
mod hitratio;
mod simulate;
