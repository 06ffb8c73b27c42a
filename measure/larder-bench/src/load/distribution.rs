//! Distributes keys over several servers with libmemcached's algorithms.
//!
//! `modula` and `ketama` use Jenkins's one-at-a-time hash; `ketama-weighted` uses MD5. Both
//! `ketama` algorithms use a ring with many points per server. A point is a hash of the server's
//! name followed by a number. The first point at or above the hash of a key determines the key's
//! server.

use crate::settings::{Distribution, NamedServer};
use larder_target::ServerAddress;
use md5::{Digest, Md5};

/// Maps keys to servers. A server's number is its index in the list.
#[derive(Debug)]
pub(crate) enum KeyRouter {
    /// The hash of the key modulo this number of servers.
    Modula(u32),
    /// The ring's points in ascending order, each with its server's index.
    Ring { points: Vec<(u32, usize)>, hash: fn(&[u8]) -> u32 },
}

/// The default port. Names of points omit it, and contain any other port.
const DEFAULT_PORT: u16 = 11211;

/// Number of points per server in `ketama`.
const POINTS: u32 = 100;

/// Number of points per server in `ketama-weighted`, before rounding.
const WEIGHTED_POINTS: f32 = 160.0;

/// Number of points that are derived from one MD5 digest.
const POINTS_PER_DIGEST: usize = 4;

impl KeyRouter {
    pub(crate) fn new(servers: &[NamedServer], distribution: Distribution) -> Self {
        match distribution {
            Distribution::Modula => Self::Modula(u32::try_from(servers.len()).unwrap_or(u32::MAX)),
            Distribution::Ketama => {
                let points = |server| (0..POINTS).map(move |n| one_at_a_time(&point(server, n)));
                Self::ring(servers, points, one_at_a_time)
            }
            Distribution::KetamaWeighted => {
                let digests = digests_per_server(servers.len());
                let points = |server| (0..digests).flat_map(move |n| md5_points(&point(server, n)));
                Self::ring(servers, points, |key| md5_points(key)[0])
            }
        }
    }

    fn ring<'s, P: Iterator<Item = u32>>(
        servers: &'s [NamedServer],
        points: impl Fn(&'s NamedServer) -> P,
        hash: fn(&[u8]) -> u32,
    ) -> Self {
        let of_server = |(number, server)| points(server).map(move |point| (point, number));
        let mut points: Vec<(u32, usize)> =
            servers.iter().enumerate().flat_map(of_server).collect();
        points.sort_unstable();
        Self::Ring { points, hash }
    }

    /// Returns the index of the server that stores `key`.
    #[inline]
    pub(crate) fn server_of(&self, key: &[u8]) -> usize {
        match self {
            Self::Modula(servers) => (one_at_a_time(key) % servers) as usize,
            Self::Ring { points, hash } => {
                let hash = hash(key);
                let at = points.partition_point(|(point, _)| *point < hash);
                // After the last point, the ring wraps around.
                points.get(at).unwrap_or(&points[0]).1
            }
        }
    }
}

/// Returns the name of point `number` of a server. The hash of the name is the position of the
/// point on the ring.
fn point(server: &NamedServer, number: u32) -> Vec<u8> {
    let NamedServer { host, address } = server;
    match address {
        ServerAddress::Tcp(address) if address.port() != DEFAULT_PORT => {
            format!("{host}:{}-{number}", address.port()).into_bytes()
        }
        _ => format!("{host}-{number}").into_bytes(),
    }
}

/// Returns the number of MD5 digests per server. libmemcached computes this number in single
/// precision from a server's share of all weights, so the result is 39 instead of 40 for some
/// numbers of servers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "as libmemcached computes it, with small numbers"
)]
fn digests_per_server(servers: usize) -> u32 {
    let servers = servers as f32;
    let share = 1.0 / servers;
    (share * WEIGHTED_POINTS / POINTS_PER_DIGEST as f32 * servers + 1e-10).floor() as u32
}

/// Computes Jenkins's one-at-a-time hash. Bytes are signed, as C's `char` is on x86-64.
#[inline]
fn one_at_a_time(bytes: &[u8]) -> u32 {
    let mixed = bytes.iter().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add_signed(i32::from(byte.cast_signed()));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    let mixed = mixed.wrapping_add(mixed << 3);
    let mixed = mixed ^ (mixed >> 11);
    mixed.wrapping_add(mixed << 15)
}

