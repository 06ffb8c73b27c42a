//! Reports metrics through the crate `metrics`.

pub(super) use ::metrics::{Counter, Gauge, Histogram};
use ::metrics::{Label, Unit, describe_counter, describe_gauge, describe_histogram};

/// The labels of a series: names and values.
pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

pub(super) fn counter(name: &'static str, labels: Labels<'_>) -> Counter {
    ::metrics::counter!(name, owned(labels))
}

pub(super) fn gauge(name: &'static str, labels: Labels<'_>) -> Gauge {
    ::metrics::gauge!(name, owned(labels))
}

pub(super) fn histogram(name: &'static str, labels: Labels<'_>) -> Histogram {
    ::metrics::histogram!(name, owned(labels))
}

fn owned(labels: Labels<'_>) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect()
}

/// Registers the help texts of metrics. `names` contains pairs of a name and a help text. The
/// suffix of a name determines the kind of its metric.
pub(super) fn describe(names: &[(&'static str, &'static str)]) {
    for (name, help) in names {
        match *name {
            name if name.ends_with("_seconds") => describe_histogram!(name, Unit::Seconds, *help),
            name if name.ends_with("_total") => describe_counter!(name, *help),
            name => describe_gauge!(name, *help),
        }
    }
}
