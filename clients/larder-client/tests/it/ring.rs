//! Tests that each method taken from another client chooses the same servers as that client. Also
//! tests that shares are proportional to weights, and that few keys move when the list changes.
//!
//! Small programs recorded the choices of the other clients: for each of 100,000 keys, the index of
//! the server as a decimal digit. The tests contain the first 64 digits, and the 64-bit FNV-1a hash
//! of all digits.

use larder_client::ring::{Hashing, KeyHash, Node, Ring, RingError, slot};
use proptest::prelude::*;

const KEYS: u32 = 100_000;
const WEIGHTS: [u32; 5] = [1, 2, 3, 4, 10];

fn key(number: u32) -> Vec<u8> {
    let key = match number % 3 {
        0 => format!("key:{number}"),
        1 => format!("{number:x}"),
        _ => format!("user:{number}:{}", "x".repeat(number as usize % 200)),
    };
    key.into_bytes()
}

/// Returns servers named by IP address.
fn by_ip() -> [Node; 5] {
    let address = [(1, 11211), (2, 11211), (3, 11212), (4, 11300), (5, 22122)];
    address.map(|(n, port)| Node::new(format!("127.1.0.{n}"), port))
}

/// Returns servers with host names, and a unix socket.
fn by_host() -> [Node; 5] {
    let [a, b, c, d, _] = resolved();
    [a, b, c, d, Node::unix("/run/cache-5.sock")]
}

/// Returns servers with host names and known IP addresses.
fn resolved() -> [Node; 5] {
    let address = [(1, 11211), (2, 11211), (3, 11212), (4, 11300), (5, 22122)];
    address.map(|(n, port)| Node::new(format!("cache-{n}"), port).ip([127, 1, 0, n].into()))
}

fn weighted(nodes: [Node; 5], weights: [u32; 5]) -> [Node; 5] {
    let mut weights = weights.into_iter();
    nodes.map(|node| node.weight(weights.next().unwrap()))
}

fn ring(hashing: Hashing, nodes: &[Node]) -> Ring {
    Ring::new(hashing, nodes).unwrap()
}

/// Checks the choices of a method for 100,000 keys. `first` contains the first 64 choices, and
/// `digest` is the hash of all choices.
fn check(hashing: Hashing, nodes: [Node; 5], first: &str, digest: u64) {
    let ring = ring(hashing, &nodes);
    check_picks(|number| ring.pick(&key(number)).to_string(), first, digest);
}

/// Checks the choices of a method while some servers are not usable.
fn check_without(hashing: Hashing, without: &[usize], first: &str, digest: u64) {
    let ring = ring(hashing, &by_ip());
    let pick = |number| ring.pick_where(&key(number), |index| !without.contains(&index));
    check_picks(|number| pick(number).unwrap().to_string(), first, digest);
}

fn check_picks(pick: impl Fn(u32) -> String, first: &str, digest: u64) {
    let picks: String = (0..KEYS).map(pick).collect();
    assert_eq!(&picks[..first.len()], first);
    let fnv = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    assert_eq!(picks.bytes().fold(0xcbf2_9ce4_8422_2325, fnv), digest, "all {KEYS} keys");
}

