//! The command line: memcached's options where they have a meaning here, and Larder's own.

use crate::version;
use clap::{ArgAction, Parser, ValueEnum};
use std::path::PathBuf;

/// Larder, a cache server for memcached's clients.
#[derive(Clone, Debug, Parser)]
#[command(name = "larderd", about, version = version::LARDER, disable_version_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is one switch of the command line")]
pub struct Options {
    /// TCP port; 0 listens on none, -1 on any free one
    #[arg(
        short = 'p',
        long,
        value_name = "NUM",
        default_value_t = 11211,
        allow_hyphen_values = true
    )]
    pub port: i32,

    /// UDP port; only 0, off, for now
    #[arg(short = 'U', long, value_name = "NUM", default_value_t = 0, allow_hyphen_values = true)]
    pub udp_port: i32,

    /// Unix socket to listen on instead of TCP
    #[arg(short = 's', long, value_name = "FILE")]
    pub unix_socket: Option<PathBuf>,

    /// Access mask of the unix socket, in octal
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = octal)]
    pub unix_mask: u32,

    /// Addresses to listen on, separated by commas: HOST, HOST:PORT, [V6]:PORT or *
    #[arg(short = 'l', long, value_name = "ADDR", value_delimiter = ',')]
    pub listen: Vec<String>,

    /// User to become when started as root
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,

    /// Memory for items and what belongs to them, in MiB
    #[arg(short = 'm', long, value_name = "MB", default_value_t = 64)]
    pub memory_limit: usize,

    /// Answer with an error when memory is full rather than dropping items
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,

    /// Connections at once
    #[arg(short = 'c', long, value_name = "NUM", default_value_t = 1024)]
    pub conn_limit: usize,

    /// Worker threads
    #[arg(short = 't', long, value_name = "NUM", default_value_t = 4)]
    pub threads: usize,

    /// Connections that may wait to be accepted
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = 1024)]
    pub listen_backlog: i32,

    /// Largest item, 1024 bytes to 1 GiB; k and m are understood
    #[arg(short = 'I', long, value_name = "NUM", default_value = "1m", value_parser = item_size)]
    pub max_item_size: usize,

    /// Requests answered for one connection before the next has its turn (memcached: 20; requests
    /// cost less here)
    #[arg(short = 'R', long, value_name = "NUM", default_value_t = 64)]
    pub max_reqs_per_event: usize,

    /// Keep no CAS: 8 bytes less for each item
    #[arg(short = 'C', long)]
    pub disable_cas: bool,

    /// Refuse flush_all
    #[arg(short = 'F', long)]
    pub disable_flush_all: bool,

    /// Refuse dumps of keys: lru_crawler metadump and mgdump, stats cachedump, stats detail
    #[arg(short = 'X', long)]
    pub disable_dumping: bool,

    /// Refuse watch
    #[arg(short = 'W', long)]
    pub disable_watch: bool,

    /// Count by what keys have before this character, and begin at once [default: :]
    #[arg(short = 'D', value_name = "CHAR", value_parser = delimiter)]
    pub prefix_delimiter: Option<u8>,

    /// No effect: there are no slab classes
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub slab_growth_factor: Option<f64>,

    /// No effect: there are no slab classes
    #[arg(short = 'n', long, value_name = "BYTES")]
    pub slab_min_size: Option<usize>,

    /// What keeps the items
    #[arg(long, value_enum, default_value_t = EngineKind::Segment)]
    pub engine: EngineKind,

    /// What --engine moka drops first [default: lru]
    #[arg(long, value_enum)]
    pub eviction_policy: Option<EvictionPolicy>,

    /// What moves the bytes
    #[arg(long, value_enum, default_value_t = Runtime::PerCore)]
    pub runtime: Runtime,

    /// Keep each worker on a core of its own
    #[arg(long)]
    pub pin: bool,

    /// Say more: -v what happens, -vv requests' errors, -vvv everything
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print the version and exit
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// The engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// Larder's own
    Segment,
    /// The moka crate: items on the heap
    Moka,
    /// The dashmap crate: items on the heap, none is ever evicted; needs -M
    Dashmap,
}

/// What moka drops first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvictionPolicy {
    /// What was used longest ago
    Lru,
    /// What is used least often
    TinyLfu,
}

/// The drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    /// One event loop a thread
    PerCore,
}

/// A command line that can't be served, and the exit status that memcached gives it.
#[derive(Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What to tell the operator.
    pub message: String,
    /// 1 for a value that is refused by itself, 64 (`EX_USAGE`) for one that does not go with others.
    pub status: u8,
}

const USAGE: u8 = 64;
const ITEM_SIZE_MIN: usize = 1024;
const ITEM_SIZE_MAX: usize = 1 << 30;
const MIB: usize = 1 << 20;

impl Options {
    /// How much is to be logged, in memcached's levels.
    #[must_use]
    pub fn verbosity(&self) -> u32 {
        self.verbose.into()
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.memory_limit.saturating_mul(MIB)
    }

