//! What an operator asks of the server: `lru_crawler`, `lru`, `slabs`, `cache_memlimit`, `watch`,
//! `shutdown`, `refresh_certs`.
//!
//! The words of a line are checked here, with memcached's error lines; whether the server does what
//! they say is not known here.

use crate::classic::{BAD_FORMAT, format, refuse, request};
use crate::number::{i32_of, u32_of};
use crate::request::{Parsed, Recovery, Request};
use crate::tokens::Tokens;
use arrayvec::ArrayVec;

/// An administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `lru_crawler enable`, `disable`.
    Crawler {
        /// Whether expired items are looked for from now on.
        enable: bool,
    },
    /// `lru_crawler crawl`: look for expired items now.
    Crawl(Selection),
    /// `lru_crawler metadump`: describe every item.
    Metadump(Selection),
    /// `lru_crawler mgdump`: a `mg` line for every item.
    Mgdump(Selection),
    /// `cache_memlimit`, in MiB.
    MemoryLimit(u32),
    /// `slabs reassign`: its classes were not looked at.
    Reassign,
    /// Something that is only remembered.
    Set(Tuning),
    /// `watch`: the log streams that follow, for as long as the connection lasts.
    Watch(Streams),
    /// `shutdown`.
    Shutdown(Shutdown),
    /// `refresh_certs`: read the certificates again.
    RefreshCerts,
}

/// How a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    Quick,
    /// `shutdown graceful`: after the requests that are there.
    Graceful,
    /// What was given is neither.
    Invalid,
}

/// A setting that an operator changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// `lru_crawler sleep`: microseconds between its steps, at most a second.
    CrawlerSleep(u32),
    /// `lru_crawler tocrawl`: items it looks at in a class; 0 is all.
    CrawlerToCrawl(u32),
    /// `lru tune`.
    Lru {
        /// Percent of memory for what is hot.
        hot_pct: u32,
        /// Percent of memory for what is warm; both together at most 80.
        warm_pct: u32,
        /// Share of the cold age from which hot items move on; above 0.
        hot_factor: Ratio,
        /// The same for warm items.
        warm_factor: Ratio,
    },
    /// `lru mode segmented`, `lru mode flat`.
    LruSegmented(bool),
    /// `lru temp_ttl`, in seconds; `None` switches it off.
    TemporaryTtl(Option<u32>),
    /// `slabs automove`: 0, 1 or 2.
    Automove(u32),
    /// `slabs automove ratio`.
    AutomoveRatio(Ratio),
    /// `slabs automove freeratio`.
    AutomoveFreeRatio(Ratio),
    /// `slabs automove window`: 3 to 1800 seconds.
    AutomoveWindow(u32),
}

/// A fraction as an operator wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u64);

impl Ratio {
    /// Keeps `number` as it is.
    #[must_use]
    pub fn new(number: f64) -> Self {
        Self(number.to_bits())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The items that a crawl is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// `hash`: all of them, in the index's order.
    Hash,
    /// `all`, or a list of slab classes: bit n is class n, of 1 to 63.
    Classes(u64),
    /// What was given is no list of classes.
    Invalid,
}

impl Selection {
    /// Whether items of this class, counted from 1, are meant.
    #[must_use]
    pub fn includes(self, class: usize) -> bool {
        match self {
            Self::Hash => true,
            Self::Classes(classes) => class < 64 && classes >> class & 1 == 1,
            Self::Invalid => false,
        }
    }
}

/// The largest number of a slab class.
pub const CLASS_MAX: u32 = 63;

/// A set of log streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams(pub u32);

#[expect(missing_docs, reason = "the names are memcached's own, from `watch`")]
impl Streams {
    pub const FETCHERS: Self = Self(1);
    pub const MUTATIONS: Self = Self(1 << 1);
    pub const EVICTIONS: Self = Self(1 << 2);
    pub const CONNEVENTS: Self = Self(1 << 3);
    pub const DELETIONS: Self = Self(1 << 4);
    pub const SYSEVENTS: Self = Self(1 << 5);
    pub const RAWCMDS: Self = Self(1 << 6);
    /// Not a stream of the log: counts by prefix (`stats detail`).
    pub const PREFIXES: Self = Self(1 << 31);

    const NAMES: [(&'static str, Self); 7] = [
        ("fetchers", Self::FETCHERS),
        ("mutations", Self::MUTATIONS),
        ("evictions", Self::EVICTIONS),
        ("connevents", Self::CONNEVENTS),
        ("deletions", Self::DELETIONS),
        ("sysevents", Self::SYSEVENTS),
        ("rawcmds", Self::RAWCMDS),
    ];

    /// Whether any of `other`'s streams is in it.
    #[must_use]
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// All streams of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn named(word: &[u8]) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(name, _)| starts(name, word));
        found.map(|(_, streams)| *streams)
    }

    fn words(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(_, stream)| self.has(*stream)).map(|(name, _)| *name)
    }
}

/// memcached finds its sub-commands by any prefix of their names.
fn starts(name: &str, word: &[u8]) -> bool {
    name.as_bytes().starts_with(word)
}

/// A line whose command is not about items; `None` if there is no such command.
pub(crate) fn parse<'b>(command: &[u8], rest: &'b [u8], consumed: usize) -> Option<Parsed<'b>> {
    let words = Tokens(rest).take(WORDS_MAX).collect::<ArrayVec<_, WORDS_MAX>>();
    let parsed = match command {
        b"lru_crawler" => crawler(&words),
        b"lru" => lru(&words),
        b"slabs" => slabs(&words),
        b"cache_memlimit" => memory_limit(&words),
        b"watch" => watch(&words),
        b"shutdown" => Ok(Admin::Shutdown(shutdown(&words))),
        b"refresh_certs" => Ok(Admin::RefreshCerts),
        _ => return None,
    };
    Some(match parsed {
        // Nobody who watches can be told nothing.
        Ok(command @ Admin::Watch(_)) => {
            request(Request::Admin { command, format: format(&[]) }, consumed)
        }
        Ok(command) => request(Request::Admin { command, format: format(rest) }, consumed),
        Err(line) => refuse(line, rest, Recovery::Continue, consumed),
    })
}