/// The expected choices were recorded with `memcached_generate_hash` of libmemcached 1.1.4 (Debian
/// 12) in a C program, with `MEMCACHED_BEHAVIOR_HASH`.
#[test]
#[rustfmt::skip]
fn modula_equals_libmemcached() {
    let check = |hash, first, digest| check(Hashing::Modula(hash), by_ip(), first, digest);
    check(KeyHash::OneAtATime, "3423001101211100004400231044102142434300113413124123014003411220", 0xeb0b_7f1a_adcb_7de8);
    check(KeyHash::Md5, "3031243130233331022402331401322414002032211310113422112132422144", 0x23c4_01c0_2657_432c);
    check(KeyHash::Crc, "3303212210244021131041402231141001133331014133013330101334223112", 0x314e_6ccb_382e_aec1);
    check(KeyHash::Fnv32, "3121341012121313040402220344423224131310122300013221241043222201", 0x122b_8323_f236_f0ee);
    check(KeyHash::Fnv32a, "3434201144030304230423440412424442102312020423140323011130321033", 0x2da9_4aa9_8ade_6c0b);
    check(KeyHash::Fnv64, "4112332003304001223132430014143404311000344322020230200042043032", 0xe08b_257a_8103_1b49);
    check(KeyHash::Fnv64a, "3113133123120140310320330340320320340340300300340330300300330340", 0xacc3_af85_1116_2d42);
    check(KeyHash::Murmur, "1020304332133033033423144033311330224311302344020122403001224201", 0x58a8_11f4_6273_ea7e);
    check(KeyHash::Murmur3, "2130210333442130241443400144142041433401443240132211321414310000", 0x181e_b13a_15a2_13c3);
}

/// The expected choices were recorded with a C program over libmemcached 1.1.4, with
/// `MEMCACHED_BEHAVIOR_HASH` and then `MEMCACHED_BEHAVIOR_KETAMA`, before the servers were added.
/// Points that are computed with `crc` have 15 bits, so many points are equal.
#[test]
#[rustfmt::skip]
fn ketama_equals_libmemcached() {
    let check = |hash, first, digest| check(Hashing::Ketama(hash), by_ip(), first, digest);
    check(KeyHash::OneAtATime, "2412134114413001030213121323330343203144222203210400044410141401", 0xc488_4d12_7420_3808);
    check(KeyHash::Md5, "4321412401420120314003233343113330243211243433243024102121032330", 0x7d6f_95e1_1c09_682c);
    check(KeyHash::Crc, "2241011331341231013233211211324130441033221320312211000040321311", 0xde03_2cdb_5642_58c9);
    check(KeyHash::Fnv32, "4444444434432432442432432432422402432442440420430430440410430430", 0x92be_d810_60aa_bec6);
    check(KeyHash::Fnv32a, "4234214200041031201234204241011042331021404021431011011041201241", 0xd2cc_aaa3_f280_7efa);
    check(KeyHash::Fnv64, "4444404424400440440440420430430440430430440440440420410420400430", 0xcc5d_aeaa_3ee5_4238);
    check(KeyHash::Fnv64a, "1111141121123113033043013023043043043033013043033023013023013013", 0x6c7e_60d1_b2f8_2102);
    check(KeyHash::Murmur, "0234343324024002202102244021044414340002000443223241413100332141", 0x5915_ec9f_61fa_957b);
    check(KeyHash::Murmur3, "0110020023101230234131041410442024133240410334041002303113301230", 0x51af_f3d0_bf3b_5af2);
}

/// The expected choices were recorded with a C program over libmemcached 1.1.4, with the default
/// hash and servers named by host, first without and then with weights.
#[test]
#[rustfmt::skip]
fn ketama_of_host_names_equals_libmemcached() {
    let check = |nodes, first, digest| check(Hashing::Ketama(KeyHash::OneAtATime), nodes, first, digest);
    check(by_host(), "2334132243302040033123141403212010242314423200302400414303111300", 0xc6c6_c787_6b58_8734);
    let nodes = weighted(by_host(), WEIGHTS);
    check(nodes, "1444244414444442440441020024403443334424244404240444044434442444", 0xd2e3_6c68_00eb_125a);
}

