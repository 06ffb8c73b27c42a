//! Median and spread of a figure over several runs.

use larder_bench::median;
use serde::{Deserialize, Serialize};

/// Median, quartiles, minimum and maximum of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Minimum.
    pub min: f64,
    /// Lower quartile.
    pub lower_quartile: f64,
    /// Median.
    pub median: f64,
    /// Upper quartile.
    pub upper_quartile: f64,
    /// Maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of `numbers`; nothing without numbers.
    #[must_use]
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        Some(Self {
            min: *numbers.first()?,
            lower_quartile: quantile(&numbers, 0.25),
            median: median(numbers.iter().copied()),
            upper_quartile: quantile(&numbers, 0.75),
            max: *numbers.last()?,
        })
    }

    /// This median ÷ the median of `baseline`; nothing if that is 0.
    #[must_use]
    pub fn ratio(&self, baseline: &Self) -> Option<f64> {
        (baseline.median > 0.0).then(|| self.median / baseline.median)
    }
}

/// The quantile of at least one sorted number, by linear interpolation.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places in a short list"
)]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (lower, upper) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    lower + (upper - lower) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_five_and_of_two() {
        let five = Spread::of(vec![5.0, 1.0, 2.0, 100.0, 4.0]).unwrap();
        let expected =
            Spread { min: 1.0, lower_quartile: 2.0, median: 4.0, upper_quartile: 5.0, max: 100.0 };
        assert_eq!(five, expected);
        let two = Spread::of(vec![1.0, 2.0]).unwrap();
        assert_eq!((two.lower_quartile, two.median, two.upper_quartile), (1.25, 1.5, 1.75));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn ratios() {
        let of = |number| Spread::of(vec![number]).unwrap();
        assert_eq!(of(3.0).ratio(&of(2.0)), Some(1.5));
        assert_eq!(of(3.0).ratio(&of(0.0)), None);
    }
}
