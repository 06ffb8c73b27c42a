//! Plots of means with standard deviations, for measurements that are not those of a suite.

use super::draw::Drawing;
use super::figure::Figure;
use crate::Error;
use serde::Deserialize;

/// Mean times by number of threads.
#[derive(Clone, Debug, Deserialize)]
pub struct MeanPlot {
    /// The title.
    pub title: String,
    /// The numbers of threads, in ascending order.
    pub threads: Vec<u32>,
    /// What is compared.
    pub series: Vec<MeanSeries>,
}

/// The times of one of those that are compared.
#[derive(Clone, Debug, Deserialize)]
pub struct MeanSeries {
    /// Its name.
    pub name: String,
    /// Determines its colour and marker.
    pub place: usize,
    /// Mean and standard deviation in µs for each number of threads; nothing where there is no result.
    pub points: Vec<Option<(f64, f64)>>,
}

impl MeanPlot {
    /// The text of an SVG file.
    ///
    /// # Errors
    /// The plot cannot be drawn.
    pub fn svg(&self) -> Result<String, Error> {
        Ok(Drawing::svg(&Figure::of_means(self))?.file())
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
