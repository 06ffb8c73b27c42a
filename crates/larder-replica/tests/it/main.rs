//! The integration tests of larder-replica, in one program.

mod election;
mod migration;
mod seeds;
mod simulation;
mod stream;