/// The expected choices were recorded with a C program over libmemcached 1.1.4, with
/// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`. The last case then also sets `MEMCACHED_BEHAVIOR_HASH`.
#[test]
#[rustfmt::skip]
fn weighted_ketama_equals_libmemcached() {
    let check = |hash, nodes, first, digest| check(Hashing::KetamaWeighted(hash), nodes, first, digest);
    check(KeyHash::Md5, by_ip(), "4222421412341010112234133310441330322331133233140002232201134114", 0xa062_a5f9_c056_21c7);
    let nodes = weighted(by_ip(), WEIGHTS);
    check(KeyHash::Md5, nodes, "4242424442341414412434433310441333443334133433443424232241134344", 0x057d_ebca_4e74_9b37);
    let nodes = weighted(by_host(), WEIGHTS);
    check(KeyHash::Fnv32a, nodes, "2420424444410444223342244221321414434444344421424441444341424342", 0x3f6a_9cb5_432c_a972);
}

/// The expected choices were recorded with pylibmc 1.6.3 from PyPI, which includes libmemcached
/// 1.0.16. Five servers on loopback recorded the requests of `get_multi`.
#[test]
#[rustfmt::skip]
fn modula_and_ketama_equal_pylibmc() {
    // The first case sets no behaviors. The second case sets `hash: md5`.
    let modula = |hash, first, digest| check(Hashing::Modula(hash), by_ip(), first, digest);
    modula(KeyHash::OneAtATime, "3423001101211100004400231044102142434300113413124123014003411220", 0xeb0b_7f1a_adcb_7de8);
    modula(KeyHash::Md5, "3031243130233331022402331401322414002032211310113422112132422144", 0x23c4_01c0_2657_432c);
    // The first case sets `ketama`, the second sets `ketama` and `hash: md5`, and the third sets
    // `distribution: consistent` and weights.
    let ketama = |hash, nodes, first, digest| check(Hashing::Ketama(hash), nodes, first, digest);
    ketama(KeyHash::OneAtATime, by_ip(), "2412134114413001030213121323330343203144222203210400044410141401", 0xc488_4d12_7420_3808);
    ketama(KeyHash::Md5, by_ip(), "4321412401420120314003233343113330243211243433243024102121032330", 0x7d6f_95e1_1c09_682c);
    let nodes = weighted(by_ip(), WEIGHTS);
    ketama(KeyHash::OneAtATime, nodes, "4432334411142444434432444242323101442444323431423441134443434442", 0x1c1f_6052_8e72_a181);
    // Both cases set `ketama_weighted`: the first without weights, the second with weights.
    let ketama = |nodes, first, digest| check(Hashing::KetamaWeighted(KeyHash::Md5), nodes, first, digest);
    ketama(by_ip(), "4222421412341010112234133310441330322331133233140002232201134114", 0xa062_a5f9_c056_21c7);
    let nodes = weighted(by_ip(), WEIGHTS);
    ketama(nodes, "4242424442341414412434433310441333443334133433443424232241134344", 0x057d_ebca_4e74_9b37);
}

/// The expected choices were recorded with `KetamaNodeLocator` of spymemcached 2.12.3 from Maven.
/// Its nodes were built from socket addresses.
#[test]
#[rustfmt::skip]
fn ketama_equals_spymemcached() {
    let check = |nodes, first, digest| check(Hashing::Spymemcached, nodes, first, digest);
    check(by_ip(), "4222424440141220302234133002441331012311033233141422132010134334", 0x5074_800a_edc1_f9d1);
    check(resolved(), "4200044340341013020333212141212141012201220033220201431400334323", 0x87eb_748d_9aa4_445c);
    let nodes = weighted(resolved(), WEIGHTS);
    check(nodes, "4444444344444413441343214442424441012444224434420241434442334343", 0x1b23_bf0b_8aec_6803);
    let nodes = weighted(resolved(), [1, 0, 3, 4, 10]);
    check(nodes, "4444444344444443440343244342424444042444224434420242434442334343", 0x079f_45c1_7899_9a19);
    // Here the server names are in `Format.LIBMEMCACHED`.
    let ketama = ring(Hashing::KetamaWeighted(KeyHash::Md5), &weighted(resolved(), WEIGHTS));
    let pick = |number| ketama.pick(&key(number)).to_string();
    check_picks(pick, "4344231313444443404143443444224314244424424341432442304421241342", 0xd113_1756_0ed8_eccb);
}

