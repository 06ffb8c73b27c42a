//! The index. It consists of buckets of eight words. Each key has two candidate buckets
//! (partial-key cuckoo hashing, Fan et al., CoNEXT 2014). The index grows by one bucket at a time
//! (linear hashing, Litwin 1980).
//!
//! The index never reads items. Its callers pass `verify`, which returns whether a location holds
//! the key, and `rehash`, which reads and hashes an item's key again. The index calls `rehash` only
//! after it has grown more than 64-fold, and to report the move of an item in memory to a walk.
//!
//! **Bucket hashes.** A bucket hash is a number of 32 bits. Its lowest bits choose the bucket. The
//! more buckets the index has, the more bits it uses. A key's first bucket hash is the low half of
//! its hash. Its second bucket hash is the first bucket hash with some bits flipped. The key's hash
//! prefix alone determines which bits are flipped. So either bucket hash and the hash prefix
//! determine the other bucket hash. A word keeps six bits of the bucket hash of its bucket. The
//! bucket's number gives the bits below them.
//!
//! **Stripes.** The low bits of a bucket hash choose its stripe, and both bucket hashes of a key
//! share these bits. So one lock covers all buckets that a writer of the key can change, at every
//! size of the index. A split locks only the stripe of the bucket that it splits.
//!
//! **Readers** take no lock. A word is published with one store. A move stores the word in its new
//! slot, raises the stripe's version, and then clears the old slot. A reader that found the word in
//! neither slot sees that the version changed and looks again. A walk reads each bucket once. An
//! item may move to a bucket that the walk has already read; `moved_items` reports such items to
//! the walk.
#![expect(
    clippy::cast_possible_truncation,
    reason = "bucket hashes and bucket numbers have 32 bits"
)]

use super::moved_items::{WalkId, Walks};
use super::word::{GROWTH_BITS, IndexWord, Pattern, count_hit, hash_prefix};
use crate::segment::sync::{AtomicU32, AtomicU64, Ordering, fence, wait_a_little};
use std::collections::HashSet;

/// The number of words in a bucket, which is one cache line.
pub(crate) const BUCKET_SLOTS: usize = 8;

/// The maximum number of buckets whose words an insert considers moving to free a slot. The insert
/// looks for an empty slot in the other bucket of each of these words, in at most 512 buckets in
/// total. Each of these buckets may cause a cache miss under the stripe's lock. With this limit, an
/// index with few stripes fills to 95 % before an insert fails.
const SEARCHED_MAX: usize = 64;

/// An insert uses the key's first bucket if it has at least this many empty slots. Otherwise the
/// insert uses the emptier bucket. In a simulation with 85 % of all slots in use, 84 % of the keys
/// are then in their first bucket, and for 10 % of the new keys both buckets are full. If inserts
/// always filled the first bucket first, the numbers would be 90 % and 25 %; if they always used
/// the emptier bucket, 68 % and 4 %.
const ROOM_MIN: usize = 3;

/// The memory that contains the buckets, their number and the stripes.
pub(crate) trait Buckets {
    /// Returns the slots of a bucket. The memory of a bucket below [`Index::len`] never moves.
    fn bucket(&self, index: usize) -> &[AtomicU64; BUCKET_SLOTS];
    /// Returns the number of buckets in use.
    fn len(&self) -> &AtomicU64;
    /// Returns the word of a stripe.
    fn stripe(&self, stripe: usize) -> &AtomicU32;
}

/// The index over its buckets.
#[derive(Debug)]
pub(crate) struct Index<B> {
    pub(crate) buckets: B,
    /// The walks to which moves are reported.
    pub(crate) walks: Walks,
    /// The bits of a bucket hash that choose its stripe.
    stripe_mask: u32,
    /// log2 of the initial number of buckets. It is also the position of the lowest bit of a bucket
    /// hash that words keep.
    growth_shift: u32,
}

/// The word of a stripe. Bit 0 is the lock. The other bits are the version: they count the moves
/// within the buckets of the stripe.
#[derive(Clone, Copy, Debug)]
struct Stripe<'i>(&'i AtomicU32);

/// A slot of a locked stripe, and the word in it. Valid while the stripe is locked.
#[derive(Debug)]
pub(crate) struct LockedSlot<'i> {
    slot: &'i AtomicU64,
    /// The content of the word when it was found. Readers may have raised its frequency since then.
    pub(crate) word: IndexWord,
}

impl LockedSlot<'_> {
    /// Returns the current frequency.
    pub(crate) fn freq(&self) -> u8 {
        IndexWord(self.slot.load(Ordering::Relaxed)).freq()
    }
}

