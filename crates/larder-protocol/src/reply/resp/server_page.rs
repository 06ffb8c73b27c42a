//! Replies about the server: `INFO`, `ROLE`, `HELLO`, `CONFIG GET` and `LATENCY HISTOGRAM`.

use super::element::{Version, array, bulk, integer, map, text_page};
use super::replication::{Replication, or_none};
use crate::resp::{Arguments, matches};

/// The version of redis-server that `INFO` and `HELLO` report.
pub const REDIS_VERSION: &str = "7.4.0";

/// Writes the reply to `HELLO`. `client` is the number of the client's connection. `follows` states
/// whether the server is a follower.
pub fn hello(version: Version, client: u64, follows: bool, out: &mut Vec<u8>) {
    map(version, 8, out);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
    bulk(b"proto", out);
    integer(if version == Version::Resp2 { 2 } else { 3 }, out);
    bulk(b"id", out);
    integer(client.cast_signed(), out);
    let role = if follows { "replica" } else { "master" };
    for (name, value) in [("mode", "standalone"), ("role", role), ("server_name", "larder")] {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
    bulk(b"modules", out);
    array(0, out);
}

/// Builds the `INFO` page. Most of its numbers are memcached's statistics.
#[derive(Debug)]
pub struct InfoPage<'b> {
    /// The requested sections; all if empty.
    sections: Arguments<'b>,
    /// The value of each line of [`INFO`].
    values: Vec<String>,
    /// The replication state. With `None`, the section about replication has constant lines.
    replication: Option<Replication>,
}

/// The lines of the page: section, name, and a statistic (`Ok`) or a constant value (`Err`).
const INFO: [(&str, &str, Result<&str, &str>); 33] = [
    ("Server", "redis_version", Err(REDIS_VERSION)),
    ("Server", "redis_mode", Err("standalone")),
    ("Server", "server_name", Err("larder")),
    ("Server", "arch_bits", Err(if usize::BITS == 64 { "64" } else { "32" })),
    ("Server", "larder_version", Err(env!("CARGO_PKG_VERSION"))),
    ("Server", "process_id", Ok("pid")),
    ("Server", "uptime_in_seconds", Ok("uptime")),
    ("Clients", "connected_clients", Ok("curr_connections")),
    ("Clients", "maxclients", Ok("max_connections")),
    ("Clients", "blocked_clients", Err("0")),
    ("Clients", "tracking_clients", Ok("tracking_connections")),
    ("Memory", "used_memory", Ok("bytes")),
    ("Memory", "used_memory_rss", Ok("resident_bytes")),
    ("Memory", "maxmemory", Ok("limit_maxbytes")),
    ("Memory", "maxmemory_policy", Ok(MAXMEMORY_POLICY)),
    ("Persistence", "loading", Err("0")),
    ("Stats", "total_connections_received", Ok("total_connections")),
    ("Stats", "total_commands_processed", Ok(TOTAL_COMMANDS)),
    ("Stats", "rejected_connections", Ok("rejected_connections")),
    ("Stats", "total_net_input_bytes", Ok("bytes_read")),
    ("Stats", "total_net_output_bytes", Ok("bytes_written")),
    ("Stats", "expired_keys", Ok("removed_expired")),
    ("Stats", "evicted_keys", Ok("evictions")),
    ("Stats", "keyspace_hits", Ok("get_hits")),
    ("Stats", "keyspace_misses", Ok("get_misses")),
    ("Stats", "tracking_total_keys", Ok("tracking_keys")),
    ("Stats", "tracking_total_prefixes", Ok("tracking_prefixes")),
    (REPLICATION, "role", Err("master")),
    (REPLICATION, "connected_slaves", Err("0")),
    ("CPU", "used_cpu_sys", Ok("rusage_system")),
    ("CPU", "used_cpu_user", Ok("rusage_user")),
    ("Cluster", "cluster_enabled", Err("0")),
    (KEYSPACE, "db0", Ok("curr_items")),
];

/// The name of the statistic that [`InfoPage::set_commands`] sets: the number of requests.
const TOTAL_COMMANDS: &str = "total_commands";

/// The name of the eviction policy, for [`InfoPage::set`].
pub const MAXMEMORY_POLICY: &str = "maxmemory_policy";
/// Redis's name of the policy that may evict any item, the least recently used ones first.
pub const EVICTING_POLICY: &str = "allkeys-lru";
/// Redis's name of the policy without eviction: stores fail when memory is full.
const NO_EVICTION: &str = "noeviction";

/// The section about keys. It has one line, for database 0, or no line if the cache is empty.
const KEYSPACE: &str = "Keyspace";

const REPLICATION: &str = "Replication";

impl<'b> InfoPage<'b> {
    /// Starts a page with these sections.
    #[must_use]
    pub fn new(sections: Arguments<'b>) -> Self {
        let values = INFO.iter().map(|(_, _, source)| source.err().unwrap_or("0").to_owned());
        let mut page = Self { sections, values: values.collect(), replication: None };
        page.set(MAXMEMORY_POLICY, NO_EVICTION);
        page
    }

    /// Sets the replication state. `None` selects the constant lines of a server without
    /// replication.
    pub fn set_replication(&mut self, replication: Option<Replication>) {
        self.replication = replication;
    }