/// The expected choices were recorded with `ArrayModNodeLocator` of spymemcached 2.12.3.
#[test]
#[rustfmt::skip]
fn modula_equals_spymemcached() {
    let check = |hash, first, digest| check(Hashing::Modula(hash), by_ip(), first, digest);
    check(KeyHash::Java, "0413201044241024242031324112331114022320104342100034342120314142", 0x1b29_28ed_2b1b_1178);
    check(KeyHash::Crc, "3303212210244021131041402231141001133331014133013330101334223112", 0x314e_6ccb_382e_aec1);
    check(KeyHash::Md5, "3031243130233331022402331401322414002032211310113422112132422144", 0x23c4_01c0_2657_432c);
    check(KeyHash::Fnv32, "3121341012121313040402220344423224131310122300013221241043222201", 0x122b_8323_f236_f0ee);
    check(KeyHash::Fnv32a, "3434201144030304230423440412424442102312020423140323011130321033", 0x2da9_4aa9_8ade_6c0b);
    check(KeyHash::Fnv64, "4112332003304001223132430014143404311000344322020230200042043032", 0xe08b_257a_8103_1b49);
    check(KeyHash::Fnv64a, "3113133123120140310320330340320320340340300300340330300300330340", 0xacc3_af85_1116_2d42);
}

/// The expected choices were recorded with spymemcached 2.12.3: the first active node of
/// `getPrimary` and `getSequence` while the second server is not active.
#[test]
#[rustfmt::skip]
fn failover_equals_spymemcached() {
    let java = Hashing::Modula(KeyHash::Java);
    check_without(java, &[1], "0423202044242024242032324222332224022320204342200034342220324242", 0xe4c8_3bdd_b627_d439);
    let ring = ring(Hashing::Spymemcached, &by_ip());
    let pick = |number| match number {
        // For this key, spymemcached tries the inactive server seven times and then gives up.
        33_804 => "-".to_owned(),
        _ => ring.pick_where(&key(number), |index| index != 1).unwrap().to_string(),
    };
    check_picks(pick, "4222424440042220302234433002442330042324033233343422432020334334", 0x05db_47e8_f1e2_fe98);
}

/// The expected choices were recorded with `Dalli::Ring#server_for_key` of dalli 3.0.6 (Debian 12).
/// In the last case, the second and the fourth server are not `alive?`.
#[test]
#[rustfmt::skip]
fn ring_equals_dalli() {
    let check = |nodes, first, digest| check(Hashing::Dalli, nodes, first, digest);
    check(by_ip(), "4132214343242403421111233232000100221331010204232221233103041041", 0xbce3_63a3_ee32_3398);
    let nodes = weighted(by_host(), WEIGHTS);
    check(nodes, "0314132224442432220444443443344324233414344420444244333433443434", 0x59ed_82cb_9bf7_ee5a);
    let nodes = weighted(by_ip(), [1, 0, 3, 4, 10]);
    check(nodes, "4442244443242443424444433232402420244434434444432244233323244042", 0x6854_52d1_76f4_e65e);
    check_without(Hashing::Dalli, &[1, 3], "4202204242242400420424220222000400222044040204202220202004040042", 0x449d_a0be_114f_398d);
}

/// The expected choices were recorded with `HashClient._get_client` of pymemcache 4.0.0 from PyPI.
/// The last case was recorded after `remove_node` had removed the second and the fourth server.
#[test]
#[rustfmt::skip]
fn rendezvous_equals_pymemcache() {
    let check = |nodes, first, digest| check(Hashing::Pymemcache, nodes, first, digest);
    check(by_ip(), "0243133043330122031232203340131123212010313140244400322302104343", 0xdbbd_95cc_a1c4_5ac5);
    check(by_host(), "4212024230233440330421044331214341302400040222320320301230110220", 0x991f_9891_9f43_174b);
    check_without(Hashing::Pymemcache, &[1, 3], "0244202040200022004202200240442224222000402040244400222202404442", 0xc664_69d4_8387_c511);
}