/// The error of an insert: both candidate buckets of the key are full, and no sequence of moves
/// that frees a slot was found. The search considers the words of up to [`SEARCHED_MAX`] buckets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

impl<B: Buckets> Index<B> {
    /// Creates an index over `buckets`, initially with `len` buckets in use, and `stripes` stripes.
    /// Both are powers of two, and `2 * stripes <= len`.
    pub(crate) fn new(buckets: B, len: usize, stripes: usize) -> Self {
        let index = Self::over(buckets, len, stripes);
        index.buckets.len().store(len as u64, Ordering::Release);
        index
    }

    /// Creates an index over `buckets` that are in use already. `first_len` is the initial number
    /// of buckets of this index.
    pub(crate) fn over(buckets: B, first_len: usize, stripes: usize) -> Self {
        assert!(first_len.is_power_of_two() && stripes.is_power_of_two());
        assert!(2 * stripes <= first_len);
        let (stripe_mask, growth_shift) = (stripes as u32 - 1, first_len.ilog2());
        Self { buckets, walks: Walks::new(), stripe_mask, growth_shift }
    }

    /// Calls `f` with each word that is not empty, and clears the words for which `f` returns
    /// false. The caller has exclusive use of the index.
    pub(crate) fn retain<'i>(&'i self, mut f: impl FnMut(&'i AtomicU64, IndexWord) -> bool) {
        for bucket in 0..self.len() {
            self.retain_in(bucket, &mut f);
        }
    }

    /// Does the same as [`Index::retain`], and also clears words that are in a wrong bucket. Skips
    /// this check if the index has grown more than 64-fold, because the check would then require
    /// the items' keys.
    pub(crate) fn retain_in_own_bucket<'i>(
        &'i self,
        mut f: impl FnMut(&'i AtomicU64, IndexWord) -> bool,
    ) {
        let len = self.len();
        let is_known = len as u64 <= 1 << (self.growth_shift + GROWTH_BITS);
        for bucket in 0..len {
            self.retain_in(bucket, &mut |slot, word| {
                let bucket_hash = || self.bucket_hash_of(bucket, word, [len; 2], &|_| 0);
                (!is_known || fold(bucket_hash(), len) == bucket) && f(slot, word)
            });
        }
    }

    fn retain_in<'i>(
        &'i self,
        bucket: usize,
        f: &mut impl FnMut(&'i AtomicU64, IndexWord) -> bool,
    ) {
        for slot in self.buckets.bucket(bucket) {
            let word = IndexWord(slot.load(Ordering::Relaxed));
            if !word.is_empty() && !f(slot, word) {
                slot.store(IndexWord::EMPTY.0, Ordering::Relaxed);
            }
        }
    }

    /// Unlocks the stripes that a process left locked when it died, and completes the moves in
    /// them: if two words refer to the same item, clears one of the words. Also clears the words in
    /// these stripes that are in a wrong bucket, or for which `is_valid` returns false. Returns the
    /// number of stripes that were locked. The caller has exclusive use of the index.
    pub(crate) fn repair(
        &self,
        is_valid: impl Fn(IndexWord) -> bool,
        rehash: impl Fn(IndexWord) -> u64,
    ) -> usize {
        let len = self.len();
        let mut locked = 0;
        for number in 0..self.stripes() {
            let stripe = Stripe(self.buckets.stripe(number));
            if stripe.0.load(Ordering::Acquire) & Stripe::LOCKED == 0 {
                continue;
            }
            locked += 1;
            let mut found = HashSet::new();
            for bucket in (number..len).step_by(self.stripes()) {
                self.retain_in(bucket, &mut |_, word| {
                    is_valid(word)
                        && fold(self.bucket_hash_of(bucket, word, [len; 2], &rehash), len) == bucket
                        && found.insert((word.is_on_flash(), word.offset()))
                });
            }
            stripe.unlock();
        }
        locked
    }

    /// Returns whether the index can add a bucket without reading the keys of items.
    pub(crate) fn can_grow_without_keys(&self) -> bool {
        (self.len() as u64) < 1 << (self.growth_shift + GROWTH_BITS)
    }

    /// Returns whether moving a word may require the item's key.
    pub(crate) fn has_forgotten_bits(&self) -> bool {
        self.len() as u64 > 1 << (self.growth_shift + GROWTH_BITS)
    }

