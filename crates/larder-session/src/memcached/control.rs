//! Administrative commands, such as the crawler and its dumps, the memory limit, settings, and
//! shutdown.

use super::admin;
use crate::context::{Context, Flow};
use crate::session::Session;
use crate::session::dump::{Dump, Style};
use crate::session::pending::Pending;
use crate::{Host, RefreshRefusal, WatchRefusal};
use larder_protocol::reply::{self, AdminRefusal, StatsRefusal};
use larder_protocol::{
    Admin, CLASS_MAX, Classic, ReplyFormat, Selection, Shutdown, Streams, Tuning,
};
use larder_store::Engine;

/// The result of an administrative command, or of starting a command that continues in later polls.
type CommandResult = Result<(), AdminRefusal>;

impl<E: Engine> Session<E> {
    /// Answers an administrative command. If the command is a dump or a log watch, only starts it.
    pub(crate) fn administer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        command: &Admin,
        format: &ReplyFormat<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        let done = match *command {
            Admin::Crawler { enable } => switch_crawler(cx.host, enable),
            Admin::Crawl(selection) => crawl(cx, selection),
            Admin::Metadump(selection) => self.start_crawl(cx, Style::Meta, selection),
            Admin::Mgdump(selection) => self.start_crawl(cx, Style::Keys, selection),
            // Larder has no slabs.
            Admin::Reassign => Err(AdminRefusal::ReassignDisabled),
            // Larder has no LRU lists. memcached gives the same reply if it runs with
            // `no_lru_maintainer`.
            Admin::Set(Tuning::LruSegmented(_) | Tuning::TemporaryTtl(_)) => {
                Err(AdminRefusal::Unsupported)
            }
            Admin::Set(tuning) => {
                cx.host.apply_tuning(tuning);
                Ok(())
            }
            Admin::MemoryLimit(mib) => {
                cx.host.set_memory_limit(mib).map_err(AdminRefusal::MemoryLimit)
            }
            Admin::Watch(streams) => self.watch(cx.host, streams),
            Admin::Shutdown(how) => match shut_down(cx.host, how) {
                Ok(()) => return Flow::Close,
                Err(refusal) => Err(refusal),
            },
            Admin::Servers => match cx.host.servers() {
                Some(servers) => {
                    reply::servers(format, &servers, output);
                    return Flow::Continue;
                }
                None => Err(AdminRefusal::Unsupported),
            },
            Admin::RefreshCerts => cx.host.refresh_certs().map_err(|refusal| match refusal {
                RefreshRefusal::NotEnabled => AdminRefusal::TlsNotEnabled,
                RefreshRefusal::Failed(why) => AdminRefusal::Certificates(why),
            }),
        };
        match done {
            Ok(()) => reply::ok(format, output),
            Err(refusal) => reply::admin_refused(format, &refusal, output),
        }
        Flow::Continue
    }

    fn watch(&mut self, host: &impl Host, streams: Streams) -> CommandResult {
        let watcher = host.watch(streams).map_err(|refusal| match refusal {
            WatchRefusal::NotAllowed => AdminRefusal::WatchNotAllowed,
            WatchRefusal::TooMany => AdminRefusal::TooManyWatchers,
            WatchRefusal::NoLog => AdminRefusal::WatchFailed,
        })?;
        self.pending = Pending::Watch(watcher);
        Ok(())
    }

    /// Answers `stats`. If the page lists or counts items, starts a walk over all items.
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
            ReplyFormat::Binary(head) if sizes => self.start_sizes(cx, ReplyFormat::Binary(*head)),
            _ if sizes => self.start_sizes(cx, ReplyFormat::Classic(Classic::default())),
            _ if !name.is_empty() && b"cachedump".starts_with(name) => {
                self.cachedump(cx, words, format, output);
            }
            _ => admin::stats(cx, topic, format, output),
        }
    }

    fn start_sizes<H: Host>(&mut self, cx: &Context<'_, E, H>, format: ReplyFormat<'static>) {
        self.pending = Pending::Dump(Box::new(Dump::sizes(cx.operations.engine, format)));
    }

    /// Starts a dump for `stats cachedump`, or replies if there is nothing to dump. `words`
    /// contains the arguments.
    fn cachedump<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        words: &[u8],
        format: &ReplyFormat<'_>,
        output: &mut Vec<u8>,
    ) {
        let refused = match cachedump_words(words) {
            _ if !cx.host.dumps_allowed() => StatsRefusal::CachedumpNotAllowed,
            // The lines of `cachedump` are not name-value pairs, so the binary protocol has no such
            // page.
            _ if matches!(format, ReplyFormat::Binary(_)) => StatsRefusal::UnknownPage,
            Ok((class, items_max)) if has_items(cx.operations.engine, class) => {
                return self.start_dump(
                    cx,
                    Style::Cache,
                    Selection::Classes(1 << class),
                    items_max,
                );
            }
            Ok(_) => return reply::stats_end(format, output),
            Err(refusal) => refusal,
        };
        reply::stats_refused(format, refused, output);
    }

    /// Starts a dump for an `lru_crawler` command, if dumps are allowed.
    fn start_crawl<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        style: Style,
        selection: Selection,
    ) -> CommandResult {
        may_dump(cx.host, selection, style)?;
        cx.host.note_crawl();
        cx.host.note_dump(true);
        self.start_dump(cx, style, selection, u64::MAX);
        Ok(())
    }

    fn start_dump<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        style: Style,
        selection: Selection,
        items_max: u64,
    ) {
        let engine = &*cx.operations.engine;
        self.pending = Pending::Dump(Box::new(Dump::new(engine, style, selection, items_max)));
    }
}