    /// Sets the number of requests that were answered.
    pub fn set_commands(&mut self, commands: u64) {
        self.set(TOTAL_COMMANDS, &commands.to_string());
    }

    /// Sets a statistic. Ignores a statistic that is not on the page.
    pub fn set(&mut self, statistic: &str, value: &str) {
        let lines = INFO.iter().zip(&mut self.values);
        for (_, shown) in lines.filter(|((_, _, source), _)| *source == Ok(statistic)) {
            value.clone_into(shown);
        }
    }

    /// Writes the reply to `INFO`.
    pub fn write(&self, version: Version, out: &mut Vec<u8>) {
        let (mut page, mut last) = (String::new(), "");
        for ((section, name, _), value) in INFO.iter().zip(&self.values) {
            if !self.shows(section) {
                continue;
            }
            let begins = *section != last;
            if begins {
                let gap = if last.is_empty() { "" } else { "\r\n" };
                page.push_str(&format!("{gap}# {section}\r\n"));
                last = section;
            }
            match &self.replication {
                Some(replication) if *section == REPLICATION => {
                    if begins {
                        page.push_str(&replication.lines());
                    }
                }
                _ if *section == KEYSPACE => {
                    if value != "0" {
                        page.push_str(&format!("{name}:keys={value},expires=0,avg_ttl=0\r\n"));
                    }
                }
                _ => page.push_str(&format!("{name}:{value}\r\n")),
            }
        }
        text_page(version, page.as_bytes(), out);
    }

    fn shows(&self, section: &str) -> bool {
        const ALL: [&str; 3] = ["all", "default", "everything"];
        let mut sections = self.sections;
        let is = |name: &str, requested: &[u8]| name.as_bytes().eq_ignore_ascii_case(requested);
        sections.len() == 0
            || sections
                .any(|requested| is(section, requested) || ALL.iter().any(|all| is(all, requested)))
    }
}

/// Writes the reply to `ROLE`. A server without a link is a master.
pub fn role(replication: &Replication, out: &mut Vec<u8>) {
    match &replication.link {
        Some(link) => {
            array(5, out);
            bulk(b"slave", out);
            bulk(link.leader.0.as_bytes(), out);
            integer(link.leader.1.into(), out);
            bulk(link.state.name().as_bytes(), out);
            integer(or_none(link.offset), out);
        }
        None => {
            array(3, out);
            bulk(b"master", out);
            integer(or_none(Some(replication.offset)), out);
            // Like redis-server, omit followers with a running full sync.
            let followers = replication.followers.iter().filter(|follower| !follower.is_copying);
            array(followers.clone().count(), out);
            for follower in followers {
                array(3, out);
                bulk(follower.host.as_bytes(), out);
                bulk(follower.port.to_string().as_bytes(), out);
                bulk(follower.offset.to_string().as_bytes(), out);
            }
        }
    }
}

/// The values of the settings that `CONFIG GET` shows.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The memory limit, in bytes.
    pub limit_bytes: u64,
    /// The maximum length of an argument, in bytes.
    pub bulk_len_max: usize,
    /// The number of databases that `SELECT` accepts.
    pub databases: u32,
    /// The maximum number of connections, as a string.
    pub connections_max: String,
    /// Whether items are evicted when memory is full.
    pub evicts: bool,
}

/// Writes the reply to `CONFIG GET`: the settings with a name that matches one of `patterns`.
pub fn config(version: Version, patterns: Arguments<'_>, settings: &Settings, out: &mut Vec<u8>) {
    let (limit, bulk_len_max) =
        (settings.limit_bytes.to_string(), settings.bulk_len_max.to_string());
    let databases = settings.databases.to_string();
    let settings = [
        ("appendonly", "no"),
        ("databases", &*databases),
        ("latency-monitor-threshold", "0"),
        ("maxclients", &*settings.connections_max),
        ("maxmemory", &*limit),
        ("maxmemory-policy", if settings.evicts { EVICTING_POLICY } else { NO_EVICTION }),
        ("proto-max-bulk-len", &*bulk_len_max),
        ("save", ""),
        ("slowlog-max-len", "0"),
    ];
    let is_asked = |name: &str| {
        { patterns }.any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let shown = settings.iter().filter(|(name, _)| is_asked(name));
    map(version, shown.clone().count(), out);
    for (name, value) in shown {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
}

/// A command class's latency histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassLatencies {
    /// The name of the class.
    pub name: &'static str,
    /// The number of requests in the histogram.
    pub count: u64,
    /// Pairs of an upper bound in microseconds and the number of requests that took at most this
    /// long, in ascending order. The last number may include longer requests.
    pub micros: Vec<(u64, u64)>,
}

/// Writes the reply to `LATENCY HISTOGRAM`.
pub fn latencies(version: Version, classes: &[ClassLatencies], out: &mut Vec<u8>) {
    let number = |number: u64, out: &mut Vec<u8>| {
        integer(i64::try_from(number).unwrap_or(i64::MAX), out);
    };
    map(version, classes.len(), out);
    for class in classes {
        bulk(class.name.as_bytes(), out);
        map(version, 2, out);
        bulk(b"calls", out);
        number(class.count, out);
        bulk(b"histogram_usec", out);
        map(version, class.micros.len(), out);
        for (micros, count) in &class.micros {
            number(*micros, out);
            number(*count, out);
        }
    }
}