    /// Calls `f` with each word of the bucket that is not empty. Takes no lock.
    pub(crate) fn for_each_in(&self, bucket: usize, mut f: impl FnMut(IndexWord)) {
        for slot in self.buckets.bucket(bucket) {
            let word = IndexWord(slot.load(Ordering::Acquire));
            if !word.is_empty() {
                f(word);
            }
        }
    }

    /// Returns the number of buckets in use.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.buckets.len().load(Ordering::Acquire) as usize
    }

    /// Returns the number of stripes.
    pub(crate) fn stripes(&self) -> usize {
        self.stripe_mask as usize + 1
    }

    #[inline]
    fn other_bucket_hash(&self, bucket_hash: u32, hash_prefix: u16) -> u32 {
        bucket_hash ^ flip(hash_prefix, self.stripe_mask)
    }

    #[inline]
    fn bucket_hashes(&self, hash: u64) -> [u32; 2] {
        [hash as u32, self.other_bucket_hash(hash as u32, hash_prefix(hash))]
    }

    #[inline]
    fn growth(&self, bucket_hash: u32) -> u8 {
        (u64::from(bucket_hash) >> self.growth_shift) as u8 & ((1 << GROWTH_BITS) - 1)
    }

    /// Returns the patterns of the words that may belong to a key with this hash: the pattern in
    /// the key's first bucket, and the pattern in its second bucket.
    #[inline]
    pub(crate) fn patterns(&self, hash: u64) -> [Pattern; 2] {
        self.bucket_hashes(hash)
            .map(|bucket_hash| Pattern::new(hash_prefix(hash), self.growth(bucket_hash)))
    }

    /// Returns the number of the stripe for a hash, a bucket hash or a bucket number. The low bits
    /// of each determine the stripe.
    fn stripe_number(&self, hash: u64) -> usize {
        (hash as u32 & self.stripe_mask) as usize
    }

    fn stripe(&self, hash: u64) -> Stripe<'_> {
        Stripe(self.buckets.stripe(self.stripe_number(hash)))
    }

    /// Returns the numbers of the two candidate buckets, in the order in which a lookup reads them.
    #[inline]
    pub(crate) fn candidates_of(&self, hash: u64) -> [usize; 2] {
        let len = self.len();
        self.bucket_hashes(hash).map(|bucket_hash| fold(bucket_hash, len))
    }

    #[inline]
    fn buckets_of(&self, hash: u64) -> [&[AtomicU64; BUCKET_SLOTS]; 2] {
        self.candidates_of(hash).map(|bucket| self.buckets.bucket(bucket))
    }

    /// Looks `hash` up without a lock, among the words of items in memory. Returns the first result
    /// of `verify` that is not `None`. The caller holds an epoch pin.
    #[inline]
    pub(crate) fn lookup<'i, R>(
        &'i self,
        hash: u64,
        mut verify: impl FnMut(&'i AtomicU64, IndexWord) -> Option<R>,
    ) -> Option<R> {
        let stripe = self.stripe(hash);
        let patterns = self.patterns(hash);
        loop {
            let version = stripe.version();
            let [first, second] = self.buckets_of(hash);
            let found = scan(first, patterns[0], &mut verify);
            if let Some(found) = found.or_else(|| scan(second, patterns[1], &mut verify)) {
                return Some(found);
            }
            fence(Ordering::Acquire);
            if stripe.version() == version {
                return None;
            }
        }
    }

    /// Looks `hash` up like [`Index::lookup`], but among the words of items in memory and on flash.
    /// Reads each word once, so that it finds an item that moves between the tiers during the
    /// lookup.
    pub(crate) fn lookup_in_any_tier<'i, R>(
        &'i self,
        hash: u64,
        mut verify: impl FnMut(&'i AtomicU64, IndexWord) -> Option<R>,
    ) -> Option<R> {
        let stripe = self.stripe(hash);
        let patterns = self.patterns(hash);
        loop {
            let version = stripe.version();
            for (bucket, pattern) in self.buckets_of(hash).into_iter().zip(patterns) {
                for slot in bucket {
                    let word = IndexWord(slot.load(Ordering::Acquire));
                    if word.matches_in_any_tier(pattern)
                        && let Some(found) = verify(slot, word)
                    {
                        return Some(found);
                    }
                }
            }
            fence(Ordering::Acquire);
            if stripe.version() == version {
                return None;
            }
        }
    }

    /// Locks the stripe of `hash`. The words of keys with this hash change only under this lock.
    pub(crate) fn lock(&self, hash: u64) -> LockedStripe<'_, B> {
        let stripe = self.stripe(hash);
        stripe.lock();
        LockedStripe { index: self, stripe, hash }
    }

    /// Starts reporting moves in `stripe` to a walk, which then reads the buckets of the stripe.
    /// When this function returns, every move that was not reported is complete, so that the walk
    /// finds the moved item in its new slot.
    pub(crate) fn enter_stripe(&self, walk: WalkId, stripe: usize) {
        self.walks.enter(walk, stripe);
        drop(self.lock(stripe as u64));
    }

    /// Returns a hash for a word in `bucket` whose key is not known. The hash has the same prefix
    /// and the same two buckets as the hash of the key, unless [`Index::has_forgotten_bits`]
    /// returns true.
    pub(crate) fn hash_like(&self, bucket: usize, word: IndexWord) -> u64 {
        word.hash_with(self.bucket_hash_of(bucket, word, [self.len(); 2], &|_| 0))
    }

    /// Returns the bucket hash of a word in `bucket`, with enough bits to choose among `wanted_len`
    /// buckets. The index has `len` buckets. Calls `rehash` only if the bucket's number and the
    /// word together do not contain these bits.
    fn bucket_hash_of(
        &self,
        bucket: usize,
        word: IndexWord,
        [len, wanted_len]: [usize; 2],
        rehash: &impl Fn(IndexWord) -> u64,
    ) -> u32 {
        if wanted_len as u64 <= 1 << (self.growth_shift + GROWTH_BITS) {
            let low = bucket as u64 & ((1 << self.growth_shift) - 1);
            return (u64::from(word.growth()) << self.growth_shift | low) as u32;
        }
        let [first, second] = self.bucket_hashes(rehash(word));
        let is_first = self.growth(first) == word.growth() && fold(first, len) == bucket;
        if is_first { first } else { second }
    }

    /// Adds one bucket, and moves to it those words of the split bucket whose bucket hashes now
    /// choose the new bucket. The new bucket must exist in [`Buckets`] and be empty. Only one
    /// thread may grow the index at a time. Before words move, calls `on_split` with the old and
    /// the new bucket while their stripe is locked.
    pub(crate) fn grow(
        &self,
        rehash: impl Fn(IndexWord) -> u64,
        on_split: impl FnOnce(usize, usize),
    ) {
        let new = self.len();
        let source = new - (1 << new.ilog2());
        let locked = self.lock(source as u64);
        on_split(source, new);
        let mut movers = [None; BUCKET_SLOTS];
        let words = self.buckets.bucket(source).iter().zip(self.buckets.bucket(new));
        for (mover, (from, to)) in movers.iter_mut().zip(words) {
            let word = IndexWord(from.load(Ordering::Relaxed));
            if word.is_empty() {
                continue;
            }
            let bucket_hash = self.bucket_hash_of(source, word, [new, new + 1], &rehash);
            if fold(bucket_hash, new + 1) != source {
                to.store(word.0, Ordering::Relaxed);
                *mover = Some(from);
            }
        }
        self.buckets.len().store(new as u64 + 1, Ordering::Release);
        locked.stripe.count_move();
        movers.into_iter().flatten().for_each(|from| from.store(0, Ordering::Release));
    }
}

