//! `stats`: one file a page, names and order memcached's. What Larder has not is a constant, and
//! `docs/statistics.md` says which those are.

mod conns;
mod general;
mod items;
mod mrc;
mod settings;
mod slabs;
mod tls;

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
const BY_PREFIX: [(&str, WritePage); 3] =
    [("settings", settings::page), ("conns", conns::page), ("extstore", extstore)];

type WritePage = fn(&Server, &mut Page<'_>);

/// Answers `stats <topic>`.
pub(crate) fn answer(
    server: &Server,
    topic: &[u8],
    stat: &mut dyn FnMut(&str, &str),
) -> StatsAnswer {
    let mut page = Page(stat);
    let end = topic.iter().position(|&byte| byte == b' ').unwrap_or(topic.len());
    let (name, words) = topic.split_at(end);
    match name {
        b"" => general::page(server, &mut page),
        b"items" => items::page(server, &mut page),
        b"slabs" => slabs::page(server, &mut page),
        b"mrc" => mrc::page(server, &mut page),
        b"sizes" => page.line("sizes_status", "disabled"),
        b"sizes_enable" | b"sizes_disable" => return track_sizes(server, name == b"sizes_enable"),
        _ if is_prefix(name, "reset") => {
            server.reset();
            return StatsAnswer::Reset;
        }
        _ if is_prefix(name, "detail") => return detail(server, words.trim_ascii()),
        _ => match BY_PREFIX.iter().find(|(page, _)| is_prefix(name, page)) {
            Some((_, write)) => write(server, &mut page),
            None => return StatsAnswer::Unknown,
        },
    }
    StatsAnswer::Lines
}

/// `stats sizes_enable`, `sizes_disable`: memcached ends neither with END.
fn track_sizes(server: &Server, on: bool) -> StatsAnswer {
    server.controls.track_sizes(on);
    let status = if on { "enabled" } else { "disabled" };
    StatsAnswer::Raw(format!("STAT sizes_status {status}\r\n").into_bytes())
}

/// `stats detail`.
fn detail(server: &Server, words: &[u8]) -> StatsAnswer {
    if server.options.disable_dumping {
        return StatsAnswer::Error("CLIENT_ERROR stats detail not allowed");
    }
    match words.split(|&byte| byte == b' ').next() {
        Some(b"on") => server.log.set_prefixes(true),
        Some(b"off") => server.log.set_prefixes(false),
        Some(b"dump") => {
            let mut lines = server.prefixes.dump();
            lines.extend_from_slice(b"END\r\n");
            return StatsAnswer::Detail(lines);
        }
        _ => return StatsAnswer::Error("CLIENT_ERROR usage: stats detail on|off|dump"),
    }
    StatsAnswer::Ok
}

/// There are no pages of external storage.
fn extstore(_: &Server, _: &mut Page<'_>) {}

fn is_prefix(topic: &[u8], name: &str) -> bool {
    !topic.is_empty() && name.as_bytes().starts_with(topic)
}
