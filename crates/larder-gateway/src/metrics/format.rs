//! The formats of a scrape, and the choice among them by `Accept`.

/// A format in which metrics are exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus's text format, the default.
    Text,
    /// The text format of OpenMetrics.
    OpenMetrics,
    /// Prometheus's protobuf format, the only format with native histograms.
    Protobuf,
}

impl Format {
    /// Returns the value of `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }

    /// Returns the preferred format of an `Accept` header: the supported format with the highest
    /// `q`. If several have the highest `q`, the first one is preferred. Without a supported
    /// format, returns `Text`.
    pub(crate) fn accepted(accept: &str) -> Self {
        let mut best = (Self::Text, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let format = match parts.next() {
                Some("application/openmetrics-text") => Self::OpenMetrics,
                Some("application/vnd.google.protobuf") => Self::Protobuf,
                Some("text/plain" | "text/*" | "*/*") => Self::Text,
                _ => continue,
            };
            let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
            let quality = value(&parameters, "q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
            if format.is_written_as(&parameters) && quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    /// Returns whether this crate can write the format with the version and encoding in these
    /// parameters.
    fn is_written_as(self, parameters: &[(&str, &str)]) -> bool {
        match self {
            Self::Text => true,
            Self::OpenMetrics => value(parameters, "version").is_none_or(|v| v == "1.0.0"),
            Self::Protobuf => value(parameters, "encoding") == Some("delimited"),
        }
    }
}

fn value<'v>(parameters: &[(&str, &'v str)], name: &str) -> Option<&'v str> {
    parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_with_the_highest_q_is_chosen() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                        encoding=delimited";
        let openmetrics = "application/openmetrics-text;version=1.0.0";
        for (accept, expected) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,application/xhtml+xml", Format::Text),
            (openmetrics, Format::OpenMetrics),
            (protobuf, Format::Protobuf),
            ("application/openmetrics-text; version=0.0.1", Format::Text),
            ("application/vnd.google.protobuf;encoding=text", Format::Text),
            // The headers that Prometheus sends: the first without native histograms, the second
            // with them.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,\
                 */*;q=0.3",
                Format::OpenMetrics,
            ),
            (&format!("{protobuf};q=0.6,{openmetrics};q=0.5,*/*;q=0.2"), Format::Protobuf),
            (&format!("{protobuf};q=0.1,text/plain;q=0.9"), Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), expected, "{accept}");
        }
    }
}
