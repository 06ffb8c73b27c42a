//! The statistics table: requirements for every row, and the generated documentation.
//!
//! `LARDER_WRITE_DOCS=1 cargo test -p larder-server --test it statistics::` writes the tables of
//! `docs/statistics.md` and `docs/metrics.md`.

use crate::common::pages::{check_documentation, replaced, root};
use larder_operations::{ClassCounters, Limits, ThreadCounters};
use larder_server::log::verbosity::Verbosity;
use larder_server::memory::memory_file::StartState;
use larder_server::memory::slab_classes;
use larder_server::options::Options;
use larder_server::process::life_cycle::LifeCycle;
use larder_server::server::{AccessControl, Server};
use larder_server::stats::{Kind, Metric, PAGES, Page, Row, metric_help, visit_metrics};
use larder_session::Settings;
use larder_store::segment;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The prefix of process metrics in Prometheus client libraries.
const PROCESS: &str = "process_";
/// The prefix of Larder's other metrics.
const PREFIX: &str = "larder_";

fn rows() -> impl Iterator<Item = &'static Row> {
    PAGES.into_iter().flat_map(Page::rows)
}

fn metrics() -> impl Iterator<Item = (&'static Row, Metric)> {
    rows().filter_map(|row| row.metric.map(|metric| (row, metric)))
}

#[test]
fn every_help_is_a_sentence() {
    for row in rows() {
        let starts = row.help.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit());
        let whole = row.help.len() > 10 && row.help.ends_with('.') && !row.help.contains("  ");
        assert!(starts && whole, "{}: {:?}", row.name, row.help);
        assert!(!row.help.contains(['|', '\n']), "{}: {:?}", row.name, row.help);
    }
}

#[test]
fn a_page_has_each_name_once() {
    for page in PAGES {
        let mut names = BTreeSet::new();
        for row in page.rows() {
            assert!(names.insert(row.name), "{} of {}", row.name, page.name);
        }
        assert!(names.len() >= 3, "{}", page.name);
    }
}

#[test]
fn constants_are_not_metrics() {
    for row in rows() {
        assert_eq!(row.kind == Kind::Constant, row.constant_value().is_some(), "{}", row.name);
        let number = matches!(row.kind, Kind::Counter | Kind::Gauge);
        assert!(number || row.metric.is_none(), "{}", row.name);
    }
}

/// See <https://prometheus.io/docs/practices/naming>.
#[test]
fn names_of_metrics_follow_the_conventions_of_prometheus() {
    let snake = |name: &str| {
        let first = name.starts_with(|c: char| c.is_ascii_lowercase());
        let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        first && name.chars().all(rest) && !name.contains("__") && !name.ends_with('_')
    };
    for (row, metric) in metrics() {
        let name = metric.name;
        assert!(name.starts_with(PREFIX) || name.starts_with(PROCESS), "{name}");
        assert!(snake(name) && metric.labels.iter().all(|(label, _)| snake(label)), "{name}");
        let (base, total) = match name.strip_suffix("_total") {
            Some(base) => (base, true),
            None => (name, false),
        };
        assert_eq!(total, row.kind == Kind::Counter, "{name}");
        let unit = ["bytes", "seconds"].into_iter().find(|unit| base.ends_with(unit));
        assert_eq!(unit.unwrap_or_default(), row.unit.base().0, "{name}");
        for other in
            ["micro", "milli", "kilo", "kib", "mib", "percent", "_sum", "_count", "_bucket"]
        {
            assert!(!base.contains(other), "{name}");
        }
    }
}

/// Rows of one metric have the same kind, unit and label names, and different label values.
#[test]
fn a_metric_has_each_set_of_labels_once() {
    let mut seen = BTreeSet::new();
    let mut kinds = BTreeMap::new();
    for (row, metric) in metrics() {
        assert!(seen.insert((metric.name, metric.labels)), "{metric:?} of {}", row.name);
        let labels: Vec<&str> = metric.labels.iter().map(|(label, _)| *label).collect();
        let kind = (format!("{:?} {:?}", row.kind, row.unit.base().0), labels);
        let first = kinds.entry(metric.name).or_insert_with(|| kind.clone());
        assert_eq!(*first, kind, "{}", metric.name);
    }
    assert!(seen.len() > 50, "{}", seen.len());
}

/// Returns the text of the sources in all `crates/*/src`.
fn sources() -> String {
    let mut folders = vec![];
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        folders.push(entry.unwrap().path().join("src"));
    }
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(path).unwrap();
            }
        }
    }
    text
}

/// Every counter must be incremented somewhere in the code; otherwise, its statistic should be a
/// constant. Every counter must be shown by a row; otherwise, the counter should be removed.
#[test]
fn every_counter_is_raised_and_shown() {
    let (thread, class) = (ThreadCounters::default(), ClassCounters::default());
    let names: BTreeSet<&str> = rows().map(|row| row.name).collect();
    let sources = sources();
    for (name, _) in thread.each().chain(class.each()) {
        assert!(sources.contains(&format!(".{name}.add(")), "nothing raises {name}");
        assert!(names.contains(name), "no row shows {name}");
    }
}

