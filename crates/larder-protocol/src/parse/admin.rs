//! Parsing of administrative text commands: `lru_crawler`, `lru`, `slabs`, `cache_memlimit`,
//! `watch`, `extstore`, `shutdown`, `refresh_certs`, and Amazon ElastiCache's `config get cluster`.
//!
//! The parser checks the words of a line, and refuses malformed lines with memcached's errors. The
//! session decides whether to execute the command.

use crate::parse::noreply::{format, refuse};
use crate::parse::parsed::request;
use crate::request::{
    Admin, CLASS_MAX, FlashTuning, Parsed, Ratio, Recovery, Request, Selection, Shutdown, Streams,
    Tuning,
};
use crate::text::line::BAD_FORMAT;
use crate::text::number::{i32_of, u32_of};
use crate::text::tokens::Tokens;
use arrayvec::ArrayVec;

/// Returns whether `word` is a prefix of `name`. For most subcommands, memcached accepts any prefix
/// of the name.
fn starts(name: &str, word: &[u8]) -> bool {
    name.as_bytes().starts_with(word)
}

/// Parses an administrative command; `None` if there is no such command.
pub(crate) fn parse<'b>(command: &[u8], rest: &'b [u8], consumed: usize) -> Option<Parsed<'b>> {
    let words = Tokens(rest).take(WORDS_MAX).collect::<ArrayVec<_, WORDS_MAX>>();
    let parsed = match command {
        b"lru_crawler" => crawler(&words),
        b"lru" => lru(&words),
        b"slabs" => slabs(&words),
        b"cache_memlimit" => memory_limit(&words),
        b"watch" => watch(&words),
        b"extstore" => extstore(&words),
        b"shutdown" => Ok(Admin::Shutdown(shutdown(&words))),
        b"refresh_certs" => Ok(Admin::RefreshCerts),
        b"config" if matches!(words[..], [b"get", b"cluster"]) => Ok(Admin::Servers),
        _ => return None,
    };
    Some(match parsed {
        // `watch` ignores `noreply`, because its reply is the requested log.
        Ok(command @ Admin::Watch(_)) => {
            request(Request::Admin { command, format: format(&[]) }, consumed)
        }
        Ok(command) => request(Request::Admin { command, format: format(rest) }, consumed),
        Err(line) => refuse(line, rest, Recovery::Continue, consumed),
    })
}

/// The maximum number of words to parse; the parser ignores further words.
const WORDS_MAX: usize = 23;

const ERROR: &str = "ERROR";

type Command = Result<Admin, &'static str>;

fn crawler(words: &[&[u8]]) -> Command {
    match words {
        [word] if starts("enable", word) => Ok(Admin::Crawler { enable: true }),
        [word] if starts("disable", word) => Ok(Admin::Crawler { enable: false }),
        [word, which] if starts("crawl", word) => Ok(Admin::Crawl(selection(which))),
        [word, which] if starts("metadump", word) => Ok(Admin::Metadump(selection(which))),
        [word, which] if starts("mgdump", word) => Ok(Admin::Mgdump(selection(which))),
        [word, number] if starts("tocrawl", word) => {
            u32_of(number).map(|n| Admin::Set(Tuning::CrawlerToCrawl(n))).ok_or(BAD_FORMAT)
        }
        [word, micros] if starts("sleep", word) => match u32_of(micros) {
            None => Err(BAD_FORMAT),
            Some(1_000_001..) => Err("CLIENT_ERROR sleep must be one second or less"),
            Some(micros) => Ok(Admin::Set(Tuning::CrawlerSleep(micros))),
        },
        _ => Err(ERROR),
    }
}

fn selection(word: &[u8]) -> Selection {
    match word {
        b"all" => Selection::Classes(!1),
        b"hash" => Selection::Hash,
        _ => classes(word).map_or(Selection::Invalid, Selection::Classes),
    }
}

