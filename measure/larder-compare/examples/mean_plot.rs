//! Draws mean times with their standard deviations: reads a [`MeanPlot`] as JSON and writes SVG.

use larder_compare::MeanPlot;
use std::io::{self, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plot: MeanPlot = serde_json::from_reader(io::stdin())?;
    io::stdout().write_all(plot.svg()?.as_bytes())?;
    Ok(())
}