/// Calls `verify` with each word of a bucket that matches `pattern`. Returns the first result that
/// is not `None`.
#[inline]
pub(crate) fn scan<'i, R>(
    bucket: &'i [AtomicU64; BUCKET_SLOTS],
    pattern: Pattern,
    mut verify: impl FnMut(&'i AtomicU64, IndexWord) -> Option<R>,
) -> Option<R> {
    for slot in bucket {
        let word = IndexWord(slot.load(Ordering::Acquire));
        if word.matches(pattern)
            && let Some(found) = verify(slot, word)
        {
            return Some(found);
        }
    }
    None
}

/// Returns the bits in which the two bucket hashes of a key with this hash prefix differ. None of
/// these bits chooses the stripe. One of them is always the lowest bit above `stripe_mask`, so the
/// two bucket hashes differ.
#[inline]
fn flip(hash_prefix: u16, stripe_mask: u32) -> u32 {
    let mixed = (u64::from(hash_prefix).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    mixed & !stripe_mask | (stripe_mask + 1)
}

/// Maps a bucket hash to a bucket of an index with `len` buckets, by linear hashing. Takes as many
/// low bits of the bucket hash as the highest bucket number has. If the bucket with this number
/// does not exist yet, the highest of these bits is cleared. `len` is not 0.
#[inline]
fn fold(bucket_hash: u32, len: usize) -> usize {
    let mask = u64::MAX >> ((len as u64 - 1) | 1).leading_zeros();
    let bucket = u64::from(bucket_hash) & mask;
    let bucket = if bucket < len as u64 { bucket } else { bucket & (mask >> 1) };
    bucket as usize
}

/// A locked stripe and the operations that need its lock. Dropping it unlocks the stripe.
pub(crate) struct LockedStripe<'i, B: Buckets> {
    index: &'i Index<B>,
    stripe: Stripe<'i>,
    hash: u64,
}