/// Parses class numbers separated by commas: bit n of the result stands for class n. Ignores empty
/// elements. Returns `None` if an element is not the number of a class.
fn classes(word: &[u8]) -> Option<u64> {
    word.split(|&byte| byte == b',').filter(|number| !number.is_empty()).try_fold(
        0,
        |classes, number| {
            let class = u32_of(number).filter(|class| (1..=CLASS_MAX).contains(class))?;
            Some(classes | 1 << class)
        },
    )
}

fn lru(words: &[&[u8]]) -> Command {
    match words {
        [word, hot, warm, hot_factor, warm_factor, ..] if starts("tune", word) => {
            let pcts = (u32_of(hot), u32_of(warm));
            let factors = (ratio_of(hot_factor), ratio_of(warm_factor));
            let ((Some(hot_pct), Some(warm_pct)), (Some(hot_factor), Some(warm_factor))) =
                (pcts, factors)
            else {
                return Err(ERROR);
            };
            if hot_pct.saturating_add(warm_pct) > 80 {
                return Err("ERROR hot and warm pcts must not exceed 80");
            }
            if hot_factor.get() <= 0.0 || warm_factor.get() <= 0.0 {
                return Err("ERROR hot/warm age factors must be greater than 0");
            }
            Ok(Admin::Set(Tuning::Lru { hot_pct, warm_pct, hot_factor, warm_factor }))
        }
        [word, mode, ..] if starts("mode", word) => match *mode {
            b"flat" => Ok(Admin::Set(Tuning::LruSegmented(false))),
            b"segmented" => Ok(Admin::Set(Tuning::LruSegmented(true))),
            _ => Err(ERROR),
        },
        [word, secs, ..] if starts("temp_ttl", word) => {
            let secs = i32_of(secs).ok_or(ERROR)?;
            Ok(Admin::Set(Tuning::TemporaryTtl(u32::try_from(secs).ok())))
        }
        _ => Err(ERROR),
    }
}

fn slabs(words: &[&[u8]]) -> Command {
    match words {
        [word, _, _] if starts("reassign", word) => Ok(Admin::Reassign),
        [word, rest @ ..] if starts("automove", word) && !rest.is_empty() => automove(rest),
        _ => Err(ERROR),
    }
}

fn automove(words: &[&[u8]]) -> Command {
    let ratio = |tuning: fn(Ratio) -> Tuning| {
        let ratio = words.get(1).and_then(|word| ratio_of(word));
        ratio.map(|ratio| Admin::Set(tuning(ratio))).ok_or(ERROR)
    };
    match words {
        [b"ratio", ..] => ratio(Tuning::AutomoveRatio),
        [b"freeratio", ..] => ratio(Tuning::AutomoveFreeRatio),
        [b"window", rest @ ..] => match rest.first().and_then(|word| u32_of(word)) {
            None => Err(BAD_FORMAT),
            Some(secs @ 3..=1800) => Ok(Admin::Set(Tuning::AutomoveWindow(secs))),
            Some(_) => Err("CLIENT_ERROR automove window too low or too high"),
        },
        [mode, ..] => match u32_of(mode) {
            None => Err(BAD_FORMAT),
            Some(mode @ 0..=2) => Ok(Admin::Set(Tuning::Automove(mode))),
            Some(_) => Err(ERROR),
        },
        [] => Err(ERROR),
    }
}

fn extstore(words: &[&[u8]]) -> Command {
    let [name, value, rest @ ..] = words else { return Err(ERROR) };
    let tuning = match rest {
        [limit, ..] if starts("free_memchunks", name) => free_memchunks(value, limit),
        _ => flash_tuning(name, value),
    };
    tuning.map(|tuning| Admin::Set(Tuning::Flash(tuning))).ok_or(ERROR)
}

/// Checks the arguments of `extstore free_memchunks`, a slab class and a number of chunks. As in
/// memcached, the command has no effect.
fn free_memchunks(class: &[u8], limit: &[u8]) -> Option<FlashTuning> {
    u32_of(class).filter(|&class| class <= CLASS_MAX).and(u32_of(limit))?;
    Some(FlashTuning::FreeMemchunks)
}

