//! The options of the flash tier: memcached's `ext_*` extended options.

use super::refusal::{OptionsRefusal, USAGE};
use super::values::number;
use larder_store::FlashSettings;
use std::path::PathBuf;

/// The values of the `ext_*` options.
#[derive(Clone, Debug, PartialEq)]
pub struct FlashOptions {
    /// The files or block devices, in their order on the command line. Without files, there is no
    /// flash tier, and the other options have no effect.
    pub files: Vec<FlashFile>,
    /// The page length in bytes; `None` for the default.
    pub page_size: Option<u64>,
    /// The maximum number of threads for reads without `io_uring`. The server uses these threads
    /// with a Tokio runtime, and on systems without `io_uring`.
    pub threads: usize,
    /// The maximum number of concurrent reads per worker thread.
    pub depth: usize,
    /// The settings that the `extstore` command can change. A value of 0 for `compact_under` or
    /// `drop_under` stands for the default, which [`FlashOptions::settings_for`] computes.
    pub settings: FlashSettings,
    /// Settings that only appear in `stats settings`.
    pub shown: FlashShown,
    /// The names of the `ext_*` options that are given.
    pub(super) given: Vec<&'static str>,
}

/// A file or block device for items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashFile {
    /// The path of the file or block device.
    pub path: PathBuf,
    /// The number of bytes for pages.
    pub bytes: u64,
    /// memcached's storage bucket for the pages of the file.
    pub bucket: Bucket,
}

/// A storage bucket of memcached, which restricts the items that the pages of a file contain. In
/// Larder, the pages of all files form one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub enum Bucket {
    #[default]
    Default,
    Compact,
    Chunked,
    LowTtl,
    ColdCompact,
    Old,
}

/// Settings of memcached's external storage that have no counterpart in Larder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashShown {
    /// `ext_wbuf_size`, in bytes.
    pub wbuf_size: u32,
    /// `ext_max_sleep`, in microseconds.
    pub max_sleep: u32,
}

const MIB: u64 = 1 << 20;
/// The minimum of the default page length, in bytes.
const PAGE_DEFAULT_MIN: u64 = MIB;
/// The maximum page length in bytes.
const PAGE_MAX: u64 = 1 << 30;
/// The default page length gives all files together at least this many pages. Small files have
/// fewer pages, because the default is at least [`PAGE_DEFAULT_MIN`].
const PAGES_MIN: u64 = 128;
/// By default, the server keeps the number of pages divided by this number free, and at least one
/// page.
const PAGES_PER_FREE: u64 = 100;

const NO_PATH: &str = "there is no ext_path: all items are kept in memory";
const ONE_POOL: &str = "the pages of all files are used for all items";

impl Default for FlashOptions {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            page_size: None,
            threads: 8,
            depth: 128,
            settings: FlashSettings { compact_under: 0, drop_under: 0, ..FlashSettings::default() },
            shown: FlashShown { wbuf_size: 4 << 20, max_sleep: 1_000_000 },
            given: Vec::new(),
        }
    }
}

impl FlashOptions {
    /// Returns the configured page length or the default, in bytes. The default is a power of two.
    /// It is at most the length of the smallest file, but at least 1 MiB.
    #[must_use]
    pub fn page_len(&self) -> u64 {
        self.page_size.unwrap_or_else(|| {
            let total = self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
            let shortest = self.files.iter().map(|file| file.bytes).min().unwrap_or(0);
            let wanted = (total / PAGES_MIN).clamp(PAGE_DEFAULT_MIN, PAGE_MAX);
            1 << wanted.min(shortest).max(PAGE_DEFAULT_MIN).ilog2()
        })
    }

    /// Returns the initial settings of a flash tier with this number of pages. `compact_under` and
    /// `drop_under` get their defaults if they are not configured.
    #[must_use]
    pub fn settings_for(&self, pages: u64) -> FlashSettings {
        let share = u32::try_from(pages / PAGES_PER_FREE).unwrap_or(u32::MAX).max(1);
        let given = |pages: u32| if pages == 0 { share } else { pages };
        FlashSettings {
            compact_under: given(self.settings.compact_under),
            drop_under: given(self.settings.drop_under),
            ..self.settings
        }
    }

    /// Refuses files that are smaller than a page, and invalid page lengths.
    pub(super) fn check(&self) -> Result<(), OptionsRefusal> {
        let refuse =
            |message: &str| Err(OptionsRefusal { message: message.to_owned(), status: USAGE });
        if self.files.is_empty() {
            return Ok(());
        }
        if self.page_size.is_some_and(|bytes| !bytes.is_power_of_two() || bytes < MIB) {
            return refuse("ext_page_size must be a power of two, in megabytes: 1, 2, 4 and so on");
        }
        if self.files.iter().any(|file| file.bytes < self.page_len()) {
            return refuse("supplied ext_path has zero size, cannot use");
        }
        if self.page_len() > PAGE_MAX {
            return refuse("ext_page_size must be at most 1024 megabytes");
        }
        Ok(())
    }

