//! `stats`: one file a page, names and order memcached's. What Larder has not is a constant, and
//! `docs/statistics.md` says which those are.

mod conns;
mod general;
mod items;
mod settings;
mod slabs;

use crate::server::Server;
use larder_session::StatsAnswer;
use std::fmt::Display;

/// Where lines go.
pub(crate) struct Page<'a>(&'a mut dyn FnMut(&str, &str));

impl Page<'_> {
    pub(crate) fn line(&mut self, name: &str, value: impl Display) {
        (self.0)(name, &value.to_string());
    }

    fn flag(&mut self, name: &str, on: bool) {
        (self.0)(name, if on { "yes" } else { "no" });
    }
}

/// The pages that a prefix of their name finds, as in memcached; its shortest prefix first.
const BY_PREFIX: [(&str, WritePage); 2] = [("settings", settings::page), ("conns", conns::page)];

type WritePage = fn(&Server, &mut Page<'_>);

/// Answers `stats <topic>`.
pub(crate) fn answer(
    server: &Server,
    topic: &[u8],
    stat: &mut dyn FnMut(&str, &str),
) -> StatsAnswer {
    let mut page = Page(stat);
    match topic {
        b"" => general::page(server, &mut page),
        b"items" => items::page(server, &mut page),
        b"slabs" => slabs::page(server, &mut page),
        b"sizes" => page.line("sizes_status", "disabled"),
        _ if is_prefix(topic, "reset") => {
            server.reset();
            return StatsAnswer::Reset;
        }
        _ => match BY_PREFIX.iter().find(|(name, _)| is_prefix(topic, name)) {
            Some((_, write)) => write(server, &mut page),
            None => return StatsAnswer::Unknown,
        },
    }
    StatsAnswer::Lines
}

fn is_prefix(topic: &[u8], name: &str) -> bool {
    !topic.is_empty() && name.as_bytes().starts_with(topic)
}