/// Returns the first setting whose name starts with `name`. Returns `None` if there is no such
/// setting, or if `value` is malformed.
fn flash_tuning(name: &[u8], value: &[u8]) -> Option<FlashTuning> {
    type Setting = fn(u32) -> FlashTuning;
    const BEFORE_MAX_FRAG: [(&str, Setting); 7] = [
        ("item_size", FlashTuning::ItemSize),
        ("item_age", FlashTuning::ItemAge),
        ("low_ttl", FlashTuning::LowTtl),
        ("recache_rate", FlashTuning::RecacheRate),
        ("compact_under", FlashTuning::CompactUnder),
        ("drop_under", FlashTuning::DropUnder),
        ("max_sleep", FlashTuning::MaxSleep),
    ];
    let found = BEFORE_MAX_FRAG.into_iter().find(|(known, _)| starts(known, name));
    match found {
        Some((_, setting)) => u32_of(value).map(setting),
        None if starts("max_frag", name) => ratio_of(value).map(FlashTuning::MaxFrag),
        None if starts("drop_unread", name) => {
            u32_of(value).map(|value| FlashTuning::DropUnread(value != 0))
        }
        None => None,
    }
}

fn ratio_of(word: &[u8]) -> Option<Ratio> {
    std::str::from_utf8(word).ok()?.parse().ok().map(Ratio::new)
}

fn memory_limit(words: &[&[u8]]) -> Command {
    let number = words.first().and_then(|word| u32_of(word)).ok_or(ERROR)?;
    match number {
        ..8 => Err("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        1_000_000_001.. => Err("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"),
        mib => Ok(Admin::MemoryLimit(mib)),
    }
}

fn watch(words: &[&[u8]]) -> Command {
    let streams = words.iter().try_fold(Streams::default(), |streams, word| {
        Streams::named(word).map(|named| streams.with(named))
    });
    match streams {
        Some(Streams(0)) => Ok(Admin::Watch(Streams::FETCHERS)),
        Some(streams) => Ok(Admin::Watch(streams)),
        None => Err(ERROR),
    }
}

impl Streams {
    fn named(word: &[u8]) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(name, _)| starts(name, word));
        found.map(|(_, streams)| *streams)
    }
}

