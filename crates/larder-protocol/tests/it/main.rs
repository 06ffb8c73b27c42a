//! The integration tests of larder-protocol, one program.

mod answers;
mod roundtrip;