    /// Returns the names of the given options that have no effect, each with the reason.
    pub(super) fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let reason = |name: &&'static str| match *name {
            name if self.files.is_empty() => Some((name, NO_PATH)),
            "ext_wbuf_size" => Some(("ext_wbuf_size", "segments of memory are the write buffers")),
            "ext_max_sleep" => {
                Some(("ext_max_sleep", "threads that write sleep until there is work"))
            }
            _ => None,
        };
        let buckets = self.files.iter().filter_map(|file| file.bucket.suffix());
        let named = self.given.iter().filter_map(reason);
        named.chain(buckets.map(|suffix| (suffix, ONE_POOL))).collect()
    }
}

impl FlashFile {
    /// Parses `FILE:SIZE[:bucket]`, where SIZE ends with m, g, t or p.
    ///
    /// # Errors
    /// The reason, with memcached's message where memcached refuses the same text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':').filter(|part| !part.is_empty());
        let path = parts.next().ok_or("failed to parse ext_path argument")?.into();
        let size = parts
            .next()
            .ok_or("must supply size to ext_path, ie: ext_path=/f/e:64m (M|G|T|P supported)")?;
        let bytes = size_in_bytes(size)?;
        let bucket = match parts.next() {
            None => Bucket::Default,
            Some(name) => {
                Bucket::named(name).ok_or_else(|| format!("Unknown extstore bucket: {name}"))?
            }
        };
        Ok(Self { path, bytes, bucket })
    }
}

fn size_in_bytes(text: &str) -> Result<u64, String> {
    let no_unit = "must supply size to ext_path, ie: ext_path=/f/e:64m (m|g|t|p supported)";
    let unit = text.chars().next_back().ok_or(no_unit)?;
    let shift = match unit.to_ascii_lowercase() {
        'm' => 20,
        'g' => 30,
        't' => 40,
        'p' => 50,
        _ => return Err(no_unit.to_owned()),
    };
    let digits = text.strip_suffix(unit).unwrap_or_default();
    let count = number::<u64>(digits).map_err(|_| no_unit)?;
    count.checked_mul(1 << shift).ok_or_else(|| format!("ext_path: {text} is too large"))
}