/// The expected choices were recorded with `ServerList.PickServer` of gomemcache
/// v0.0.0-20260422231931-4d751bb6e37c. If a server is listed several times, its first index is
/// recorded.
#[test]
#[rustfmt::skip]
fn modula_equals_gomemcache() {
    let check = |nodes, first, digest| check(Hashing::Gomemcache, nodes, first, digest);
    check(by_ip(), "1333333141200123114224401121313142322413333144333004211013421114", 0xbdcf_ed2b_6f75_9e18);
    let [a, b, ..] = by_ip();
    let ring = ring(Hashing::Gomemcache, &[a.clone(), b, a]);
    let pick = |number| (ring.pick(&key(number)) % 2).to_string();
    check_picks(pick, "1010100001001010010010000111100101000001000000000100001101010000", 0x64da_b928_01e8_30c5);
}

/// The expected choices were recorded with a C program that uses `rapidhash.h` (version 3), the
/// paper's function for `Jump`, and `logl` for the weights.
#[test]
#[rustfmt::skip]
fn larder_s_methods_equal_their_description() {
    check(Hashing::Rendezvous, by_ip(), "2411210402202010022440134112323230134312333044042304440403431403", 0xb8a0_fef1_d6f4_d48c);
    let nodes = weighted(by_host(), WEIGHTS);
    check(Hashing::Rendezvous, nodes, "4434244043334344232344341232044023424440243433444433444441442343", 0xc78a_b94a_49f1_de1f);
    check(Hashing::Jump, by_ip(), "4102201120301023342441011312131111330230424431110143243241123322", 0xa881_1541_785a_a017);
}

/// The expected slots were recorded with a C program that uses `rapidhash.h`. A comma follows each
/// number.
#[test]
#[rustfmt::skip]
fn slots_are_rapidhash_modulo_4096() {
    let slot_of = |number| format!("{},", slot(&key(number)));
    check_picks(slot_of, "1332,2389,1995,346,2632,122,878,3855,3068,552,491,1299,1271,3639,2607,664,", 0xa05b_d1ae_17e5_d3a2);
    assert_eq!(slot(b"a{key:0}b"), slot(b"key:0"));
}

/// All methods. A method with several hash functions uses its default function.
const METHODS: [Hashing; 9] = [
    Hashing::Rendezvous,
    Hashing::Jump,
    Hashing::Modula(KeyHash::OneAtATime),
    Hashing::Ketama(KeyHash::OneAtATime),
    Hashing::KetamaWeighted(KeyHash::Md5),
    Hashing::Spymemcached,
    Hashing::Dalli,
    Hashing::Pymemcache,
    Hashing::Gomemcache,
];

#[test]
fn a_ring_needs_a_live_server_with_a_weight() {
    for hashing in METHODS {
        let refusal = |nodes: &[Node]| Ring::new(hashing, nodes).map(|_| ()).unwrap_err();
        assert_eq!(refusal(&[]), RingError::NoNodes);
        let nodes = [Node::new("a", 1).weight(0), Node::new("b", 1).alive(false)];
        assert_eq!(refusal(&nodes), RingError::NoNodes);
    }
}

#[test]
fn one_server_gets_all_keys() {
    for hashing in METHODS {
        let only = Node::new("b", 1).weight(7);
        let dead = Node::new("c", 1).alive(false);
        let ring = ring(hashing, &[Node::new("a", 1).weight(0), only, dead]);
        assert!((0..100).all(|number| ring.pick(&key(number)) == 1), "{hashing:?}");
        assert_eq!(ring.pick_where(b"a", |index| index != 1), None);
    }
}

