//! Writes item states to batches, and reads large values in pieces.

use crate::frame::{BatchWriter, ItemState, State, TimeLeft, ValueState};
use larder_store::{Expiry, Item, Lease, Now, Value};

/// The maximum length of a value within a batch, in bytes. The sender sends a longer value, and
/// every [`Value::Large`], in parts after the batch.
const WHOLE_LEN_MAX: usize = 64 << 10;

/// A large value that the sender has not sent completely.
#[derive(Debug)]
pub(crate) struct PartialValue<L> {
    pub(crate) value: LargeValue<L>,
    /// The number of bytes sent so far.
    pub(crate) sent: usize,
}

#[derive(Debug)]
pub(crate) enum LargeValue<L> {
    Leased(L),
    Copied(Vec<u8>),
}

impl<L: Lease> LargeValue<L> {
    fn of(value: &Value<'_, L>) -> Self {
        match value {
            Value::Whole(bytes) => Self::Copied(bytes.to_vec()),
            Value::Large(lease) if lease.may_be_kept() => Self::Leased(lease.clone()),
            Value::Large(lease) => {
                let mut bytes = Vec::with_capacity(lease.len());
                while bytes.len() < lease.len() {
                    bytes.extend_from_slice(lease.piece(bytes.len()));
                }
                Self::Copied(bytes)
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Leased(lease) => lease.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    pub(crate) fn piece(&self, offset: usize) -> &[u8] {
        match self {
            Self::Leased(lease) => lease.piece(offset),
            Self::Copied(bytes) => bytes.get(offset..).unwrap_or_default(),
        }
    }
}

/// Returns the bytes of a value that is sent within a batch, or `None` if the value must follow in
/// parts.
pub(crate) fn whole<'v, L>(value: &Value<'v, L>) -> Option<&'v [u8]> {
    match value {
        Value::Whole(bytes) if bytes.len() <= WHOLE_LEN_MAX => Some(bytes),
        _ => None,
    }
}

/// Writes an item's state to the batch. Returns the value if it must follow the batch in parts.
pub(crate) fn write_item<L: Lease>(
    key: &[u8],
    item: &Item<'_, L>,
    now: Now,
    batch: &mut BatchWriter,
    out: &mut Vec<u8>,
) -> Option<PartialValue<L>> {
    let attributes = &item.attributes;
    let left = match attributes.expiry {
        Expiry::Never => TimeLeft::Forever,
        Expiry::At(second) => TimeLeft::Seconds(second.0.saturating_sub(now.secs.0)),
        Expiry::Before(..) => {
            TimeLeft::Millis(attributes.expiry.left_millis(now).unwrap_or_default())
        }
    };
    let (value, large) = match whole(&item.value) {
        Some(bytes) => (ValueState::Whole(bytes), None),
        None => {
            let value = LargeValue::of(&item.value);
            (ValueState::InParts(value.len() as u64), Some(PartialValue { value, sent: 0 }))
        }
    };
    let item = ItemState {
        client_flags: attributes.client_flags,
        left,
        stale: attributes.stale,
        won: attributes.won,
        binary_key: attributes.binary_key,
        fetched: item.fetched,
        cas: item.cas,
        value,
    };
    batch.push(out, &State { key, item: Some(item) });
    large
}
