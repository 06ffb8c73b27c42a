//! The data of a report.

use crate::results::{Record, Setup};
use crate::summary::Summary;

/// The data of a report.
#[derive(Debug)]
pub(crate) struct Report<'r> {
    /// The suite, the servers and the machine of the measurement.
    pub(crate) setup: &'r Setup,
    /// The result of each cell.
    pub(crate) records: &'r [Record],
    /// The tables.
    pub(crate) summary: Summary,
}

/// Name of the plots' directory in the output directory.
pub(super) const PLOTS: &str = "plots";

impl<'r> Report<'r> {
    /// Returns a report of these records.
    pub(crate) fn of(setup: &'r Setup, records: &'r [Record]) -> Self {
        Self { setup, records, summary: Summary::of(setup, records) }
    }
}
