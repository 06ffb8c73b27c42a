//! The integration tests of larder-replica, in one program.

mod election;
mod forwarding;
mod migration;
mod seeds;
mod simulation;
mod stream;
