//! Writes the report of a comparison: `results.json`, `results.csv`, `results.md`, `report.html`,
//! and plots.

mod axis;
mod conclusions;
mod contents;
mod csv;
mod draw;
mod figure;
mod html;
pub(crate) mod markdown;
pub(crate) mod means;
mod style;
mod view;

use super::Error;
use super::plan::Cell;
use super::results::{Record, Setup};
use super::summary::{Summary, Table};
use axis::Scale;
use contents::PLOTS;
pub(crate) use contents::Report;
use draw::Drawing;
use figure::Figure;
use serde::Serialize;
use std::path::Path;
use view::View;

impl<'r> Report<'r> {
    /// Writes all files of the report. Replaces those of an earlier report.
    ///
    /// # Errors
    /// A plot cannot be drawn, a file cannot be written, or old plots cannot be removed.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        write(&folder.join("results.json"), self.json().as_bytes())?;
        write(&folder.join("results.csv"), csv::csv(self).as_bytes())?;
        write(&folder.join("results.md"), markdown::markdown(self).as_bytes())?;
        let plots = folder.join(PLOTS);
        if plots.exists() {
            std::fs::remove_dir_all(&plots).map_err(|error| Error::io(&plots, error))?;
        }
        std::fs::create_dir_all(&plots).map_err(|error| Error::io(&plots, error))?;
        let mut sections = Vec::new();
        for view in View::all(&self.summary) {
            let drawings = self.draw(&view, &plots)?;
            sections.push((view, drawings));
        }
        let mut profile_drawings = Vec::new();
        for table in &self.summary.tables {
            profile_drawings.push(self.draw_profiles(table, &plots)?);
        }
        write(
            &folder.join("report.html"),
            html::html(self, &sections, &profile_drawings).as_bytes(),
        )
    }

    /// Draws the plots of a view, linear and logarithmic, and writes them as SVG and PNG.
    fn draw(&self, view: &View, plots: &Path) -> Result<Vec<Drawing>, Error> {
        let mut drawings = Vec::new();
        for metric in view.metrics(&self.summary) {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let figure = Figure::of(&self.summary, view, metric, scale);
                let path = plots.join(figure.file_name());
                let drawing = Drawing::svg(&figure)?;
                write(&path.with_added_extension("svg"), drawing.file().as_bytes())?;
                draw::write_png(&figure, &path.with_added_extension("png"))?;
                drawings.push(drawing);
            }
        }
        Ok(drawings)
    }

    /// Draws two plots for one combination, and writes them as SVG and PNG: the latency by
    /// percentile if a load succeeded, and the rate over time if a successful load lasts longer
    /// than two seconds.
    fn draw_profiles(&self, table: &Table, plots: &Path) -> Result<Vec<Drawing>, Error> {
        let mut drawings = Vec::new();
        for figure in [Figure::percentiles(table), Figure::over_time(table)].into_iter().flatten() {
            let path = plots.join(figure.file_name());
            let drawing = Drawing::svg(&figure)?;
            write(&path.with_added_extension("svg"), drawing.file().as_bytes())?;
            draw::write_png(&figure, &path.with_added_extension("png"))?;
            drawings.push(drawing);
        }
        Ok(drawings)
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'r> {
            setup: &'r Setup,
            summary: &'r Summary,
            failed: Vec<FailedCell<'r>>,
            disturbed: Vec<&'r Cell>,
            cells: &'r [Record],
        }
        #[derive(Serialize)]
        struct FailedCell<'r> {
            cell: &'r Cell,
            reason: &'r str,
        }
        let failed = |record: &'r Record| {
            record.failure().map(|reason| FailedCell { cell: &record.cell, reason })
        };
        let disturbed = self.records.iter().filter(|record| record.is_disturbed());
        let json = Json {
            setup: self.setup,
            summary: &self.summary,
            failed: self.records.iter().filter_map(failed).collect(),
            disturbed: disturbed.map(|record| &record.cell).collect(),
            cells: self.records,
        };
        serde_json::to_string_pretty(&json).expect("plain data is JSON")
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(|error| Error::io(path, error))
}

#[cfg(test)]
mod tests;