fn shutdown(words: &[&[u8]]) -> Shutdown {
    match words {
        [] => Shutdown::Quick,
        [b"graceful"] => Shutdown::Graceful,
        _ => Shutdown::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultReply, Parser};

    fn request_of(line: &[u8]) -> Request<'_> {
        match Parser::default().parse(line) {
            Parsed::Request { request, consumed } if consumed == line.len() => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_are_parsed() {
        let ratio = Ratio::new;
        let flash = |tuning| Admin::Set(Tuning::Flash(tuning));
        let lru = Tuning::Lru {
            hot_pct: 10,
            warm_pct: 25,
            hot_factor: ratio(0.1),
            warm_factor: ratio(2.5),
        };
        let most =
            [Streams::MUTATIONS, Streams::EVICTIONS, Streams::CONNEVENTS, Streams::DELETIONS]
                .into_iter()
                .fold(Streams::FETCHERS, Streams::with);
        let cases = [
            ("lru_crawler e", Admin::Crawler { enable: true }),
            ("lru_crawler disable", Admin::Crawler { enable: false }),
            ("lru_crawler crawl 1,,3", Admin::Crawl(Selection::Classes(0b1010))),
            ("lru_crawler crawl ,", Admin::Crawl(Selection::Classes(0))),
            ("lru_crawler metadump all", Admin::Metadump(Selection::Classes(!1))),
            ("lru_crawler mg hash", Admin::Mgdump(Selection::Hash)),
            ("lru_crawler sleep 1000000", Admin::Set(Tuning::CrawlerSleep(1_000_000))),
            ("lru_crawler tocrawl 0", Admin::Set(Tuning::CrawlerToCrawl(0))),
            ("lru tune 10 25 0.1 2.5", Admin::Set(lru)),
            ("lru mode flat", Admin::Set(Tuning::LruSegmented(false))),
            ("lru temp_ttl -1", Admin::Set(Tuning::TemporaryTtl(None))),
            ("lru t 60", Admin::Set(Tuning::TemporaryTtl(Some(60)))),
            ("slabs reassign -1 0", Admin::Reassign),
            ("slabs automove 2", Admin::Set(Tuning::Automove(2))),
            ("slabs automove ratio 0.9", Admin::Set(Tuning::AutomoveRatio(ratio(0.9)))),
            ("slabs automove freeratio 0.01", Admin::Set(Tuning::AutomoveFreeRatio(ratio(0.01)))),
            ("slabs automove window 3", Admin::Set(Tuning::AutomoveWindow(3))),
            ("cache_memlimit 64 noreply", Admin::MemoryLimit(64)),
            ("extstore item_size 0 99", flash(FlashTuning::ItemSize(0))),
            ("extstore i 7", flash(FlashTuning::ItemSize(7))),
            ("extstore item_a 4294967295", flash(FlashTuning::ItemAge(u32::MAX))),
            ("extstore low_ttl 5 noreply", flash(FlashTuning::LowTtl(5))),
            ("extstore r 1", flash(FlashTuning::RecacheRate(1))),
            ("extstore compact_under 2", flash(FlashTuning::CompactUnder(2))),
            ("extstore d 3", flash(FlashTuning::DropUnder(3))),
            ("extstore drop_un 0", flash(FlashTuning::DropUnder(0))),
            ("extstore drop_unr 2", flash(FlashTuning::DropUnread(true))),
            ("extstore drop_unread 0", flash(FlashTuning::DropUnread(false))),
            ("extstore max 9", flash(FlashTuning::MaxSleep(9))),
            ("extstore max_f 0.25", flash(FlashTuning::MaxFrag(ratio(0.25)))),
            ("extstore free_memchunks 63 1", flash(FlashTuning::FreeMemchunks)),
            ("shutdown", Admin::Shutdown(Shutdown::Quick)),
            ("shutdown graceful", Admin::Shutdown(Shutdown::Graceful)),
            ("shutdown noreply", Admin::Shutdown(Shutdown::Invalid)),
            ("refresh_certs", Admin::RefreshCerts),
            ("config get cluster", Admin::Servers),
            ("watch", Admin::Watch(Streams::FETCHERS)),
            ("watch fetch mutations evictions conn deletions", Admin::Watch(most)),
            ("watch sysevents rawcmds", Admin::Watch(Streams::SYSEVENTS.with(Streams::RAWCMDS))),
        ];
        for (line, expected) in cases {
            let noreply = line.ends_with("noreply");
            let line = format!("{line}\r\n");
            let format = format(if noreply { b" noreply" } else { b"" });
            let expected = Request::Admin { command: expected, format };
            assert_eq!(request_of(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn class_lists_are_numbers_separated_by_commas() {
        assert!(selection(b"all").includes(63) && !selection(b"all").includes(0));
        assert!(selection(b"hash").includes(1));
        assert_eq!(selection(b"1,,63"), Selection::Classes(1 << 1 | 1 << 63));
        for bad in ["0", "64", "x", "1,x", "-1", "1 "] {
            assert_eq!(selection(bad.as_bytes()), Selection::Invalid, "{bad}");
        }
    }

    #[test]
    fn malformed_flash_settings_are_refused() {
        for words in [
            "",
            "item_size",
            "item_size x",
            "item_size -1",
            "item_size 4294967296",
            "item_sizes 1",
            "max_frag x",
            "drop_unread yes",
            "free_memchunks 1",
            "free_memchunks 64 1",
            "free_memchunks 1 x",
            "frob 1",
        ] {
            let words: Vec<&[u8]> =
                words.split(' ').filter(|w| !w.is_empty()).map(str::as_bytes).collect();
            assert_eq!(extstore(&words), Err(ERROR), "{words:?}");
        }
    }

    #[test]
    fn noreply_counts_as_a_word_and_suppresses_the_error() {
        let Request::Fault(fault) = request_of(b"lru_crawler crawl all noreply\r\n") else {
            panic!("expected a fault")
        };
        assert_eq!(fault.reply, FaultReply::Silent);
    }
}