/// A bucket that an insert has visited in its search for an empty slot.
#[derive(Clone, Copy, Default)]
struct Visit {
    bucket: u32,
    /// The index of the visit whose bucket contains a word that could move to this bucket.
    from: u16,
    /// The position of that word's slot in its current bucket.
    slot: u8,
}

impl<'i, B: Buckets> LockedStripe<'i, B> {
    fn slots(&self) -> impl Iterator<Item = &'i AtomicU64> + use<'i, B> {
        self.index.buckets_of(self.hash).into_iter().flatten()
    }

    /// Returns the first word with this hash that refers to memory and for which `verify` returns
    /// true, or `None` if there is no such word.
    #[inline]
    pub(crate) fn find(&self, mut verify: impl FnMut(IndexWord) -> bool) -> Option<LockedSlot<'i>> {
        let mut to_locked =
            |slot, word| if verify(word) { Some(LockedSlot { slot, word }) } else { None };
        let [first, second] = self.index.buckets_of(self.hash);
        let patterns = self.index.patterns(self.hash);
        scan(first, patterns[0], &mut to_locked)
            .or_else(|| scan(second, patterns[1], &mut to_locked))
    }

    /// Returns the words that match this hash and refer to items on flash. Nearly always returns at
    /// most one word. A word may belong to another key, because only 14 to 20 bits are compared.
    pub(crate) fn on_flash(&self) -> impl Iterator<Item = LockedSlot<'i>> + use<'i, B> {
        let buckets = self.index.buckets_of(self.hash).into_iter();
        let patterns = self.index.patterns(self.hash);
        buckets.zip(patterns).flat_map(move |(bucket, pattern)| {
            bucket.iter().filter_map(move |slot| {
                let word = IndexWord(slot.load(Ordering::Acquire));
                let is_wanted = word.is_on_flash() && word.matches_in_any_tier(pattern);
                is_wanted.then_some(LockedSlot { slot, word })
            })
        })
    }

    /// Returns the non-empty words of a bucket in this stripe.
    pub(crate) fn words_of(
        &self,
        bucket: usize,
    ) -> impl Iterator<Item = LockedSlot<'i>> + use<'i, B> {
        let slots = self.index.buckets.bucket(bucket).iter();
        slots.filter_map(|slot| {
            let word = IndexWord(slot.load(Ordering::Acquire));
            (!word.is_empty()).then_some(LockedSlot { slot, word })
        })
    }

    /// Replaces a found word with `word`, which refers to the same item on flash.
    pub(crate) fn move_to_flash(&self, found: &LockedSlot<'i>, word: IndexWord) {
        found.slot.store(word.0, Ordering::Release);
    }

    /// Returns the first candidate bucket.
    pub(crate) fn bucket(&self) -> usize {
        fold(self.hash as u32, self.index.len())
    }

    /// Makes a found word refer to an item with the same key at another location in memory. Sets
    /// the word's frequency to `freq`.
    pub(crate) fn replace(&self, locked_slot: &LockedSlot<'i>, offset: usize, freq: u8) {
        locked_slot.slot.store(locked_slot.word.with_offset(offset, freq).0, Ordering::Release);
    }

    /// Reports to walks that the key may have moved to an earlier bucket.
    pub(crate) fn report_to_walks(&self) {
        self.index.walks.report(self.index.stripe_number(self.hash), || self.hash);
    }

    /// Counts a hit of a found item. Returns true for the first counted hit.
    pub(crate) fn count_hit(&self, locked_slot: &LockedSlot<'i>) -> bool {
        count_hit(locked_slot.slot, IndexWord(locked_slot.slot.load(Ordering::Relaxed)))
    }

    /// Clears a found word.
    pub(crate) fn remove(&self, locked_slot: &LockedSlot<'i>) {
        locked_slot.slot.store(IndexWord::EMPTY.0, Ordering::Release);
    }

    /// Publishes a word for a key that has none. Stores it in the first bucket if that bucket has
    /// at least [`ROOM_MIN`] empty slots, so that most lookups read one bucket. Otherwise stores it
    /// in the emptier bucket. If both are full, moves other words to make room. Fails if it can't
    /// make room.
    pub(crate) fn insert(
        &self,
        offset: usize,
        freq: u8,
        rehash: impl Fn(IndexWord) -> u64,
    ) -> Result<(), IndexFull> {
        let buckets = self.index.candidates_of(self.hash);
        let frees = buckets.map(|bucket| free(self.index.buckets.bucket(bucket)));
        let [first, second] = frees.map(|(_, count)| count);
        let choice = usize::from(first < ROOM_MIN && first < second);
        let (choice, slot) = match frees[choice].0 {
            Some(slot) => (choice, slot),
            None => self.make_room(buckets, &rehash).ok_or(IndexFull)?,
        };
        let pattern = self.index.patterns(self.hash)[choice];
        slot.store(IndexWord::new(pattern, offset, freq).0, Ordering::Release);
        Ok(())
    }

    /// Returns the word with the lowest frequency in either bucket, or `None` if both buckets are
    /// empty. The caller evicts the word's item if the index can't grow.
    pub(crate) fn coldest(&self) -> Option<LockedSlot<'i>> {
        self.slots()
            .map(|slot| LockedSlot { slot, word: IndexWord(slot.load(Ordering::Acquire)) })
            .filter(|locked_slot| !locked_slot.word.is_empty())
            .min_by_key(|locked_slot| locked_slot.word.freq())
    }

    /// Frees a slot in one of two full buckets by moving words within the stripe. Returns the
    /// position of that bucket in `buckets`, and the freed slot. Searches breadth first for the
    /// shortest sequence of moves that ends at an empty slot. Returns `None` if no word in the
    /// first [`SEARCHED_MAX`] buckets of the search can move to an empty slot.
    fn make_room(
        &self,
        buckets: [usize; 2],
        rehash: &impl Fn(IndexWord) -> u64,
    ) -> Option<(usize, &'i AtomicU64)> {
        let len = self.index.len();
        let mut visits = [Visit::default(); SEARCHED_MAX];
        for (visit, bucket) in visits.iter_mut().zip(buckets) {
            visit.bucket = bucket as u32;
        }
        let mut known = buckets.len();
        for at in 0..SEARCHED_MAX {
            if at >= known {
                return None;
            }
            let bucket = visits[at].bucket as usize;
            for (i, slot) in self.index.buckets.bucket(bucket).iter().enumerate() {
                let word = IndexWord(slot.load(Ordering::Acquire));
                let bucket_hash = self.index.bucket_hash_of(bucket, word, [len; 2], rehash);
                let other =
                    fold(self.index.other_bucket_hash(bucket_hash, word.hash_prefix()), len);
                let visit = Visit { bucket: other as u32, from: at as u16, slot: i as u8 };
                if let Some(room) = free(self.index.buckets.bucket(other)).0 {
                    return Some(self.shift(&visits, visit, room, rehash));
                }
                let is_new = visits[..known].iter().all(|known| known.bucket != visit.bucket);
                if known < SEARCHED_MAX && is_new {
                    visits[known] = visit;
                    known += 1;
                }
            }
        }
        None
    }

    /// Moves the words on the path from `last` back to one of the first two buckets. Each word
    /// moves into the slot that the previous move freed. Returns the position of that bucket and
    /// the slot that is now free.
    fn shift(
        &self,
        visits: &[Visit],
        last: Visit,
        mut room: &'i AtomicU64,
        rehash: &impl Fn(IndexWord) -> u64,
    ) -> (usize, &'i AtomicU64) {
        let len = self.index.len();
        let mut visit = last;
        loop {
            let from = visits[usize::from(visit.from)];
            let bucket = from.bucket as usize;
            let slot = &self.index.buckets.bucket(bucket)[usize::from(visit.slot)];
            let word = IndexWord(slot.load(Ordering::Acquire));
            let bucket_hash = self.index.bucket_hash_of(bucket, word, [len; 2], rehash);
            let growth =
                self.index.growth(self.index.other_bucket_hash(bucket_hash, word.hash_prefix()));
            room.store(word.with_growth(growth).0, Ordering::Release);
            self.stripe.count_move();
            if visit.bucket < from.bucket {
                // Report before the caller or the next move overwrites the old slot.
                let stripe = self.index.stripe_number(self.hash);
                self.index.walks.report(stripe, || match word.is_on_flash() {
                    true => word.hash_with(bucket_hash),
                    false => rehash(word),
                });
            }
            room = slot;
            if usize::from(visit.from) < 2 {
                return (visit.from.into(), room);
            }
            visit = from;
        }
    }
}