impl Bucket {
    const NAMES: [(&'static str, Self); 6] = [
        ("default", Self::Default),
        ("compact", Self::Compact),
        ("chunked", Self::Chunked),
        ("lowttl", Self::LowTtl),
        ("coldcompact", Self::ColdCompact),
        ("old", Self::Old),
    ];

    fn named(name: &str) -> Option<Self> {
        let found = Self::NAMES.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, bucket)| bucket)
    }

    /// Returns the syntax of `ext_path` with this bucket, for messages, or `None` for the default
    /// bucket.
    fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Compact => Some("ext_path=FILE:SIZE:compact"),
            Self::Chunked => Some("ext_path=FILE:SIZE:chunked"),
            Self::LowTtl => Some("ext_path=FILE:SIZE:lowttl"),
            Self::ColdCompact => Some("ext_path=FILE:SIZE:coldcompact"),
            Self::Old => Some("ext_path=FILE:SIZE:old"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::suboptions::Suboptions;
    use larder_store::Admission;

    fn parse(list: &str) -> FlashOptions {
        Suboptions::parse([list]).unwrap().flash
    }

    fn refused(list: &str) -> (u8, String) {
        let OptionsRefusal { message, status } = Suboptions::parse([list]).unwrap_err();
        (status, message)
    }

    #[test]
    fn sizes_and_buckets_are_read() {
        for (text, path, bytes, bucket) in [
            ("/f:64m", "/f", 64 << 20, Bucket::Default),
            ("/f:64M:default", "/f", 64 << 20, Bucket::Default),
            ("f/e:2g:compact", "f/e", 2 << 30, Bucket::Compact),
            ("/f:2G:lowttl", "/f", 2 << 30, Bucket::LowTtl),
            ("/f:1t:chunked", "/f", 1 << 40, Bucket::Chunked),
            ("/f:1T:coldcompact", "/f", 1 << 40, Bucket::ColdCompact),
            ("/f:3p:old", "/f", 3 << 50, Bucket::Old),
            ("/f:3P", "/f", 3 << 50, Bucket::Default),
            ("/f: 3 g", "/f", 3 << 30, Bucket::Default),
        ] {
            let file = FlashFile { path: path.into(), bytes, bucket };
            assert_eq!(FlashFile::parse(text), Ok(file), "{text}");
        }
    }

    #[test]
    fn invalid_flash_suboptions_are_refused() {
        for (list, status, said) in [
            ("ext_path", 1, "missing argument to ext_path, ie: ext_path=/d/file:5G"),
            ("ext_path=/f", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:64", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:m", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:1k", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:1gg", 1, "must supply size to ext_path, ie: "),
            ("ext_path=/f:99999999p", 1, "too large"),
            ("ext_path=/f:1g:frob", 1, "Unknown extstore bucket: frob"),
            ("ext_path=/f:0m", 64, "supplied ext_path has zero size, cannot use"),
            ("ext_path=/f:2m,ext_page_size=4", 64, "supplied ext_path has zero size"),
            ("ext_path=/f:1g,ext_page_size=0", 64, "ext_page_size must be a power of two"),
            (
                "ext_path=/f:4g,ext_page_size=2048",
                64,
                "ext_page_size must be at most 1024 megabytes",
            ),
            ("ext_path=/f:1g,ext_page_size=3", 64, "ext_page_size must be a power of two"),
            ("ext_threads=0", 1, "ext_threads must be 1 to 256"),
            ("ext_io_depth=0", 1, "ext_io_depth must be 1 to 4096"),
            ("ext_item_size=-1", 1, "could not parse argument to ext_item_size"),
            ("ext_admit", 1, "Missing ext_admit argument"),
            ("ext_admit=some", 1, "ext_admit must be all or reused"),
        ] {
            let (found, message) = refused(list);
            assert_eq!(found, status, "{list}");
            assert!(message.contains(said), "{list}: {message}");
        }
    }

    #[test]
    fn all_flash_suboptions_are_parsed() {
        let options = parse(
            "ext_path=/a:1g,ext_path=/b:2g,ext_page_size=8,ext_wbuf_size=2,ext_threads=3,\
             ext_io_depth=64,ext_item_size=100,ext_item_age=60,ext_low_ttl=30,ext_recache_rate=9,\
             ext_compact_under=7,ext_drop_under=5,ext_max_sleep=1000,ext_max_frag=0.5,\
             ext_drop_unread,ext_admit=reused",
        );
        let paths: Vec<_> = options.files.iter().map(|file| file.path.clone()).collect();
        assert_eq!(paths, [PathBuf::from("/a"), "/b".into()]);
        assert_eq!((options.page_len(), options.threads, options.depth), (8 << 20, 3, 64));
        let settings = FlashSettings {
            item_size: 100,
            item_age: Some(60),
            low_ttl: 30,
            recache_rate: 9,
            compact_under: 7,
            drop_under: 5,
            max_frag: 0.5,
            drop_unread: true,
            admit: Admission::Reused,
        };
        assert_eq!((options.settings, options.settings_for(1000)), (settings, settings));
        assert_eq!(options.shown, FlashShown { wbuf_size: 2 << 20, max_sleep: 1000 });
    }

    #[test]
    fn pages_have_a_length_that_gives_enough_of_them() {
        for (list, mib) in [
            ("ext_path=/a:1m", 1),
            ("ext_path=/a:128m", 1),
            ("ext_path=/a:255m", 1),
            ("ext_path=/a:256m", 2),
            ("ext_path=/a:1g", 8),
            ("ext_path=/a:8g", 64),
            ("ext_path=/a:1t", 1024),
            ("ext_path=/a:1t,ext_path=/b:5m", 4),
            ("ext_path=/a:1t,ext_page_size=128", 128),
        ] {
            assert_eq!(parse(list).page_len(), mib << 20, "{list}");
        }
    }

    #[test]
    fn a_hundredth_of_the_pages_is_kept_free() {
        for (pages, free) in [(1, 1), (199, 1), (200, 2), (12_345, 123)] {
            let settings = parse("ext_path=/a:1g").settings_for(pages);
            assert_eq!((settings.compact_under, settings.drop_under), (free, free), "{pages}");
        }
    }

    #[test]
    fn flash_suboptions_without_effect_are_listed() {
        fn named(list: &str) -> Vec<&'static str> {
            let options = Suboptions::parse([list]).unwrap();
            options.without_effect.iter().map(|(name, _)| *name).collect()
        }
        let list = "ext_wbuf_size=4,ext_threads=1,ext_max_sleep=7,ext_drop_unread";
        let names = ["ext_wbuf_size", "ext_threads", "ext_max_sleep", "ext_drop_unread"];
        assert_eq!(named(list), names);
        assert_eq!(named(&format!("{list},ext_path=/a:1g")), ["ext_wbuf_size", "ext_max_sleep"]);
        assert_eq!(named("ext_path=/a:1g:old"), ["ext_path=FILE:SIZE:old"]);
        assert!(named("ext_path=/a:1g,ext_path=/b:1g:default").is_empty());
    }
}