/// Parses the arguments of `stats cachedump`: the slab class, and the maximum number of items to
/// list. A maximum of 0 lists all items.
fn cachedump_words(words: &[u8]) -> Result<(u32, u64), StatsRefusal> {
    let mut words = words.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        return Err(StatsRefusal::CachedumpUsage);
    };
    let number = |word: &[u8]| {
        let strict = word.len() <= 11 && word.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(word).ok().filter(|_| strict)?.parse::<u32>().ok()
    };
    match (number(class), number(limit)) {
        (Some(class), Some(_)) if class > CLASS_MAX => Err(StatsRefusal::CachedumpClass),
        (Some(class), Some(0)) => Ok((class, u64::MAX)),
        (Some(class), Some(limit)) => Ok((class, limit.into())),
        _ => Err(StatsRefusal::CachedumpNumbers),
    }
}

fn shut_down(host: &impl Host, how: Shutdown) -> CommandResult {
    match how {
        _ if !host.shutdown_allowed() => Err(AdminRefusal::ShutdownNotAllowed),
        Shutdown::Invalid => Err(AdminRefusal::InvalidShutdown),
        Shutdown::Quick | Shutdown::Graceful => {
            host.shut_down(how == Shutdown::Graceful);
            Ok(())
        }
    }
}

fn switch_crawler(host: &impl Host, enable: bool) -> CommandResult {
    if enable && host.crawler_enabled() {
        return Err(AdminRefusal::CrawlerEnabled);
    }
    host.enable_crawler(enable);
    Ok(())
}

fn crawl<E: Engine, H: Host>(cx: &mut Context<'_, E, H>, selection: Selection) -> CommandResult {
    match selection {
        _ if !cx.host.crawler_enabled() => Err(AdminRefusal::CrawlerDisabled),
        Selection::Invalid => Err(AdminRefusal::InvalidClasses),
        Selection::Hash => Err(AdminRefusal::CrawlByHash),
        Selection::Classes(0) => Err(AdminRefusal::NoClasses),
        // A crawl examines all classes, because the engine has no list of items per class.
        Selection::Classes(_) => {
            cx.host.note_crawl();
            cx.operations.engine.crawl_soon();
            Ok(())
        }
    }
}

/// Returns whether a class may have items. If the class has no items, the reply is empty and needs
/// no walk over all items.
fn has_items(engine: &impl Engine, class: u32) -> bool {
    let class = (class as usize).checked_sub(1);
    let classes = engine.gauges().classes;
    // The engine counts items on flash in the first class, regardless of their size.
    let has_some = |class: usize| classes.get(class).is_some_and(|gauges| gauges.items > 0);
    class.is_some_and(|class| class < classes.len() && (has_some(class) || has_some(0)))
}

fn may_dump(host: &impl Host, selection: Selection, style: Style) -> CommandResult {
    match selection {
        _ if !host.crawler_enabled() => Err(AdminRefusal::CrawlerDisabled),
        _ if !host.dumps_allowed() && style == Style::Meta => Err(AdminRefusal::MetadumpNotAllowed),
        _ if !host.dumps_allowed() => Err(AdminRefusal::MgdumpNotAllowed),
        Selection::Invalid => Err(AdminRefusal::InvalidClasses),
        Selection::Classes(0) => Err(AdminRefusal::NoClasses),
        Selection::Classes(_) | Selection::Hash => Ok(()),
    }
}
