//! The measurement of one stream.

use super::arguments::Arguments;
use super::error::Error;
use super::replay::{Replayed, replay};
use super::report::{self, Row};
use super::simulated::{Simulated, simulate};
use super::stream::{Footprint, Stream};
use larder_target::target::{OpenTarget, Target};

/// Measures one stream at each capacity on each server.
pub(super) struct Measurement<'m> {
    pub(super) arguments: &'m Arguments,
    pub(super) stream: &'m Stream,
    pub(super) footprint: Footprint,
}

impl Measurement<'_> {
    pub(super) fn measure(&self, rows: &mut Vec<Row>) -> Result<(), Error> {
        for memory in self.capacities() {
            let mut simulated = None;
            for target in self.arguments.targets()? {
                let row = self.row(target.as_ref(), memory, &mut simulated)?;
                report::print_row(&row)?;
                report::print_counted(&row, self.stream)?;
                rows.push(row);
            }
        }
        Ok(())
    }

    /// Returns the requested capacities in bytes. With `--command` and `--simulate-only`, `None`
    /// means 64 MiB. If a running server reports its limit, that limit replaces all requested
    /// capacities.
    fn capacities(&self) -> Vec<Option<u64>> {
        let given = self.arguments.server.memory_mb.or(self.stream.memory_mb).map(|mb| mb << 20);
        match self.arguments.footprint.as_slice() {
            [] => vec![given],
            shares => shares.iter().map(|share| Some(share.of(self.footprint.bytes))).collect(),
        }
    }

    fn row(
        &self,
        target: Option<&Target>,
        memory: Option<u64>,
        simulated: &mut Option<(u64, Simulated)>,
    ) -> Result<Row, Error> {
        let memory_mb = memory.map(|bytes| bytes.div_ceil(1 << 20));
        let open = |target: &Target| target.open(self.arguments.server.protocol, memory_mb);
        let mut server = target.map(open).transpose()?;
        let capacity =
            server.as_ref().map_or(memory.unwrap_or(64 << 20), |server| server.limit_bytes);
        let simulated = simulated.filter(|(of, _)| *of == capacity).unwrap_or_else(|| {
            (capacity, simulate(self.stream, capacity, self.arguments.overheads()))
        });
        let replayed = server.as_mut().map(|server| self.replay(server)).transpose()?;
        Ok(Row {
            stream: self.stream.name.clone(),
            server: target.map(Target::name),
            footprint: self.footprint,
            capacity_bytes: capacity,
            replayed,
            simulated: simulated.1,
        })
    }

    fn replay(&self, server: &mut OpenTarget) -> Result<Replayed, Error> {
        let mut connections = Vec::new();
        for _ in 0..self.arguments.connections {
            connections.push(server.connect()?);
        }
        replay(&mut connections, self.stream, self.arguments.pipeline).map_err(Error::Replay)
    }
}
