//! Rows of `stats items`, which groups the items by the slab class that they would have in
//! memcached. Slab classes do not exist in Larder, so none of these rows is a metric.

use crate::stats::row::Row;
use crate::stats::row::Source::{Class, Engine, Slab};
use crate::stats::row::Unit::{Bytes, Seconds};

const ONE_LIST: &str = "All items of a class are in one list, which is shown as the cold one.";
const NO_LISTS: &str = "There are no LRU lists.";

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::gauge("number", Engine(|c| c.items), "Items of the class."),
    Row::constant("number_hot", "0", ONE_LIST),
    Row::constant("number_warm", "0", ONE_LIST),
    Row::gauge("number_cold", Engine(|c| c.items), "The same as `number`."),
    Row::constant("age_hot", "0", ONE_LIST),
    Row::constant("age_warm", "0", ONE_LIST),
    Row::gauge(
        "age",
        Engine(|c| c.evicted_time),
        "Time since the last access of the most recently evicted item.",
    )
    .unit(Seconds),
    Row::gauge(
        "mem_requested",
        Slab(|s| s.mem_requested),
        "Bytes that memcached would count for the class, scaled down so that all classes sum to `bytes`. Items on flash count as items without key and value, in class 1.",
    )
    .unit(Bytes),
    Row::counter("evicted", Engine(|c| c.evicted), "Live items that were evicted."),
    Row::counter(
        "evicted_nonzero",
        Engine(|c| c.evicted_nonzero),
        "Live items with an expiry that were evicted.",
    ),
    Row::gauge("evicted_time", Engine(|c| c.evicted_time), "The same as `age`.").unit(Seconds),
    Row::counter(
        "outofmemory",
        Engine(|c| c.out_of_memory),
        "Stores that were refused because of a lack of memory.",
    ),
    Row::constant("tailrepairs", "0", NO_LISTS),
    Row::counter(
        "reclaimed",
        Engine(|c| c.reclaimed),
        "Expired or flushed items that were removed.",
    ),
    Row::counter(
        "expired_unfetched",
        Engine(|c| c.expired_unfetched),
        "Expired or flushed items that were removed without ever being read.",
    ),
    Row::counter(
        "evicted_unfetched",
        Engine(|c| c.evicted_unfetched),
        "Live items that were evicted without ever being read.",
    ),
    Row::counter(
        "evicted_active",
        Engine(|c| c.evicted_active),
        "Live items that were evicted after being read.",
    ),
];

/// The rows about the background removal of items, which also appear on the general page.
pub(in crate::stats) const BACKGROUND: &[Row] = &[
    Row::counter(
        "crawler_reclaimed",
        Engine(|c| c.crawler_reclaimed),
        "Expired or flushed items that the background search removed.",
    ),
    Row::constant("crawler_items_checked", "0", "Items that are looked at are not counted."),
    Row::constant("lrutail_reflocked", "0", NO_LISTS),
    Row::constant("moves_to_cold", "0", NO_LISTS),
    Row::constant("moves_to_warm", "0", NO_LISTS),
    Row::constant("moves_within_lru", "0", NO_LISTS),
    Row::constant("direct_reclaims", "0", NO_LISTS),
];

pub(in crate::stats) const HITS: &[Row] = &[
    Row::constant("hits_to_hot", "0", ONE_LIST),
    Row::constant("hits_to_warm", "0", ONE_LIST),
    Row::counter("hits_to_cold", Class(|c| &c.get_hits), "Keys that were looked up and found."),
    Row::constant("hits_to_temp", "0", ONE_LIST),
];