#[test]
fn different_weights_need_a_method_with_weights() {
    let mut unsupported = METHODS.to_vec();
    unsupported.retain(|hashing| Ring::new(*hashing, &weighted(by_ip(), WEIGHTS)).is_err());
    let modula = Hashing::Modula(KeyHash::OneAtATime);
    let expected = [Hashing::Jump, modula, Hashing::Pymemcache, Hashing::Gomemcache];
    assert_eq!(unsupported, expected);
    for hashing in expected {
        let refusal = Ring::new(hashing, &weighted(by_ip(), WEIGHTS)).map(|_| ());
        assert_eq!(refusal, Err(RingError::WeightsUnsupported));
        // Equal weights are equivalent to no weights.
        let equal = ring(hashing, &weighted(by_ip(), [3; 5]));
        let plain = ring(hashing, &by_ip());
        assert!((0..100).all(|number| equal.pick(&key(number)) == plain.pick(&key(number))));
    }
}

/// Counts the keys of each server.
fn shares(hashing: Hashing, nodes: &[Node]) -> Vec<u32> {
    let ring = ring(hashing, nodes);
    let mut shares = vec![0; nodes.len()];
    (0..KEYS).for_each(|number| shares[ring.pick(&key(number))] += 1);
    shares
}

#[test]
fn a_server_listed_twice_has_two_shares_or_one() {
    let [a, b, ..] = by_ip();
    for hashing in METHODS {
        let used =
            shares(hashing, &[a.clone(), b.clone(), a.clone()]).into_iter().filter(|n| *n > 0);
        let by_index = matches!(hashing, Hashing::Jump | Hashing::Modula(_) | Hashing::Gomemcache);
        assert_eq!(used.count(), if by_index { 3 } else { 2 }, "{hashing:?}");
    }
}

/// Checks that shares are proportional to weights. The tolerance is a fraction of the share. `None`
/// stands for three standard deviations of a random distribution.
fn check_shares(hashing: Hashing, weights: [u32; 5], tolerance: Option<f64>) {
    let total: u32 = weights.iter().sum();
    for (share, weight) in shares(hashing, &weighted(by_ip(), weights)).into_iter().zip(weights) {
        let fair = f64::from(KEYS) * f64::from(weight) / f64::from(total);
        let tolerance = tolerance.map_or(3.0 * fair.sqrt(), |part| part * fair);
        assert!((f64::from(share) - fair).abs() <= tolerance, "{hashing:?}: {share} not {fair}");
    }
}

#[test]
fn shares_are_proportional_to_weights() {
    for weights in [WEIGHTS, [1; 5], [1, 0, 1, 0, 1], [1000, 1, 1000, 500, 2000]] {
        check_shares(Hashing::Rendezvous, weights, None);
    }
    check_shares(Hashing::Jump, [1; 5], None);
    for weights in [WEIGHTS, [1; 5]] {
        for hash in [KeyHash::OneAtATime, KeyHash::Md5, KeyHash::Murmur] {
            check_shares(Hashing::KetamaWeighted(hash), weights, Some(0.25));
        }
        check_shares(Hashing::Spymemcached, weights, Some(0.25));
        check_shares(Hashing::Dalli, weights, Some(0.25));
    }
}

#[test]
fn an_added_server_takes_only_its_share() {
    for count in [2, 5, 49] {
        let nodes: Vec<_> = (0..=count).map(|n| Node::new(format!("cache-{n}"), 11211)).collect();
        for hashing in [Hashing::Jump, Hashing::Rendezvous] {
            let before = ring(hashing, &nodes[..count]);
            let after = ring(hashing, &nodes);
            let picks = (0..KEYS).map(|n| (before.pick(&key(n)), after.pick(&key(n))));
            let moved: Vec<_> = picks.filter(|(from, to)| from != to).collect();
            assert!(moved.iter().all(|(_, to)| *to == count));
            let fair = f64::from(KEYS) / (count + 1) as f64;
            let error = (moved.len() as f64 - fair).abs();
            assert!(error <= 3.0 * fair.sqrt(), "{hashing:?}: {} not {fair}", moved.len());
        }
    }
}

