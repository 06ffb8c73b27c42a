//! Which key lives where: buckets of eight words, two candidate buckets a key, growing one bucket at
//! a time (linear hashing, Litwin 1980; two choices, Azar et al. 1994).
//!
//! The index never touches items. Who asks brings a `verify` that says whether a location holds the
//! key, and a `rehash` that reads an item's key again.
//!
//! **Stripes.** The low bits of a hash choose its stripe, and both candidate buckets share these
//! bits, at every size. So one lock covers everything a writer of one key can touch, and a split
//! locks just the stripe of the bucket that it splits.
//!
//! **Readers** take no lock. A word is published whole. A word that moves is first stored in its new
//! place, then the stripe's version goes up, then the old place is cleared: a reader that found
//! neither sees the version change and looks again.
#![expect(clippy::cast_possible_truncation, reason = "a bucket number fits an index")]

use super::slot::{FREQ_MAX, Slot};
use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, wait_a_little};

/// Words in a bucket: one cache line.
pub(super) const BUCKET_SLOTS: usize = 8;

/// Items that an insert moves to other buckets at most. Two fill the index above nine tenths even
/// where growth, which splits buckets in order, is still far from.
const DISPLACEMENTS_MAX: u32 = 2;

/// Where the buckets are. The index decides which, this knows where.
pub(super) trait Buckets {
    /// The words of a bucket. The memory of a bucket below [`Index::len`] never moves.
    fn bucket(&self, index: usize) -> &[AtomicU64; BUCKET_SLOTS];
}

/// The index.
#[derive(Debug)]
pub(super) struct Index<B> {
    pub(super) buckets: B,
    /// Buckets in use.
    len: AtomicUsize,
    stripes: Box<[Stripe]>,
}

/// A lock (bit 0) and the count of moves within its buckets (the rest).
#[derive(Debug)]
struct Stripe(AtomicU32);

/// A found word and its place, valid while the stripe is locked.
#[derive(Debug)]
pub(super) struct Place<'i> {
    word: &'i AtomicU64,
    /// What it held when it was found; readers may have raised its frequency since.
    pub(super) slot: Slot,
}

impl Place<'_> {
    /// How often it was read, as counted by now.
    pub(super) fn freq(&self) -> u8 {
        Slot(self.word.load(Ordering::Relaxed)).freq()
    }
}

/// Both candidate buckets are full, and so are those that their items could move to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<B: Buckets> Index<B> {
    /// `len` buckets to begin with and as many stripes, both powers of two, `stripes <= len`.
    pub(super) fn new(buckets: B, len: usize, stripes: usize) -> Self {
        assert!(len.is_power_of_two() && stripes.is_power_of_two() && stripes <= len);
        let stripes = (0..stripes).map(|_| Stripe(AtomicU32::new(0))).collect();
        Self { buckets, len: AtomicUsize::new(len), stripes }
    }

    /// Buckets in use.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    #[inline]
    fn candidates(&self, hash: u64, len: usize) -> [usize; 2] {
        candidates(hash, len, self.stripes.len())
    }

    fn stripe(&self, hash: u64) -> &Stripe {
        // The mask keeps it in range; the count is a power of two.
        &self.stripes[usize::try_from(hash & (self.stripes.len() as u64 - 1)).expect("small")]
    }

    /// The bucket that a look-up reads first, and the other.
    #[inline]
    pub(super) fn buckets_of(&self, hash: u64) -> [&[AtomicU64; BUCKET_SLOTS]; 2] {
        self.candidates(hash, self.len()).map(|bucket| self.buckets.bucket(bucket))
    }

    /// The numbers of these.
    #[inline]
    pub(super) fn candidates_of(&self, hash: u64) -> [usize; 2] {
        self.candidates(hash, self.len())
    }

    /// Looks `hash` up without a lock: the first word for which `verify` returns something. The
    /// caller holds an epoch pin.
    #[inline]
    pub(super) fn lookup<'i, R>(
        &'i self,
        hash: u64,
        mut verify: impl FnMut(&'i AtomicU64, Slot) -> Option<R>,
    ) -> Option<R> {
        let stripe = self.stripe(hash);
        loop {
            let version = stripe.version();
            let [first, second] = self.buckets_of(hash);
            let found = scan(first, hash, &mut verify);
            if let Some(found) = found.or_else(|| scan(second, hash, &mut verify)) {
                return Some(found);
            }
            fence(Ordering::Acquire);
            if stripe.version() == version {
                return None;
            }
        }
    }

    /// Takes the lock under which the words of `hash` change.
    pub(super) fn lock(&self, hash: u64) -> Locked<'_, B> {
        let stripe = self.stripe(hash);
        stripe.lock();
        Locked { index: self, stripe, hash }
    }

    /// Adds one bucket, which must exist in [`Buckets`] and be empty. One thread at a time may grow.
    /// `on_split` is told the old bucket and the new one under their lock.
    pub(super) fn grow(&self, rehash: impl Fn(Slot) -> u64, on_split: impl FnOnce(usize, usize)) {
        let new = self.len();
        let source = new - (1 << new.ilog2());
        let locked = self.lock(source as u64);
        on_split(source, new);
        let mut movers = [None; BUCKET_SLOTS];
        let words = self.buckets.bucket(source).iter().zip(self.buckets.bucket(new));
        for (mover, (from, to)) in movers.iter_mut().zip(words) {
            let slot = Slot(from.load(Ordering::Relaxed));
            if !slot.is_empty() && !self.candidates(rehash(slot), new + 1).contains(&source) {
                to.store(slot.0, Ordering::Relaxed);
                *mover = Some(from);
            }
        }
        self.len.store(new + 1, Ordering::Release);
        locked.stripe.count_move();
        movers.into_iter().flatten().for_each(|from| from.store(0, Ordering::Release));
    }
}