/// Creates a server without connections.
fn server() -> Server {
    let options = Options::read(["larderd", "-t", "2", "-o", "idle_timeout=9"].map(Into::into))
        .unwrap_or_else(|_| panic!("these options are good"));
    let classes = || slab_classes::size_classes(true);
    let cache = segment::Cache::new(segment::Config {
        limit_bytes: 8 << 20,
        cas: true,
        classes: classes(),
        seed: 1,
        evict: true,
        item_size_max: options.max_item_size,
        threads: options.threads,
        size_exponent: options.size_exponent(),
        flash: None,
    })
    .unwrap();
    let settings = Settings {
        read_only: false,
        forwards: false,
        limits: Limits {
            item_size_max: options.max_item_size,
            classes: classes(),
            prefix_delimiter: b':',
        },
        flush_enabled: true,
        requests_per_poll: 64,
        output_max: 1 << 16,
        for_gateway: false,
        resp_databases: 1,
    };
    let (life, _) = LifeCycle::new().unwrap();
    let (access, verbosity) = (AccessControl::default(), Verbosity::start_log(0));
    let cache = larder_store::erased::Cache::new(cache);
    Server::new(options, settings, access, cache, life, verbosity, StartState::cold())
}

#[test]
fn every_metric_has_a_number() {
    let server = server();
    let counters = &server.counters;
    counters.iter().for_each(|counters| counters.thread.get_misses.add(3));
    counters[1].class(Some(2), |class| class.get_hits.add(5));
    let mut values = BTreeMap::new();
    visit_metrics(&server, &mut |row, metric, value| {
        assert!(value.is_finite() && value >= 0.0, "{}: {value}", metric.name);
        assert_eq!(values.insert(row.name, value), None, "{} is shown once", row.name);
    });
    for (row, metric) in metrics() {
        let may_be_left_out = row.condition.is_some();
        assert!(may_be_left_out || values.contains_key(row.name), "{}", metric.name);
    }
    assert_eq!((values["get_misses"], values["get_hits"]), (6.0, 5.0));
    assert_eq!(values["limit_maxbytes"], f64::from(64 << 20));
    assert!(values.contains_key("idle_kicks") && !values.contains_key("ssl_proto_errors"));
}

/// Returns the documentation of statistics with regenerated tables.
fn documented(text: &str) -> String {
    PAGES.iter().fold(text.to_owned(), |text, page| replaced(&text, page.name, &tables(page)))
}

/// Returns a table of all metrics, with their labels, their help, and the names of the same values
/// in `stats`.
fn metrics_table() -> String {
    let mut by_name: BTreeMap<&str, Vec<(&Row, Metric)>> = BTreeMap::new();
    for (row, metric) in metrics() {
        by_name.entry(metric.name).or_default().push((row, metric));
    }
    let mut text = "| metric | labels | meaning | in `stats` |\n|---|---|---|---|\n".to_owned();
    for (name, rows) in by_name {
        let sets = rows.iter().filter(|(_, metric)| !metric.labels.is_empty());
        let sets: Vec<String> = sets.map(|(_, metric)| labels(*metric)).collect();
        let names: Vec<String> = rows.iter().map(|(row, _)| format!("`{}`", row.name)).collect();
        let (sets, names) = (sets.join("<br>"), names.join("<br>"));
        text += &format!("| `{name}` | {sets} | {} | {names} |\n", metric_help(rows[0].0, name));
    }
    text + "\n"
}

fn labels(metric: Metric) -> String {
    let labels = metric.labels.iter().map(|(name, value)| format!("{name}={value}"));
    format!("`{}`", labels.collect::<Vec<_>>().join(", "))
}

/// Returns a page's table of variable statistics, followed by its table of constants.
fn tables(page: &Page) -> String {
    let mut text = "| name | kind | meaning |\n|---|---|---|\n".to_owned();
    for row in page.rows().filter(|row| row.kind != Kind::Constant) {
        let (kind, unit) = (format!("{:?}", row.kind), format!("{:?}", row.unit));
        let unit = if unit == "None" { String::new() } else { format!(", {unit}") };
        let kind = format!("{kind}{unit}").to_lowercase();
        text += &format!("| `{}` | {kind} | {}{} |\n", row.name, row.help, shown(row));
    }
    let constants = constants(page);
    if !constants.is_empty() {
        text += "\nAlways the same:\n\n| name | value | why |\n|---|---|---|\n";
    }
    for (value, why, names) in constants {
        text += &format!("| {} | `{value}` | {why} |\n", names.join(", "));
    }
    text + "\n"
}

/// Returns the condition of a row, as a sentence.
fn shown(row: &Row) -> String {
    row.condition.map_or(String::new(), |condition| format!(" Shown {}.", condition.text))
}

/// Groups the constant rows of a page by value and reason. Returns each value and reason with the
/// names of its rows.
fn constants(page: &Page) -> Vec<(&'static str, String, Vec<String>)> {
    let mut constants: Vec<(&str, String, Vec<String>)> = Vec::new();
    for row in page.rows() {
        let Some(value) = row.constant_value() else { continue };
        let (why, name) = (format!("{}{}", row.help, shown(row)), format!("`{}`", row.name));
        match constants.iter_mut().find(|(v, w, _)| *v == value && *w == why) {
            Some((_, _, names)) => names.push(name),
            None => constants.push((value, why, vec![name])),
        }
    }
    constants
}

#[test]
fn the_documentation_has_the_rows_of_the_table() {
    check_documentation("docs/statistics.md", documented);
}

#[test]
fn the_documentation_has_every_metric() {
    check_documentation("docs/metrics.md", |text| replaced(text, "metrics", &metrics_table()));
}
