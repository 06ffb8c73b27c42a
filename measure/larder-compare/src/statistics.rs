//! Computes the median and the spread of a figure over several runs.

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
    /// Returns the spread of `numbers`, or `None` if they are empty.
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

    /// Returns this median ÷ the median of `baseline`, or `None` if the baseline's median is not
    /// positive.
    #[must_use]
    pub fn ratio(&self, baseline: &Self) -> Option<f64> {
        (baseline.median > 0.0).then(|| self.median / baseline.median)
    }
}

/// A confidence interval for the ratio of the figures of two servers or two versions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Confidence level: 0.9 for three runs on each side, 0.94 for three runs on one side and four
    /// on the other, and at least 0.95 otherwise.
    pub level: f64,
}

impl Interval {
    /// Returns the exact, distribution-free confidence interval of the ratio `ours` ÷ `theirs`,
    /// from the rank-sum test of Wilcoxon, Mann and Whitney. The ends of the interval are two
    /// elements of the sorted list of all ratios of a number in `ours` to a number in `theirs`.
    /// Source: L. E. Moses; see Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd
    /// edition, section 4.3. The book describes the method for differences; this function applies
    /// it to logarithms. Returns `None` if either side has fewer than three numbers, or if a number
    /// is not positive.
    #[must_use]
    pub fn of_ratio(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let few = ours.len().min(theirs.len()) < RUNS_MIN;
        if few || ours.iter().chain(theirs).any(|number| *number <= 0.0) {
            return None;
        }
        let mut ratios: Vec<f64> =
            ours.iter().flat_map(|our| theirs.iter().map(move |their| our / their)).collect();
        ratios.sort_by(f64::total_cmp);
        // At each end, excludes the largest number of ratios for which the error probability is
        // still at most 2.5 %. With too few runs, such as three on each side, the probability
        // exceeds 2.5 % even though no ratio is excluded.
        let errors = rank_sum_probabilities(ours.len(), theirs.len());
        let allowed = errors.iter().take_while(|error| **error <= ERROR_MAX / 2.0).count();
        let left_out = allowed.saturating_sub(1);
        let (low, high) = (ratios[left_out], ratios[ratios.len() - 1 - left_out]);
        Some(Self { low, high, level: 1.0 - 2.0 * errors[left_out] })
    }

    /// Returns whether the interval contains 1. If so, the difference is not significant.
    #[must_use]
    pub fn contains_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }
}

const RUNS_MIN: usize = 3;
const ERROR_MAX: f64 = 0.05;

/// Returns the cumulative distribution of the Mann–Whitney statistic for samples of these sizes:
/// entry `k` is the probability that the number of `theirs` is larger than the number of `ours` in
/// at most `k` pairs, if all numbers have the same distribution. The probability of exactly `k`
/// such pairs is proportional to coefficient `k` of a Gaussian binomial coefficient.
#[expect(clippy::cast_precision_loss, reason = "numbers of runs")]
fn rank_sum_probabilities(ours: usize, theirs: usize) -> Vec<f64> {
    let mut each = vec![0.0; ours * theirs + 1];
    each[0] = 1.0;
    for number in 1..=ours {
        // Multiplies by (1 - q^(theirs + number)), divides by (1 - q^number), and scales the sum to
        // 1.
        let scale = number as f64 / (theirs + number) as f64;
        for pairs in (theirs + number..each.len()).rev() {
            each[pairs] -= each[pairs - theirs - number];
        }
        for pairs in number..each.len() {
            each[pairs] += each[pairs - number];
        }
        each.iter_mut().for_each(|part| *part *= scale);
    }
    let mut sum = 0.0;
    each.iter()
        .map(|part| {
            sum += part;
            sum
        })
        .collect()
}

/// Returns a quantile of sorted numbers by linear interpolation. There must be at least one number.
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
    fn rank_sums() {
        // Three of `ours` and three of `theirs` can be in 20 orders. Of these, 1, 1, 2, 3 and 3
        // orders have 0, 1, 2, 3 and 4 pairs in which the number of `theirs` is larger.
        let three = rank_sum_probabilities(3, 3);
        for (pairs, orders) in [1.0, 2.0, 4.0, 7.0, 10.0].into_iter().enumerate() {
            assert!((three[pairs] - orders / 20.0).abs() < 1e-12, "{pairs}: {three:?}");
        }
        assert!((three[9] - 1.0).abs() < 1e-12);
        // According to a calculation with integers instead of floating-point numbers, the critical
        // value at 2.5 % for 31 numbers on each side is 341 pairs.
        let many = rank_sum_probabilities(31, 31);
        let critical = many.iter().take_while(|error| **error <= 0.025).count() - 1;
        assert_eq!(critical, 341);
        assert!((many[960] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn intervals_of_ratios() {
        let of = |ours: &[f64], theirs: &[f64]| Interval::of_ratio(ours, theirs);
        let same = of(&[10.0, 11.0, 12.0, 13.0], &[10.5, 11.5, 12.5, 9.5]).unwrap();
        assert!(same.contains_one() && (same.level - (1.0 - 2.0 / 70.0)).abs() < 1e-12);
        let twice = of(&[20.0, 21.0, 22.0], &[10.0, 10.5, 11.0]).unwrap();
        assert!(!twice.contains_one() && (twice.level - 0.9).abs() < 1e-12, "{twice:?}");
        assert!((twice.low - 20.0 / 11.0).abs() < 1e-12 && (twice.high - 2.2).abs() < 1e-12);
        // One outlier in seven runs does not hide a difference.
        let ours = [20.0, 20.5, 21.0, 21.5, 22.0, 19.5, 1.0];
        let theirs = [10.0, 10.5, 11.0, 9.5, 9.8, 10.2, 10.4];
        let interval = of(&ours, &theirs).unwrap();
        assert!(interval.low > 1.5 && interval.level >= 0.95, "{interval:?}");
        assert_eq!(of(&[1.0, 2.0], &[1.0, 2.0, 3.0]), None);
        assert_eq!(of(&[1.0, 2.0, 0.0], &[1.0, 2.0, 3.0]), None);
    }

    #[test]
    fn ratios() {
        let of = |number| Spread::of(vec![number]).unwrap();
        assert_eq!(of(3.0).ratio(&of(2.0)), Some(1.5));
        assert_eq!(of(3.0).ratio(&of(0.0)), None);
    }
}