/// The first word of a bucket that may hold `hash` and for which `verify` returns something.
#[inline]
pub(super) fn scan<'i, R>(
    bucket: &'i [AtomicU64; BUCKET_SLOTS],
    hash: u64,
    mut verify: impl FnMut(&'i AtomicU64, Slot) -> Option<R>,
) -> Option<R> {
    for word in bucket {
        let slot = Slot(word.load(Ordering::Acquire));
        if slot.may_hold(hash)
            && let Some(found) = verify(word, slot)
        {
            return Some(found);
        }
    }
    None
}

/// The candidate buckets of a hash while there are `len` buckets.
#[inline]
fn candidates(hash: u64, len: usize, stripes: usize) -> [usize; 2] {
    let stripe_mask = stripes as u64 - 1;
    let second = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 18;
    let second = second & !stripe_mask | hash & stripe_mask;
    [fold(hash, len), fold(second, len)]
}

/// Linear hashing: as many low bits as reach a bucket below `len`, which is not 0.
#[inline]
fn fold(hash: u64, len: usize) -> usize {
    let mask = u64::MAX >> ((len as u64 - 1) | 1).leading_zeros();
    let bucket = hash & mask;
    let bucket = if bucket < len as u64 { bucket } else { bucket & (mask >> 1) };
    bucket as usize
}

/// Raises a slot's frequency unless it is full. A lost race loses one count.
#[inline]
pub(super) fn count_hit(word: &AtomicU64, slot: Slot) {
    if slot.freq() < FREQ_MAX {
        let raised = slot.with_freq(slot.freq() + 1);
        let _ = word.compare_exchange(slot.0, raised.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The lock on one stripe, and what may be done under it. Dropping it unlocks.
pub(super) struct Locked<'i, B: Buckets> {
    index: &'i Index<B>,
    stripe: &'i Stripe,
    hash: u64,
}

impl<'i, B: Buckets> Locked<'i, B> {
    fn words(&self) -> impl Iterator<Item = &'i AtomicU64> + use<'i, B> {
        self.index.buckets_of(self.hash).into_iter().flatten()
    }

    /// The word with this hash for which `verify` holds.
    #[inline]
    pub(super) fn find(&self, mut verify: impl FnMut(Slot) -> bool) -> Option<Place<'i>> {
        let mut place = |word, slot| if verify(slot) { Some(Place { word, slot }) } else { None };
        let [first, second] = self.index.buckets_of(self.hash);
        scan(first, self.hash, &mut place).or_else(|| scan(second, self.hash, &mut place))
    }

    /// The first candidate bucket.
    pub(super) fn bucket(&self) -> usize {
        self.index.candidates(self.hash, self.index.len())[0]
    }

    /// Publishes another word in a found place.
    pub(super) fn replace(&self, place: &Place<'i>, slot: Slot) {
        place.word.store(slot.0, Ordering::Release);
    }

    /// Counts a found item as read.
    pub(super) fn count_hit(&self, place: &Place<'i>) {
        count_hit(place.word, Slot(place.word.load(Ordering::Relaxed)));
    }

    /// Empties a found place.
    pub(super) fn remove(&self, place: &Place<'i>) {
        place.word.store(Slot::EMPTY.0, Ordering::Release);
    }

    /// Publishes a word for a key that has none, in the emptier bucket; if both are full, items that
    /// have room elsewhere move over.
    pub(super) fn insert(&self, slot: Slot, rehash: impl Fn(Slot) -> u64) -> Result<(), Full> {
        let [first, second] = self.index.buckets_of(self.hash);
        let (in_first, in_second) = (free(first), free(second));
        let emptier = if in_second.1 > in_first.1 { in_second } else { in_first };
        let displaced = || {
            (1..=DISPLACEMENTS_MAX)
                .flat_map(|moves| [first, second].map(|bucket| (bucket, moves)))
                .find_map(|(bucket, moves)| self.make_room(bucket, moves, &rehash))
        };
        let word = emptier.0.or_else(displaced).ok_or(Full)?;
        word.store(slot.0, Ordering::Release);
        Ok(())
    }

    /// The word with the lowest frequency in either bucket: what goes when there is no room.
    pub(super) fn coldest(&self) -> Option<Place<'i>> {
        self.words()
            .map(|word| Place { word, slot: Slot(word.load(Ordering::Acquire)) })
            .filter(|place| !place.slot.is_empty())
            .min_by_key(|place| place.slot.freq())
    }

    /// A word of `bucket` that is free, or whose content has just been stored in another place, by
    /// at most `moves` moves. All buckets concerned are in this stripe.
    fn make_room(
        &self,
        bucket: &'i [AtomicU64; BUCKET_SLOTS],
        moves: u32,
        rehash: &impl Fn(Slot) -> u64,
    ) -> Option<&'i AtomicU64> {
        if let Some(word) = free(bucket).0 {
            return Some(word);
        }
        let fewer = moves.checked_sub(1)?;
        bucket.iter().find(|word| {
            let slot = Slot(word.load(Ordering::Acquire));
            let others = self.index.buckets_of(rehash(slot));
            let mut others = others.into_iter().filter(|other| !std::ptr::eq(*other, bucket));
            let room = others.find_map(|other| self.make_room(other, fewer, rehash));
            if let Some(room) = room {
                room.store(slot.0, Ordering::Release);
                self.stripe.count_move();
            }
            room.is_some()
        })
    }
}