/// Words of a line that are looked at.
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

/// Numbers between commas; none between two of them is none.
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

fn shutdown(words: &[&[u8]]) -> Shutdown {
    match words {
        [] => Shutdown::Quick,
        [b"graceful"] => Shutdown::Graceful,
        _ => Shutdown::Invalid,
    }
}

impl Admin {
    /// The command as it is typed.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Crawler { enable: true } => "lru_crawler enable".to_owned(),
            Self::Crawler { enable: false } => "lru_crawler disable".to_owned(),
            Self::Crawl(which) => format!("lru_crawler crawl {}", which.word()),
            Self::Metadump(which) => format!("lru_crawler metadump {}", which.word()),
            Self::Mgdump(which) => format!("lru_crawler mgdump {}", which.word()),
            Self::MemoryLimit(mib) => format!("cache_memlimit {mib}"),
            Self::Reassign => "slabs reassign 1 2".to_owned(),
            Self::Set(tuning) => tuning.line(),
            Self::Watch(streams) => {
                streams.words().fold("watch".to_owned(), |line, word| line + " " + word)
            }
            Self::Shutdown(Shutdown::Quick) => "shutdown".to_owned(),
            Self::Shutdown(Shutdown::Graceful) => "shutdown graceful".to_owned(),
            Self::Shutdown(Shutdown::Invalid) => "shutdown x".to_owned(),
            Self::RefreshCerts => "refresh_certs".to_owned(),
        }
    }
}

impl Selection {
    fn word(self) -> String {
        match self {
            Self::Hash => "hash".to_owned(),
            Self::Invalid => "x".to_owned(),
            Self::Classes(0) => ",".to_owned(),
            Self::Classes(classes) => {
                let chosen = (1..=CLASS_MAX).filter(|class| classes >> class & 1 == 1);
                chosen.map(|class| class.to_string()).collect::<Vec<_>>().join(",")
            }
        }
    }
}

impl Tuning {
    fn line(&self) -> String {
        match self {
            Self::CrawlerSleep(micros) => format!("lru_crawler sleep {micros}"),
            Self::CrawlerToCrawl(items) => format!("lru_crawler tocrawl {items}"),
            Self::Lru { hot_pct, warm_pct, hot_factor, warm_factor } => {
                let (hot, warm) = (hot_factor.get(), warm_factor.get());
                format!("lru tune {hot_pct} {warm_pct} {hot} {warm}")
            }
            Self::LruSegmented(true) => "lru mode segmented".to_owned(),
            Self::LruSegmented(false) => "lru mode flat".to_owned(),
            Self::TemporaryTtl(None) => "lru temp_ttl -1".to_owned(),
            Self::TemporaryTtl(Some(secs)) => format!("lru temp_ttl {secs}"),
            Self::Automove(mode) => format!("slabs automove {mode}"),
            Self::AutomoveRatio(ratio) => format!("slabs automove ratio {}", ratio.get()),
            Self::AutomoveFreeRatio(ratio) => format!("slabs automove freeratio {}", ratio.get()),
            Self::AutomoveWindow(secs) => format!("slabs automove window {secs}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultReply, Parser, write_request};

    fn request_of(line: &[u8]) -> Request<'_> {
        match Parser::default().parse(line) {
            Parsed::Request { request, consumed } if consumed == line.len() => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let lines = [
            "lru_crawler e",
            "lru_crawler disable",
            "lru_crawler crawl 1,,3",
            "lru_crawler crawl ,",
            "lru_crawler metadump all",
            "lru_crawler mg hash",
            "lru_crawler sleep 1000000",
            "lru_crawler tocrawl 0",
            "lru tune 10 25 0.1 2.5",
            "lru mode flat",
            "lru temp_ttl -1",
            "lru t 60",
            "slabs reassign -1 0",
            "slabs automove 2",
            "slabs automove ratio 0.9",
            "slabs automove freeratio 0.01",
            "slabs automove window 3",
            "cache_memlimit 64 noreply",
            "shutdown",
            "shutdown graceful",
            "shutdown noreply",
            "refresh_certs",
            "watch",
            "watch fetch mutations evictions conn deletions sysevents rawcmds",
        ];
        for line in lines {
            let line = format!("{line}\r\n");
            let request = request_of(line.as_bytes());
            assert!(matches!(request, Request::Admin { .. }), "{line}");
            let mut written = Vec::new();
            write_request(&request, &mut written);
            assert_eq!(request_of(&written), request, "{line}");
        }
    }

    #[test]
    fn classes_are_numbers_between_commas() {
        assert!(selection(b"all").includes(63) && !selection(b"all").includes(0));
        assert!(selection(b"hash").includes(1));
        assert_eq!(selection(b"1,,63"), Selection::Classes(1 << 1 | 1 << 63));
        for bad in ["0", "64", "x", "1,x", "-1", "1 "] {
            assert_eq!(selection(bad.as_bytes()), Selection::Invalid, "{bad}");
        }
    }

    #[test]
    fn noreply_breaks_the_count_of_words_and_silences_it() {
        let Request::Fault(fault) = request_of(b"lru_crawler crawl all noreply\r\n") else {
            panic!("it is refused")
        };
        assert_eq!(fault.reply, FaultReply::Silent);
    }
}