/// Generates the weights of 2 to 11 servers, and the index of one server.
fn servers() -> impl Strategy<Value = (Vec<u32>, usize)> {
    (proptest::collection::vec(1..6_u32, 2..12)).prop_flat_map(|weights| {
        let count = weights.len();
        (Just(weights), 0..count)
    })
}

fn nodes(weights: &[u32]) -> Vec<Node> {
    let node = |(n, weight): (usize, &u32)| Node::new(format!("cache-{n}"), 11211).weight(*weight);
    weights.iter().enumerate().map(node).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tests consistent methods: if a server is removed, only its keys move. With most methods,
    /// these keys move to the same servers as while the removed server is unusable.
    #[test]
    fn removing_a_server_moves_only_its_keys((weights, removed) in servers()) {
        let equal = vec![1; weights.len()];
        let methods = [
            (Hashing::Rendezvous, &weights, true),
            (Hashing::Rendezvous, &equal, true),
            (Hashing::Ketama(KeyHash::OneAtATime), &equal, true),
            (Hashing::Ketama(KeyHash::Md5), &equal, true),
            (Hashing::Pymemcache, &equal, true),
            // If a server is not usable, spymemcached and dalli try another hash before the next
            // point.
            (Hashing::Spymemcached, &equal, false),
            (Hashing::Dalli, &equal, false),
        ];
        for (hashing, weights, is_next) in methods {
            let mut nodes = nodes(weights);
            let all = ring(hashing, &nodes);
            let removed_node = nodes[removed].clone();
            nodes[removed] = removed_node.alive(false);
            let others = ring(hashing, &nodes);
            for number in 0..200 {
                let key = key(number);
                let (before, after) = (all.pick(&key), others.pick(&key));
                prop_assert_ne!(after, removed);
                prop_assert!(before == after || before == removed, "{:?}", hashing);
                let next = all.pick_where(&key, |index| index != removed);
                prop_assert!(next == Some(after) || !is_next, "{:?}", hashing);
            }
        }
    }

    /// Tests all hashing methods: a key keeps its server while that server is usable, and each key
    /// has a server if any server is usable.
    #[test]
    fn a_usable_server_is_found((weights, _) in servers(), usable in any::<u16>()) {
        let nodes = nodes(&vec![1; weights.len()]);
        let is_usable = |index: usize| usable >> index & 1 == 1;
        let any = (0..nodes.len()).any(is_usable);
        for hashing in METHODS {
            let ring = ring(hashing, &nodes);
            for number in 0..200 {
                let key = key(number);
                let pick = ring.pick(&key);
                prop_assert!(pick < nodes.len());
                let found = ring.pick_where(&key, is_usable);
                prop_assert_eq!(found.is_some(), any);
                prop_assert!(found.is_none_or(is_usable));
                prop_assert!(found == Some(pick) || !is_usable(pick), "{:?}", hashing);
            }
        }
    }

    /// Tests the methods that ignore the order of servers.
    #[test]
    fn the_order_of_servers_does_not_matter((weights, turned) in servers()) {
        let mut nodes = nodes(&weights);
        let rings = |nodes: &[Node]| {
            let methods = [Hashing::Rendezvous, Hashing::KetamaWeighted(KeyHash::Md5)];
            methods.into_iter().chain([Hashing::Spymemcached, Hashing::Dalli])
                .map(|hashing| ring(hashing, nodes)).collect::<Vec<_>>()
        };
        let before = rings(&nodes);
        nodes.rotate_left(turned);
        for (before, after) in before.iter().zip(rings(&nodes)) {
            for number in 0..200 {
                let key = key(number);
                prop_assert_eq!(before.pick(&key), (after.pick(&key) + turned) % nodes.len());
            }
        }
    }
}