/// Returns the four little-endian words of an MD5 digest.
fn md5_points(bytes: &[u8]) -> [u32; POINTS_PER_DIGEST] {
    let digest = Md5::digest(bytes);
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| digest[4 * at + byte]));
    [word(0), word(1), word(2), word(3)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use Distribution::{Ketama, KetamaWeighted, Modula};

    fn server(host: &str, port: u16) -> NamedServer {
        let address = ServerAddress::Tcp(([127, 0, 0, 1], port).into());
        NamedServer { host: host.to_owned(), address }
    }

    fn servers_of(servers: &[NamedServer], distribution: Distribution, keys: u32) -> Vec<usize> {
        let router = KeyRouter::new(servers, distribution);
        let of = |number| router.server_of(format!("memtier-{number}").as_bytes());
        (0..keys).map(of).collect()
    }

    #[test]
    fn known_hashes() {
        // The expected values are from the published description of the one-at-a-time hash, and
        // from RFC 1321.
        assert_eq!(one_at_a_time(b"a"), 0xca2e_9442);
        assert_eq!(one_at_a_time(b"The quick brown fox jumps over the lazy dog"), 0x519e_91f5);
        assert_eq!(md5_points(b"abc")[0].to_le_bytes(), [0x90, 0x01, 0x50, 0x98]);
    }

    /// Compares the servers of `memtier-0` to `memtier-31` with those that libmemcached 1.1.4
    /// chooses.
    #[test]
    fn keys_belong_to_the_servers_of_libmemcached() {
        let servers = [
            server("10.0.1.1", 11211),
            server("10.0.1.2", 11211),
            server("cache.example", 11212),
            server("127.0.0.1", 21000),
        ];
        for (distribution, expected) in [
            (Modula, "31031221303033022123022310000101"),
            (Ketama, "03201201301320112130300100123122"),
            (KetamaWeighted, "30031003331212033321302010220030"),
        ] {
            let found = servers_of(&servers, distribution, 32);
            let found: String = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{distribution:?}");
        }
        let modula = KeyRouter::new(&servers, Modula);
        assert_eq!(modula.server_of("memtier-é".as_bytes()), 3);
    }

    /// For each number of servers, compares a checksum of the servers chosen for `memtier-0` to
    /// `memtier-1999` with the checksum of the servers that libmemcached chooses. For some numbers
    /// of servers, `ketama-weighted` has fewer points.
    #[test]
    fn any_number_of_servers_is_as_with_libmemcached() {
        for (count, modula, ketama, weighted) in [
            (2, 2_128_658_999, 3_320_118_718, 1_343_405_080),
            (3, 1_316_551_944, 916_980_791, 350_569_913),
            (5, 505_838_389, 854_416_059, 199_787_157),
            (6, 2_704_514_159, 3_016_770_276, 3_785_637_778),
            (7, 1_908_258_768, 4_276_104_896, 3_420_701_946),
            (10, 2_893_431_229, 2_357_590_221, 3_131_447_975),
            (11, 947_254_128, 1_894_897_989, 2_775_133_654),
            (12, 646_529_629, 2_903_430_311, 3_411_715_171),
            (13, 703_865_197, 3_616_578_836, 3_815_186_903),
            (14, 369_150_821, 2_741_548_943, 2_406_266_531),
            (23, 1_074_031_580, 331_174_440, 3_809_601_347),
            (25, 2_476_520_522, 2_742_114_167, 427_084_449),
            (30, 3_921_400_601, 3_179_182_691, 1_115_957_847),
        ] {
            let servers: Vec<NamedServer> =
                (0..count).map(|n| server(&format!("10.0.1.{n}"), 11211 + n)).collect();
            for (distribution, expected) in
                [(Modula, modula), (Ketama, ketama), (KetamaWeighted, weighted)]
            {
                let found = servers_of(&servers, distribution, 2000).into_iter();
                let sum = found.fold(0u32, |sum, server| {
                    sum.wrapping_mul(31).wrapping_add(u32::try_from(server).unwrap())
                });
                assert_eq!(sum, expected, "{count} servers, {distribution:?}");
            }
        }
    }
}