impl<B: Buckets> Drop for Locked<'_, B> {
    fn drop(&mut self) {
        self.stripe.unlock();
    }
}

/// The first empty word of a bucket, and how many there are.
fn free(bucket: &[AtomicU64; BUCKET_SLOTS]) -> (Option<&AtomicU64>, usize) {
    let empty = || bucket.iter().filter(|word| word.load(Ordering::Relaxed) == Slot::EMPTY.0);
    (empty().next(), empty().count())
}

impl Stripe {
    const LOCKED: u32 = 1;
    const MOVE: u32 = 2;

    #[inline]
    fn version(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !Self::LOCKED
    }

    fn lock(&self) {
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

    /// Nobody but the holder changes what is locked, so it takes no atomic addition.
    fn unlock(&self) {
        self.0.store(self.version(), Ordering::Release);
    }

    /// Between a word's arrival in its new place and its departure from the old one, by the holder.
    fn count_move(&self) {
        let locked = self.0.load(Ordering::Relaxed);
        self.0.store(locked.wrapping_add(Self::MOVE), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Table(Vec<[AtomicU64; BUCKET_SLOTS]>);

    impl Buckets for Table {
        fn bucket(&self, index: usize) -> &[AtomicU64; BUCKET_SLOTS] {
            &self.0[index]
        }
    }

    fn table(len: usize) -> Table {
        Table((0..len).map(|_| Default::default()).collect())
    }

    /// A hash for the item at offset `8 * id`.
    fn hash(id: u64) -> u64 {
        rapidhash::v3::rapidhash_v3(&id.to_le_bytes())
    }

    fn rehash(slot: Slot) -> u64 {
        hash(slot.offset() as u64 / 8)
    }

    fn put(index: &Index<Table>, id: u64) -> Result<(), Full> {
        let slot = Slot::new(hash(id), usize::try_from(id).unwrap() * 8, 0);
        index.lock(hash(id)).insert(slot, rehash)
    }

    fn has(index: &Index<Table>, id: u64) -> bool {
        let right = |slot: Slot| slot.offset() as u64 == id * 8;
        index.lookup(hash(id), |_, slot| right(slot).then_some(())).is_some()
    }

    #[test]
    fn everything_is_found_again_while_the_index_grows() {
        let index = Index::new(table(1024), 16, 4);
        let mut kept = HashMap::new();
        for id in 1..6000 {
            kept.insert(id, put(&index, id).is_ok());
            if index.len() < 1024 && id % 6 == 0 {
                index.grow(rehash, |_, _| ());
            }
        }
        assert!(kept.values().filter(|kept| !**kept).count() < 10, "few find no place");
        assert!(kept.iter().all(|(id, kept)| has(&index, *id) == *kept));
        assert!(!has(&index, 7000));
    }

    #[test]
    fn two_choices_and_displacement_fill_the_index_well() {
        let index = Index::new(table(4096), 4096, 16);
        let filled = (1..).take_while(|&id| put(&index, id).is_ok()).count();
        assert!(filled > 4096 * 8 * 90 / 100, "{filled} of {}", 4096 * 8);
    }

    #[test]
    fn the_coldest_goes_first() {
        let index = Index::new(table(1), 1, 1);
        (1..=8).for_each(|id| put(&index, id).unwrap());
        assert_eq!(put(&index, 9), Err(Full));
        for id in (1..=8).filter(|&id| id != 5) {
            let right = |slot: Slot| slot.offset() as u64 == id * 8;
            index.lookup(hash(id), |word, slot| right(slot).then(|| count_hit(word, slot)));
        }
        let locked = index.lock(hash(9));
        assert_eq!(locked.coldest().unwrap().slot.offset(), 5 * 8);
    }
}
