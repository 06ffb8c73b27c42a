//! Plots of means with standard deviations, for measurements outside of suites.

use super::axis::{Axis, Scale};
use super::draw::Drawing;
use super::figure::{Figure, Point, Series};
use crate::Error;
use crate::metric::Unit;
use crate::statistics::Spread;
use serde::Deserialize;

/// A plot of mean times by number of threads.
#[derive(Clone, Debug, Deserialize)]
pub struct MeanPlot {
    /// The title.
    pub title: String,
    /// The numbers of threads, in ascending order.
    pub threads: Vec<u32>,
    /// The compared clients.
    pub series: Vec<MeanSeries>,
}

/// The times of one client.
#[derive(Clone, Debug, Deserialize)]
pub struct MeanSeries {
    /// Name of the client.
    pub name: String,
    /// Index of the client's colour and marker.
    pub place: usize,
    /// Mean and standard deviation in µs for each number of threads; `None` without a result.
    pub points: Vec<Option<(f64, f64)>>,
}

impl MeanPlot {
    /// Returns the text of an SVG file.
    ///
    /// # Errors
    /// The plot cannot be drawn.
    pub fn svg(&self) -> Result<String, Error> {
        Ok(Drawing::svg(&self.figure())?.file())
    }

    /// Returns the plot of means with their standard deviations by number of threads. The lower
    /// ends of the bars do not influence the range of the axis, because a mean minus its deviation
    /// can be negative. The lower end of the axis cuts off longer bars.
    fn figure(&self) -> Figure {
        let point = |name: &str, threads: u32, found: Option<(f64, f64)>| {
            let spread = found.and_then(|(mean, deviation)| {
                Spread::of(vec![mean - deviation, mean, mean + deviation])
            });
            let micros = |value| Unit::Micros.quantity(value);
            let value = found.map_or_else(
                || "no result".to_owned(),
                |(mean, deviation)| format!("{} ± {}", micros(mean), micros(deviation)),
            );
            let tip = format!("{name}, {threads}: {value}");
            Point { spread, failed: false, disturbed: false, tip }
        };
        let series: Vec<Series> = (self.series.iter())
            .map(|series| Series {
                name: series.name.clone(),
                place: series.place,
                points: (self.threads.iter().zip(&series.points))
                    .map(|(threads, found)| point(&series.name, *threads, *found))
                    .collect(),
            })
            .collect();
        let spreads = series.iter().flat_map(|s| &s.points).filter_map(|point| point.spread);
        let values: Vec<f64> = spreads.flat_map(|spread| [spread.median, spread.max]).collect();
        let scale = Scale::Logarithmic;
        Figure {
            title: self.title.clone(),
            scale,
            unit: Unit::Micros,
            axis: Axis::of(scale, values.iter().copied()),
            varies: "Threads",
            ticks: self.threads.iter().map(ToString::to_string).collect(),
            joined: true,
            absent: Vec::new(),
            slug: self.title.clone(),
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_whiskers_and_tips() {
        let series =
            |name: &str, place, points| MeanSeries { name: name.to_owned(), place, points };
        let plot = MeanPlot {
            title: "Thread times".to_owned(),
            threads: vec![1, 64],
            series: vec![
                series("one", 0, vec![Some((30.0, 5.0)), Some((2000.0, 2500.0))]),
                series("other", 1, vec![Some((90.0, 1.0)), None]),
            ],
        };
        let svg = plot.svg().unwrap();
        for text in ["Thread times", "one, 64: 2 ms ± 2.5 ms", "other, 64: no result"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
