//! The cache's totals.

use super::counters::HandleStats;
use super::shared::Shared;
use crate::segment::index::buckets;
use crate::segment::index::word::IndexWord;
use crate::segment::memory::handle_block::Block;
use crate::segment::sync::Ordering;
use crate::{ClassGauges, Gauges};

impl Shared {
    pub(crate) fn reset_counters(&self) {
        self.handle_list().iter().for_each(|handle_shared| handle_shared.stats.reset());
        self.departed.reset();
        self.mrc.reset();
        if let Some(flash) = &self.flash {
            flash.counts.reset();
        }
    }

    pub(crate) fn gauges(&self) -> Gauges {
        let (table, layout) = (self.table(), &self.table().layout);
        let slots = self.index.len() * buckets::BUCKET_SLOTS;
        let mut gauges = {
            let handle_list = self.handle_list();
            let present = handle_list.iter().map(|handle_shared| &handle_shared.stats);
            HandleStats::total(self.config.classes.count(), present.chain([&self.departed]))
        };
        for block in (0..layout.blocks).map(|number| Block::new(table, number)) {
            for (i, class) in gauges.classes.iter_mut().enumerate() {
                let [items, bytes] = block.counts(table, i);
                class.items = class.items.wrapping_add(items);
                class.bytes = class.bytes.wrapping_add(bytes);
            }
        }
        let sum = |field: fn(&ClassGauges) -> u64| {
            gauges.classes.iter().map(field).fold(0, u64::wrapping_add)
        };
        let (items, bytes, evictions) = (sum(|c| c.items), sum(|c| c.bytes), sum(|c| c.evicted));
        let bytes = bytes.cast_signed().max(0).cast_unsigned();
        // After a repair an item may be counted in a wrong class, but the sum over all classes is
        // right.
        let is_negative = |class: &ClassGauges| class.items.cast_signed() < 0;
        for class in gauges.classes.iter_mut().filter(|class| is_negative(class)) {
            (class.items, class.bytes) = (0, 0);
        }
        Gauges {
            items,
            bytes,
            evictions,
            index_bytes: (slots * size_of::<IndexWord>()) as u64,
            index_power: slots.ilog2(),
            index_growing: self.growth.try_lock().is_err(),
            limit_bytes: self.limit_bytes.load(Ordering::Relaxed) as u64,
            used_bytes: (self.alloc().used() * layout.segment_len) as u64,
            dead_bytes: table.dead_bytes(),
            tags_bytes: table.tags_len() as u64,
            tags_dropped: table.header_page().tags.drops.load(Ordering::Relaxed),
            tags_displaced: table.header_page().tags.displaced.load(Ordering::Relaxed),
            ..gauges
        }
    }
}
