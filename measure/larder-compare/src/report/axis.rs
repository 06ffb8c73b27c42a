//! The vertical axis of a plot: its range and its ticks.

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic.
    Logarithmic,
}

impl Scale {
    /// Returns the scale's name in files and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Logarithmic => "logarithmic",
        }
    }
}

/// Maps values to positions on the axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    scale: Scale,
    first: f64,
    last: f64,
    /// The values of the ticks, including both ends.
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// Returns an axis whose ticks span all values, with a tolerance of 0.1 % at either end. A
    /// logarithmic axis shows zero and negative values at its lower end.
    pub(crate) fn of(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let ticks = match scale {
            Scale::Linear => linear(most),
            Scale::Logarithmic => {
                let positive = values.filter(|value| *value > 0.0);
                let least = positive.fold(f64::INFINITY, f64::min);
                if least.is_finite() { logarithmic(least, most) } else { vec![0.1, 1.0] }
            }
        };
        Self { scale, first: ticks[0], last: ticks[ticks.len() - 1], ticks }
    }

    /// Returns the position of a value, from 0 at the lower end to 1 at the upper end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (value, first, last) = match self.scale {
            Scale::Linear => (value, self.first, self.last),
            Scale::Logarithmic => {
                (value.max(self.first).log10(), self.first.log10(), self.last.log10())
            }
        };
        (value - first) / (last - first)
    }
}

/// Returns ticks from 0 in steps of 1, 2, 2.5 or 5 times a power of ten.
fn linear(most: f64) -> Vec<f64> {
    let most = if most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| step * 5.5 >= most).unwrap_or(power * 10.0);
    multiples(step, most)
}

fn multiples(step: f64, most: f64) -> Vec<f64> {
    let multiples = (0..).map(|number| f64::from(number) * step);
    let below = multiples.clone().take_while(|multiple| *multiple < most * 0.999);
    let count = below.count();
    multiples.take(count + 1).collect()
}

/// Returns ticks at 1, 2 and 5 times powers of ten. If these would be more than nine ticks, returns
/// only powers of ten.
fn logarithmic(least: f64, most: f64) -> Vec<f64> {
    let round = |leading: &[f64]| {
        let powers = (-12..=15).map(|power| 10f64.powi(power));
        let all: Vec<f64> =
            powers.flat_map(|power| leading.iter().map(move |l| l * power)).collect();
        let first = all.iter().rposition(|value| *value <= least * 1.001).unwrap_or(0);
        let last = all.iter().position(|value| *value >= most * 0.999);
        let last = last.unwrap_or(all.len() - 1).max(first + 1);
        all[first..=last].to_vec()
    };
    let fine = round(&[1.0, 2.0, 5.0]);
    if fine.len() <= 9 { fine } else { round(&[1.0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, values: &[f64]) -> Vec<f64> {
        Axis::of(scale, values.iter().copied()).ticks
    }

    #[test]
    fn linear_from_zero() {
        assert_eq!(ticks(Scale::Linear, &[30.0, 93.0]), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(Scale::Linear, &[0.0]).first(), Some(&0.0));
        assert_eq!(ticks(Scale::Linear, &[1e6]).last(), Some(&1e6));
    }

    #[test]
    fn logarithmic_around_the_values() {
        assert_eq!(ticks(Scale::Logarithmic, &[30.0, 93.0]), [20.0, 50.0, 100.0]);
        assert_eq!(ticks(Scale::Logarithmic, &[0.0, 3.0, 9000.0]).len(), 5);
        assert_eq!(ticks(Scale::Logarithmic, &[7.0]), [5.0, 10.0]);
        assert_eq!(ticks(Scale::Logarithmic, &[0.0]), [0.1, 1.0]);
    }

    #[test]
    fn places() {
        let linear = Axis::of(Scale::Linear, [100.0].into_iter());
        assert!((linear.place(25.0) - 0.25).abs() < 1e-9);
        let logarithmic = Axis::of(Scale::Logarithmic, [1.0, 100.0].into_iter());
        assert!((logarithmic.place(10.0) - 0.5).abs() < 1e-9);
        assert!(logarithmic.place(0.0).abs() < 1e-9);
    }
}
