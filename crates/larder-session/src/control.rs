//! What an operator asks of the server: the crawler and its dumps, memory, settings, its end.

use crate::context::{Context, Flow};
use crate::dump::{Dump, Style};
use crate::pending::Pending;
use crate::session::Session;
use crate::{Host, admin};
use larder_protocol::{Admin, CLASS_MAX, Classic, ReplyFormat, Selection, Shutdown, Tuning, reply};
use larder_store::Engine;
use std::ops::RangeInclusive;

const OK: &str = "OK";
const ERROR: &str = "ERROR";
const DISABLED: &str = "CLIENT_ERROR lru crawler disabled";
const BAD_CLASS: &str = "BADCLASS invalid class id";
const NOTHING: &str = "NOTSTARTED no items to crawl";

impl<E: Engine> Session<E> {
    /// Answers an administrative command, or begins what answers it.
    pub(crate) fn administer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        command: &Admin,
        format: &ReplyFormat<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        let answer = match *command {
            Admin::Crawler { enable } => switch_crawler(cx.host, enable),
            Admin::Crawl(selection) => crawl(cx, selection),
            Admin::Metadump(selection) => match may_dump(cx.host, selection, Style::Meta) {
                Ok(()) => {
                    self.begin_crawl(cx, Style::Meta, selection);
                    OK
                }
                Err(line) => line,
            },
            Admin::Mgdump(selection) => match may_dump(cx.host, selection, Style::Keys) {
                Ok(()) => {
                    self.begin_crawl(cx, Style::Keys, selection);
                    OK
                }
                Err(line) => line,
            },
            // There are no slabs to move.
            Admin::Reassign => "CLIENT_ERROR slab reassignment disabled",
            // As under `no_lru_maintainer`: there is no such list of items.
            Admin::Set(Tuning::LruSegmented(_) | Tuning::TemporaryTtl(_)) => ERROR,
            Admin::Set(tuning) => {
                cx.host.set(tuning);
                OK
            }
            Admin::MemoryLimit(mib) => match cx.host.set_memory_limit(mib) {
                Ok(()) => OK,
                Err(could) => {
                    reply::admin(format, &limit_refused(&could), output);
                    return Flow::Continue;
                }
            },
            Admin::Watch(streams) => match cx.host.watch(streams) {
                Ok(watcher) => {
                    self.pending = Pending::Watching(watcher);
                    OK
                }
                Err(line) => line,
            },
            Admin::Shutdown(how) => match shut_down(cx.host, how) {
                Ok(()) => return Flow::Close,
                Err(line) => line,
            },
            Admin::RefreshCerts => match cx.host.refresh_certs() {
                Ok(()) => OK,
                Err(why) => {
                    reply::admin(format, &why, output);
                    return Flow::Continue;
                }
            },
        };
        reply::admin(format, answer, output);
        Flow::Continue
    }

    /// `stats`: the pages that show items are walks over all of them.
    pub(crate) fn stats<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        topic: &[u8],
        format: &ReplyFormat<'_>,
        output: &mut Vec<u8>,
    ) {
        let end = topic.iter().position(|&byte| byte == b' ').unwrap_or(topic.len());
        let (name, words) = topic.split_at_checked(end).unwrap_or_default();
        let sizes = name == b"sizes" && cx.host.sizes_tracked();
        match format {
            ReplyFormat::Binary(head) if sizes => self.begin_sizes(cx, ReplyFormat::Binary(*head)),
            _ if sizes => self.begin_sizes(cx, ReplyFormat::Classic(Classic::default())),
            _ if !name.is_empty() && b"cachedump".starts_with(name) => {
                self.cachedump(cx, words, format, output);
            }
            _ => admin::stats(cx, topic, format, output),
        }
    }

    fn begin_sizes<H: Host>(&mut self, cx: &Context<'_, E, H>, format: ReplyFormat<'static>) {
        self.pending = Pending::Dumping(Box::new(Dump::sizes(cx.operations.engine, format)));
    }

    /// `stats cachedump`; `words` follow it.
    fn cachedump<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        words: &[u8],
        format: &ReplyFormat<'_>,
        output: &mut Vec<u8>,
    ) {
        let refused = match cachedump_words(words) {
            _ if !cx.host.dumps_allowed() => "CLIENT_ERROR stats cachedump not allowed",
            // Its lines are not statistics: there is no such page in binary.
            _ if matches!(format, ReplyFormat::Binary(_)) => {
                return reply::stats_unknown(format, output);
            }
            Ok((class, items_max)) if has_items(cx.operations.engine, class) => {
                return self.begin_dump(
                    cx,
                    Style::Cache,
                    Selection::Classes(1 << class),
                    items_max,
                );
            }
            Ok(_) => return reply::stats_end(format, output),
            Err(line) => line,
        };
        reply::error_line(format, refused, output);
    }

    /// A dump of the crawler's.
    fn begin_crawl<H: Host>(&mut self, cx: &Context<'_, E, H>, style: Style, selection: Selection) {
        cx.host.note_crawl();
        cx.host.note_dump(true);
        self.begin_dump(cx, style, selection, u64::MAX);
    }

    fn begin_dump<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        style: Style,
        selection: Selection,
        items_max: u64,
    ) {
        let engine = &*cx.operations.engine;
        self.pending = Pending::Dumping(Box::new(Dump::new(engine, style, selection, items_max)));
    }
}