impl<B: Buckets> Drop for LockedStripe<'_, B> {
    fn drop(&mut self) {
        self.stripe.unlock();
    }
}

/// Returns a bucket's first empty slot, and the number of its empty slots.
fn free(bucket: &[AtomicU64; BUCKET_SLOTS]) -> (Option<&AtomicU64>, usize) {
    let empty = || bucket.iter().filter(|slot| slot.load(Ordering::Relaxed) == IndexWord::EMPTY.0);
    (empty().next(), empty().count())
}

impl Stripe<'_> {
    const LOCKED: u32 = 1;
    const MOVE: u32 = 2;

    #[inline]
    fn version(self) -> u32 {
        self.0.load(Ordering::Acquire) & !Self::LOCKED
    }

    fn lock(self) {
        for round in 0.. {
            let seen = self.0.load(Ordering::Relaxed) & !Self::LOCKED;
            let locked = seen | Self::LOCKED;
            let won =
                self.0.compare_exchange_weak(seen, locked, Ordering::Acquire, Ordering::Relaxed);
            if won.is_ok() {
                return;
            }
            wait_a_little(round);
        }
    }

    /// Unlocks the stripe. A plain store suffices, because only the lock's holder changes a locked
    /// stripe.
    fn unlock(self) {
        self.0.store(self.version(), Ordering::Release);
    }

    /// Raises the version. The holder of the lock calls this function after storing a word in its
    /// new slot and before clearing the old slot.
    fn count_move(self) {
        let locked = self.0.load(Ordering::Relaxed);
        self.0.store(locked.wrapping_add(Self::MOVE), Ordering::Release);
    }
}

