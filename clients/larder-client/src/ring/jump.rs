//! Jump consistent hashing (Lamping and Veach, 2014).

use super::rendezvous::mix;
use rapidhash::v3::rapidhash_v3;

/// The number of hashes of a key that `pick_where` tries, including the first. After these hashes,
/// the function tries the servers in the order of the list.
const REHASHES: u32 = 8;

/// Returns the index of a usable server for a key, below `count`. The first hash of the key is
/// rapidhash. If its server is not usable, the function mixes the hash again to choose another
/// server. These further hashes spread the keys of an unusable server over all other servers.
/// Returns `None` if no server is usable.
pub(super) fn pick_where(
    key: &[u8],
    count: usize,
    mut is_usable: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut hash = rapidhash_v3(key);
    let first = jump(hash, count);
    let mut bucket = first;
    for _ in 0..REHASHES {
        if is_usable(bucket) {
            return Some(bucket);
        }
        hash = mix(hash);
        bucket = jump(hash, count);
    }
    (first..count).chain(0..first).find(|bucket| is_usable(*bucket))
}

/// Returns a bucket from 0 to `count` − 1 with the function from the paper. If `count` grows by
/// one, 1 ÷ (`count` + 1) of the keys of each bucket move to the new bucket. No other key moves.
#[expect(clippy::cast_possible_truncation, reason = "the paper truncates, too")]
fn jump(mut hash: u64, count: usize) -> usize {
    let mut bucket = 0;
    let mut next = 0;
    while next < count as u64 {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1_u64 << 31) as f64 / ((hash >> 33) + 1) as f64)) as u64;
    }
    bucket as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares buckets with `jump.Hash` of github.com/dgryski/go-jump,
    /// v0.0.0-20170409065014-e1f439676b57. The hashes are multiples of a constant. `first` contains
    /// the first twenty buckets. `digest` is the 64-bit FNV-1a hash of 100,000 buckets in decimal,
    /// each followed by a comma.
    #[test]
    #[rustfmt::skip]
    fn buckets_equal_those_of_go_jump() {
        check(5, [0, 3, 0, 3, 2, 3, 2, 0, 2, 2, 3, 1, 0, 1, 3, 1, 4, 0, 2, 3], 0x7b2e_6b18_5eb6_9b57);
        check(1000, [0, 838, 529, 945, 60, 71, 916, 756, 956, 786, 520, 292, 161, 336, 991, 701, 811, 339, 892, 846], 0x860f_3b59_f967_0102);
    }

    fn check(count: usize, first: [usize; 20], digest: u64) {
        let bucket = |n: u64| jump(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), count);
        assert_eq!(first.as_slice(), (0..20).map(bucket).collect::<Vec<_>>());
        let text: String = (0..100_000).map(|n| format!("{},", bucket(n))).collect();
        let fnv = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        assert_eq!(text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv), digest, "{count} buckets");
    }
}
