//! The statistics table: the pages and their sections. The table defines the replies to `stats` and
//! most metrics. Tests generate `docs/statistics.md` and `docs/metrics.md` from the table. `row.rs`
//! defines the type of a row, and `rows/` contains the rows.
//!
//! ```text
//!  PAGES ─▶ Page ─▶ Section (once, for each size class, for each connection) ─▶ Row
//!                                                                              │ source, condition
//!  Server ─▶ Snapshot (reads expensive values once)       ─▶ Entry ────────────┴─▶ Value
//! ```

use super::row::{Entry, Metric, Row};
use super::rows::{
    cluster, conns, flash, general, hot_keys, items, latency, memory, mrc, replication, settings,
    slabs, tls, tracking,
};
use super::snapshot::Snapshot;
use super::socket;
use crate::server::Server;
use larder_operations::{CommandClass, HotKey};

/// All pages that consist of rows.
pub static PAGES: [&Page; 13] = [
    &Page {
        name: "general",
        sections: &[Section {
            each: SectionScope::Server,
            rows: &[
                general::PROCESS,
                general::CONNECTIONS,
                tracking::ROWS,
                general::COMMANDS,
                flash::LOOKUPS,
                general::OTHER_COMMANDS,
                general::LIMITS,
                flash::TOTALS,
                tls::GENERAL,
                general::NETWORK_QUEUES,
                general::ITEMS,
                items::BACKGROUND,
                general::LAST,
                general::RESTART,
                flash::OWN,
            ],
        }],
    },
    &Page {
        name: "settings",
        sections: &[Section {
            each: SectionScope::Server,
            rows: &[settings::COMPATIBLE, flash::SETTINGS, tls::SETTINGS, settings::LAST],
        }],
    },
    &Page {
        name: "items",
        sections: &[Section {
            each: SectionScope::Class("items:"),
            rows: &[items::ROWS, items::BACKGROUND, items::HITS],
        }],
    },
    &Page {
        name: "slabs",
        sections: &[
            Section { each: SectionScope::Class(""), rows: &[slabs::CLASS] },
            Section { each: SectionScope::Server, rows: &[slabs::TOTALS] },
        ],
    },
    &Page {
        name: "conns",
        sections: &[Section { each: SectionScope::Socket, rows: &[conns::ROWS] }],
    },
    &Page {
        name: "extstore",
        sections: &[Section { each: SectionScope::Page, rows: &[flash::PAGE] }],
    },
    &Page {
        name: "latency",
        sections: &[Section { each: SectionScope::Commands, rows: &[latency::ROWS] }],
    },
    &Page {
        name: "hotkeys",
        sections: &[
            Section { each: SectionScope::Server, rows: &[hot_keys::SAMPLES] },
            Section { each: SectionScope::HotKey, rows: &[hot_keys::KEY] },
        ],
    },
    &Page {
        name: "prefixes",
        sections: &[
            Section { each: SectionScope::Server, rows: &[hot_keys::SAMPLES] },
            Section { each: SectionScope::Prefix, rows: &[hot_keys::PREFIX] },
        ],
    },
    &Page {
        name: "memory",
        sections: &[Section { each: SectionScope::Server, rows: &[memory::ROWS] }],
    },
    &Page { name: "mrc", sections: &[Section { each: SectionScope::Server, rows: &[mrc::ROWS] }] },
    &Page {
        name: "replication",
        sections: &[
            Section { each: SectionScope::Server, rows: &[replication::ROWS] },
            Section { each: SectionScope::Follower, rows: &[replication::FOLLOWER] },
        ],
    },
    &Page {
        name: "cluster",
        sections: &[Section { each: SectionScope::Server, rows: &[cluster::ROWS, cluster::ETCD] }],
    },
];

/// A page: the reply to one `stats` request.
#[derive(Debug)]
pub struct Page {
    /// The topic of the `stats` request, or `general` for `stats` without a topic.
    pub name: &'static str,
    sections: &'static [Section],
}

/// A group of rows, repeated for each object that the section describes.
#[derive(Debug)]
struct Section {
    each: SectionScope,
    rows: &'static [&'static [Row]],
}

impl Section {
    fn rows(&self) -> impl Iterator<Item = &'static Row> + use<> {
        self.rows.iter().copied().flatten()
    }
}