/// Buckets in plain memory, for tests.
#[cfg(test)]
pub(crate) mod plain {
    use super::*;

    pub(crate) struct Plain {
        buckets: Vec<[AtomicU64; BUCKET_SLOTS]>,
        len: AtomicU64,
        stripes: Vec<AtomicU32>,
    }

    impl Plain {
        /// Allocates `len` buckets and 64 stripes.
        pub(crate) fn new(len: usize) -> Self {
            Self {
                buckets: (0..len).map(|_| Default::default()).collect(),
                len: AtomicU64::new(0),
                stripes: (0..64).map(|_| AtomicU32::new(0)).collect(),
            }
        }
    }

    impl Buckets for Plain {
        fn bucket(&self, index: usize) -> &[AtomicU64; BUCKET_SLOTS] {
            &self.buckets[index]
        }

        fn len(&self) -> &AtomicU64 {
            &self.len
        }

        fn stripe(&self, stripe: usize) -> &AtomicU32 {
            &self.stripes[stripe]
        }
    }

    /// Returns a hash for the item at offset `8 * id`.
    pub(crate) fn hash(id: u64) -> u64 {
        rapidhash::v3::rapidhash_v3(&id.to_le_bytes())
    }

    pub(crate) fn rehash(word: IndexWord) -> u64 {
        hash(word.offset() as u64 / 8)
    }

    pub(crate) fn put(index: &Index<Plain>, id: u64) -> Result<(), IndexFull> {
        index.lock(hash(id)).insert(usize::try_from(id).unwrap() * 8, 0, rehash)
    }

