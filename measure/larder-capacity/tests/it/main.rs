//! The integration tests of larder-capacity in one program.

mod fill;
mod hitratio;
mod simulate;