/// The objects for which a section is repeated.
#[derive(Clone, Copy, Debug)]
enum SectionScope {
    /// The server: once.
    Server,
    /// Each size class with items; the prefix is this string and the number of the class.
    Class(&'static str),
    /// Each listener and connection; the prefix is its ID.
    Socket,
    /// Each page of the flash tier; the prefix is its number.
    Page,
    /// Each of the keys with the most requests; the prefix is its rank.
    HotKey,
    /// Each of the prefixes with the most requests; the prefix is its rank.
    Prefix,
    /// Each used class of commands; the prefix is its name.
    Commands,
    /// Each follower; the prefix is a number.
    Follower,
}

impl Page {
    /// Returns the page with this name, or `None` if no page has it.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PAGES.into_iter().find(|page| page.name == name)
    }

    /// Returns whether clients may read the page. `-X` disables pages that contain keys.
    pub(crate) fn is_allowed(&self, server: &Server) -> bool {
        let shows_keys =
            |section: &Section| matches!(section.each, SectionScope::HotKey | SectionScope::Prefix);
        !(server.options.disable_dumping && self.sections.iter().any(shows_keys))
    }

    /// Returns the rows of all sections, in their order on the page.
    pub fn rows(&self) -> impl Iterator<Item = &'static Row> + use<'_> {
        self.sections.iter().flat_map(Section::rows)
    }

    /// Calls `stat` with the name and value of each shown statistic.
    pub(crate) fn show(&self, server: &Server, stat: &mut dyn FnMut(&str, &str)) {
        let snapshot = Snapshot::new(server);
        for section in self.sections {
            section.each.visit(&snapshot, &mut |prefix, entry| {
                for row in section.rows() {
                    if let Some(value) = row.read(&snapshot, entry) {
                        stat(&format!("{prefix}{}", row.name), &value.to_string());
                    }
                }
            });
        }
    }
}

impl SectionScope {
    /// Calls `show` with the prefix and the entry of each object.
    fn visit(self, snapshot: &Snapshot<'_>, show: &mut dyn FnMut(&str, &Entry<'_>)) {
        match self {
            Self::Server => show("", &Entry::Server),
            Self::Class(prefix) => {
                let classes = snapshot.gauges().classes.iter().enumerate();
                for (class, _) in classes.filter(|(_, gauges)| gauges.items > 0) {
                    show(&format!("{prefix}{}:", class + 1), &Entry::Class(class));
                }
            }
            Self::Socket => socket::visit(snapshot.server, &mut |id, socket| {
                show(&format!("{id}:"), &Entry::Socket(socket));
            }),
            Self::Page => {
                for (number, page) in snapshot.server.flash_pages().into_iter().enumerate() {
                    show(&format!("{number}:"), &Entry::Page(page));
                }
            }
            Self::HotKey => visit_ranked(&snapshot.hottest().keys, show),
            Self::Prefix => visit_ranked(&snapshot.hottest().prefixes, show),
            Self::Follower => {
                for (number, follower) in (1..).zip(snapshot.server.node.replication.followers()) {
                    show(&format!("{number}:"), &Entry::Follower(&follower));
                }
            }
            Self::Commands => {
                let latencies = &snapshot.counters().latencies;
                for class in CommandClass::ALL {
                    if latencies.of(class).count() > 0 {
                        show(&format!("{}:", class.name()), &Entry::Commands(class));
                    }
                }
            }
        }
    }
}

fn visit_ranked(hottest: &[HotKey], show: &mut dyn FnMut(&str, &Entry<'_>)) {
    for (rank, hot) in (1..).zip(hottest) {
        show(&format!("{rank}:"), &Entry::Hot(hot));
    }
}

/// Calls `visit` with each row that has a metric and is currently shown, and with the row's value
/// in the unit of the metric.
pub fn visit_metrics(server: &Server, visit: &mut dyn FnMut(&'static Row, Metric, f64)) {
    let snapshot = Snapshot::new(server);
    for row in PAGES.iter().flat_map(|page| page.rows()) {
        let Some(metric) = row.metric else { continue };
        let value = row.read(&snapshot, &Entry::Server);
        if let Some(value) = value.and_then(|value| value.number()) {
            visit(row, metric, value * row.unit.base().1);
        }
    }
}
