//! Converts options to the keys and value sizes of the settings.

use super::Arguments;
use super::error::{ArgumentError, wrong};
use super::values::{log_normal, pair};
use crate::settings::{DataSize, Keys, Pattern};

impl Arguments {
    pub(super) fn keys(&self) -> Result<Keys, ArgumentError> {
        let whole = || wrong("key-pattern", &self.key_pattern, "two of R Z G S P, such as R:R");
        let (set, get) = self.key_pattern.split_once(':').ok_or_else(whole)?;
        Ok(Keys {
            prefix: self.key_prefix.clone(),
            minimum: self.key_minimum,
            maximum: self.key_maximum,
            set: self.pattern(set).ok_or_else(whole)?,
            get: self.pattern(get).ok_or_else(whole)?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "the middle of a range needs no last digit")]
    pub(super) fn pattern(&self, letter: &str) -> Option<Pattern> {
        let (minimum, maximum) = (self.key_minimum as f64, self.key_maximum as f64);
        match letter {
            "R" => Some(Pattern::Uniform),
            "S" => Some(Pattern::Sequential),
            "P" => Some(Pattern::Partitioned),
            "Z" => Some(Pattern::Zipf { exponent: self.key_zipf_exp }),
            "G" => Some(Pattern::Gaussian {
                median: self.key_median.unwrap_or(f64::midpoint(minimum, maximum)),
                deviation: self.key_stddev.unwrap_or((maximum - minimum) / 6.0),
            }),
            _ => None,
        }
    }

    pub(super) fn data_size(&self) -> Result<DataSize, ArgumentError> {
        if let Some(list) = &self.data_size_list {
            let sizes = list.split(',').map(pair::<usize, u32>).collect::<Option<Vec<_>>>();
            let sizes = sizes.filter(|sizes| sizes.iter().any(|(_, weight)| *weight > 0));
            let expected = "sizes with weights, such as 100:9,1000:1";
            return sizes
                .map(DataSize::List)
                .ok_or_else(|| wrong("data-size-list", list, expected));
        }
        if let Some(text) = &self.data_size_lognormal {
            let expected = "MEDIAN:SIGMA or MEDIAN:SIGMA:MAX, such as 200:1.5:100000";
            return log_normal(text).ok_or_else(|| wrong("data-size-lognormal", text, expected));
        }
        Ok(match self.data_size_range {
            Some((minimum, maximum)) if self.data_size_pattern.as_deref() == Some("S") => {
                DataSize::ByKey { minimum, maximum, keys: (self.key_minimum, self.key_maximum) }
            }
            Some((least, most)) => DataSize::Range(least, most),
            None => DataSize::Fixed(self.data_size),
        })
    }
}