/// `stats cachedump`: what is wrong with its words, or which class it is for and how many items to
/// show.
fn cachedump_words(words: &[u8]) -> Result<(u32, u64), &'static str> {
    let mut words = words.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        return Err("CLIENT_ERROR bad command line");
    };
    let number = |word: &[u8]| {
        let strict = word.len() <= 11 && word.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(word).ok().filter(|_| strict)?.parse::<u32>().ok()
    };
    match (number(class), number(limit)) {
        (Some(class), Some(_)) if class > CLASS_MAX => Err("CLIENT_ERROR Illegal slab id"),
        (Some(class), Some(0)) => Ok((class, u64::MAX)),
        (Some(class), Some(limit)) => Ok((class, limit.into())),
        _ => Err("CLIENT_ERROR bad command line format"),
    }
}

fn shut_down(host: &impl Host, how: Shutdown) -> Result<(), &'static str> {
    match how {
        _ if !host.shutdown_allowed() => Err("SERVER_ERROR: shutdown not enabled"),
        Shutdown::Invalid => Err("CLIENT_ERROR invalid shutdown mode"),
        Shutdown::Quick | Shutdown::Graceful => {
            host.shut_down(how == Shutdown::Graceful);
            Ok(())
        }
    }
}

/// memcached's words, and what could be had.
fn limit_refused(could: &RangeInclusive<usize>) -> String {
    let (min, max) = (could.start(), could.end());
    format!("MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust ({min}m to {max}m)")
}

fn switch_crawler(host: &impl Host, enable: bool) -> &'static str {
    if enable && host.crawler_enabled() {
        return "ERROR failed to start lru crawler thread";
    }
    host.enable_crawler(enable);
    OK
}

fn crawl<E: Engine, H: Host>(cx: &mut Context<'_, E, H>, selection: Selection) -> &'static str {
    match selection {
        _ if !cx.host.crawler_enabled() => DISABLED,
        Selection::Invalid => BAD_CLASS,
        Selection::Hash => "ERROR an unknown error happened",
        Selection::Classes(0) => NOTHING,
        // It looks at all classes: there is no list of each.
        Selection::Classes(_) => {
            cx.host.note_crawl();
            cx.operations.engine.crawl_soon();
            OK
        }
    }
}

/// Spares a walk over everything for nothing.
fn has_items(engine: &impl Engine, class: u32) -> bool {
    let class = (class as usize).checked_sub(1);
    class.is_some_and(|class| engine.gauges().classes.get(class).is_some_and(|c| c.items > 0))
}

fn may_dump(host: &impl Host, selection: Selection, style: Style) -> Result<(), &'static str> {
    match selection {
        _ if !host.crawler_enabled() => Err(DISABLED),
        _ if host.dumps_allowed() => match selection {
            Selection::Invalid => Err(BAD_CLASS),
            Selection::Classes(0) => Err(NOTHING),
            Selection::Classes(_) | Selection::Hash => Ok(()),
        },
        _ if style == Style::Meta => Err("ERROR metadump not allowed"),
        _ => Err("ERROR key dump not allowed"),
    }
}
