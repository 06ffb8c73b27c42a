//! The data of a report.

use crate::results::{Record, Setup};
use crate::summary::Summary;

/// The data of a report.
#[derive(Debug)]
pub(crate) struct Report<'r> {
    /// The measured suite and servers, and the machine.
    pub(crate) setup: &'r Setup,
    /// The result of each cell.
    pub(crate) records: &'r [Record],
    /// The tables.
    pub(crate) summary: Summary,
}

/// Name of the directory for plots in the output directory.
pub(super) const PLOTS: &str = "plots";

impl<'r> Report<'r> {
    /// Returns a report of these records.
    pub(crate) fn of(setup: &'r Setup, records: &'r [Record]) -> Self {
        Self { setup, records, summary: Summary::of(setup, records) }
    }
}
