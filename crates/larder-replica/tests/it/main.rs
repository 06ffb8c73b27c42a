//! The integration tests of larder-replica, one program.

mod election;
mod moves;
mod rare;
mod seeds;
mod simulation;