    /// Refuses what can't be done.
    ///
    /// # Errors
    /// [`Misuse`], with memcached's message where it has one.
    pub fn check(&self) -> Result<(), Misuse> {
        let refuse = |status, message: &str| Err(Misuse { message: message.to_owned(), status });
        if self.conn_limit == 0 {
            return refuse(1, "Maximum connections must be greater than 0");
        }
        if self.threads == 0 {
            return refuse(1, "Number of threads must be greater than 0");
        }
        if self.max_reqs_per_event == 0 {
            return refuse(1, "Number of requests per event must be greater than 0");
        }
        if self.slab_growth_factor.is_some_and(|factor| factor <= 1.0) {
            return refuse(1, "Factor must be greater than 1");
        }
        if self.slab_min_size == Some(0) {
            return refuse(1, "Chunk size must be greater than 0");
        }
        if !(-1..=65_535).contains(&self.port) {
            return refuse(USAGE, "The TCP port must be 0 to 65535, or -1 for any");
        }
        if self.udp_port != 0 {
            return refuse(USAGE, "UDP is not supported: leave -U out, or give -U 0");
        }
        self.check_sizes()?;
        self.check_engine()
    }

    fn check_sizes(&self) -> Result<(), Misuse> {
        let refuse = |message: String| Err(Misuse { message, status: USAGE });
        if self.max_item_size < ITEM_SIZE_MIN {
            return refuse("Item max size cannot be less than 1024 bytes.".to_owned());
        }
        if self.max_item_size > ITEM_SIZE_MAX {
            return refuse("Cannot set item size limit higher than a gigabyte.".to_owned());
        }
        if self.memory_limit < MEMORY_LIMIT_MIN {
            return refuse(format!(
                "The memory limit must be at least {MEMORY_LIMIT_MIN} MiB (-m)"
            ));
        }
        if self.max_item_size > self.limit_bytes() / 2 {
            return refuse("Cannot set item size limit higher than 1/2 of memory max.".to_owned());
        }
        Ok(())
    }

    fn check_engine(&self) -> Result<(), Misuse> {
        let refuse = |message: &str| Err(Misuse { message: message.to_owned(), status: USAGE });
        match self.engine {
            EngineKind::Dashmap if !self.disable_evictions => {
                refuse("--engine dashmap cannot evict: add -M, or choose another engine")
            }
            EngineKind::Moka if self.disable_evictions => {
                refuse("--engine moka always evicts: leave -M out, or choose another engine")
            }
            EngineKind::Segment | EngineKind::Dashmap if self.eviction_policy.is_some() => {
                refuse("--eviction-policy is a choice of --engine moka alone")
            }
            _ => Ok(()),
        }
    }
}

/// Below this queues and index have no room, in MiB.
const MEMORY_LIMIT_MIN: usize = 3;

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [delimiter, ..] => Ok(*delimiter),
        [] => Err("no delimiter specified".to_owned()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    let mask = u32::from_str_radix(text, 8).map_err(|_| format!("{text} is not octal"))?;
    if mask <= 0o777 { Ok(mask) } else { Err(format!("{text} is not a file mode")) }
}

fn item_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<usize>().map_err(|_| format!("{text} is not a size"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        let words = std::iter::once("larderd").chain(line.split_whitespace());
        Options::try_parse_from(words).unwrap()
    }

    fn misuse(line: &str) -> (u8, String) {
        let Misuse { message, status } = parse(line).check().unwrap_err();
        (status, message)
    }

    #[test]
    fn memcacheds_lines_are_understood() {
        let line =
            "-p11212 -U 0 -m128 -c 2048 -t2 -R 20 -C -F -b 512 -I 2m -l 127.0.0.1,[::1]:7 -vv";
        let options = parse(line);
        assert!(options.check().is_ok());
        assert_eq!((options.port, options.memory_limit, options.threads), (11212, 128, 2));
        assert_eq!((options.conn_limit, options.max_reqs_per_event), (2048, 20));
        assert_eq!(options.max_item_size, 2 << 20);
        assert_eq!(options.listen, ["127.0.0.1", "[::1]:7"]);
        assert_eq!(options.verbosity(), 2);
        assert!(options.disable_cas && options.disable_flush_all);
        let long = parse("--port=-1 --memory-limit 64 --max-item-size=512k --unix-mask=777");
        assert_eq!((long.port, long.max_item_size, long.unix_mask), (-1, 512 << 10, 0o777));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        assert_eq!(misuse("-c 0"), (1, "Maximum connections must be greater than 0".to_owned()));
        assert_eq!(misuse("-t 0").0, 1);
        assert_eq!(misuse("-f 1").0, 1);
        assert_eq!(misuse("-I 1000").0, 64);
        assert_eq!(misuse("-I 40m").0, 64);
        assert_eq!(misuse("-I 2g -m 8192").0, 64);
        assert_eq!(misuse("-U 11211").0, 64);
        assert!(misuse("--engine dashmap").1.contains("-M"));
        assert!(misuse("--engine moka -M").1.contains("-M"));
        assert!(misuse("--eviction-policy lru").1.contains("moka"));
    }
}