    pub(crate) fn has(index: &Index<Plain>, id: u64) -> bool {
        let right = |word: IndexWord| word.offset() as u64 == id * 8;
        index.lookup(hash(id), |_, word| right(word).then_some(())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::plain::{Plain, has, hash, put, rehash};
    use super::*;
    use std::cell::Cell;
    use std::collections::HashMap;

    #[test]
    fn every_key_is_found_while_the_index_grows() {
        let index = Index::new(Plain::new(4096), 16, 4);
        let mut kept = HashMap::new();
        let rehashed = Cell::new(0);
        let rehash = |word| {
            rehashed.set(rehashed.get() + 1);
            rehash(word)
        };
        for id in 1..24_000 {
            kept.insert(id, put(&index, id).is_ok());
            if index.len() < 4096 && id % 6 == 0 {
                index.grow(rehash, |_, _| ());
            }
            if index.len() <= 64 * 16 {
                assert_eq!(
                    rehashed.get(),
                    0,
                    "words have enough bits up to 64 times the first length"
                );
            }
        }
        assert!(rehashed.get() > 0 && index.len() > 64 * 16, "and it has grown beyond that");
        assert!(kept.values().filter(|kept| !**kept).count() < 10, "few keys find no room");
        assert!(kept.iter().all(|(id, kept)| has(&index, *id) == *kept));
        assert!(!has(&index, 70_000));
    }

    #[test]
    fn two_choices_and_moves_fill_the_index_well() {
        for stripes in [1, 16, 64] {
            let index = Index::new(Plain::new(4096), 4096, stripes);
            let filled = (1..).take_while(|&id| put(&index, id).is_ok()).count();
            // With more stripes, the chance is higher that one of them fills up early.
            let percent = if stripes == 64 { 87 } else { 94 };
            assert!(filled > 4096 * 8 * percent / 100, "{filled} of {}, {stripes}", 4096 * 8);
            assert!((1..=filled as u64).all(|id| has(&index, id)), "all keys are still found");
        }
    }

    #[test]
    fn either_bucket_hash_and_the_prefix_determine_the_other_bucket_hash() {
        let index = Index::new(Plain::new(64), 64, 8);
        for id in 1..1000 {
            let [first, second] = index.bucket_hashes(hash(id));
            assert_eq!(index.other_bucket_hash(second, hash_prefix(hash(id))), first);
            assert_eq!(first & 7, second & 7, "they share the stripe");
            assert_ne!(fold(first, 64), fold(second, 64));
        }
    }

    #[test]
    fn a_word_and_its_bucket_determine_the_buckets_of_its_key() {
        let index = Index::new(Plain::new(1024), 16, 4);
        for id in 1..7_000 {
            let _ = put(&index, id);
            if index.len() < 1024 && id % 6 == 0 {
                index.grow(rehash, |_, _| ());
            }
        }
        assert_eq!(
            index.len(),
            64 * 16,
            "this is the greatest length for which words have enough bits"
        );
        let mut words = 0;
        for bucket in 0..index.len() {
            index.for_each_in(bucket, |word| {
                let [hash, like] = [rehash(word), index.hash_like(bucket, word)];
                let sorted = |mut two: [usize; 2]| {
                    two.sort_unstable();
                    two
                };
                assert_eq!(sorted(index.candidates_of(hash)), sorted(index.candidates_of(like)));
                let found = index.lookup(like, |_, other| (other == word).then_some(()));
                assert_eq!(found, Some(()));
                words += 1;
            });
        }
        assert!(words > 6_000, "{words}");
    }

    #[test]
    fn moves_of_flash_words_to_an_earlier_bucket_are_reported_to_walks() {
        let index = Index::new(Plain::new(256), 256, 1);
        let words = || {
            let mut words = HashMap::new();
            for bucket in 0..index.len() {
                index.for_each_in(bucket, |word| {
                    words.insert((word.is_on_flash(), word.flash_offset()), bucket);
                });
            }
            words
        };
        let walk = index.walks.begin();
        index.enter_stripe(walk, 0);
        let rehash = |word: IndexWord| {
            assert!(!word.is_on_flash(), "its key is not in memory");
            rehash(word)
        };
        let mut moved = 0;
        for id in 1..1_900 {
            let before = words();
            let locked = index.lock(hash(id));
            locked.insert(usize::try_from(id).unwrap() * 8, 0, rehash).unwrap();
            let locked_slot = locked.find(|word| word.offset() as u64 == id * 8).unwrap();
            if id % 4 > 0 {
                locked.move_to_flash(&locked_slot, locked_slot.word.on_flash(id, 0));
            }
            drop(locked);
            let mut hashes = Vec::new();
            index.walks.take(walk, &mut hashes).unwrap();
            for (item, bucket) in words() {
                if before.get(&item).is_some_and(|before| *before > bucket) {
                    let is_it = |word: IndexWord| (word.is_on_flash(), word.flash_offset()) == item;
                    let finds = |hash: &u64| {
                        index.lookup_in_any_tier(*hash, |_, word| is_it(word).then_some(()))
                    };
                    assert!(hashes.iter().any(|hash| finds(hash).is_some()), "{item:?}");
                    moved += u32::from(item.0);
                }
            }
        }
        index.walks.end(walk);
        assert!(moved > 20, "{moved}");
    }

    #[test]
    fn the_coldest_goes_first() {
        let index = Index::new(Plain::new(2), 2, 1);
        (1..=16).for_each(|id| put(&index, id).unwrap());
        assert_eq!(put(&index, 17), Err(IndexFull));
        for id in (1..=16).filter(|&id| id != 5) {
            let right = |word: IndexWord| word.offset() as u64 == id * 8;
            index.lookup(hash(id), |slot, word| right(word).then(|| count_hit(slot, word)));
        }
        let locked = index.lock(hash(17));
        assert_eq!(locked.coldest().unwrap().word.offset(), 5 * 8);
    }
}
