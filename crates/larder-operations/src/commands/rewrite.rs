//! Changes that compute a new value from the whole old value.

use crate::{Edit, EditRefusal, EditValue, OpContext, has_value};
use larder_store::{Engine, Expiry, HashedKey, Lease, Lookup, Value};

/// A copy of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedItem {
    /// The bytes that were stored.
    pub value: Vec<u8>,
    /// Client flags, which the cache does not interpret.
    pub client_flags: u32,
    /// The expiry of the item.
    pub expiry: Expiry,
}

impl<E: Engine> OpContext<'_, E> {
    /// Copies an item. The lookup is not counted.
    ///
    /// # Errors
    /// Memory for the copy could not be allocated.
    pub fn copy(&mut self, key: HashedKey<'_>) -> Result<Lookup<CopiedItem>, EditRefusal> {
        let lookup = self.describe(key, |item| {
            let value = copy_of(&item.value)?;
            let (client_flags, expiry) = (item.attributes.client_flags, item.attributes.expiry);
            Some(CopiedItem { value, client_flags, expiry })
        });
        Ok(match lookup {
            Lookup::Hit(Some(copy)) => Lookup::Hit(copy),
            Lookup::Hit(None) => return Err(EditRefusal::OutOfMemory),
            Lookup::Miss => Lookup::Miss,
            Lookup::Expired => Lookup::Expired,
            Lookup::Flushed => Lookup::Flushed,
            Lookup::Pending => Lookup::Pending,
        })
    }

    /// Changes the value of an item. `change` receives a copy of the value, and true if there is an
    /// item; without an item, the copy is empty. `change` returns a result, and true to store the
    /// changed copy. The item keeps its expiry, flags and tags. If another thread changes the value
    /// concurrently, `change` is called again. Returns the result of the last call, or `None` if
    /// the item is on slower storage. The caller then has to repeat the operation.
    ///
    /// # Errors
    /// See [`EditRefusal`]. The item is unchanged.
    pub fn rewrite<R>(
        &mut self,
        key: HashedKey<'_>,
        binary_key: bool,
        mut change: impl FnMut(&mut Vec<u8>, bool) -> (R, bool),
    ) -> Result<Option<R>, EditRefusal> {
        loop {
            let old = match self.copy(key)? {
                Lookup::Hit(copy) => Some(copy.value),
                Lookup::Pending => return Ok(None),
                Lookup::Miss | Lookup::Expired | Lookup::Flushed => None,
            };
            let mut new = match &old {
                Some(old) => copy_of_bytes(old).ok_or(EditRefusal::OutOfMemory)?,
                None => Vec::new(),
            };
            let (result, stores) = change(&mut new, old.is_some());
            if !stores {
                return Ok(Some(result));
            }
            let edited = self.edit(key, binary_key, |item| {
                let expiry = match (item, &old) {
                    (Some(item), Some(old)) if has_value(item, old) => item.attributes.expiry,
                    (None, None) => Expiry::Never,
                    _ => return (Edit::Keep, false),
                };
                let value = EditValue::Bytes(&new);
                (Edit::Store { replaces: false, value, expiry }, true)
            })?;
            match edited {
                Some(true) => return Ok(Some(result)),
                Some(false) => (),
                None => return Ok(None),
            }
        }
    }
}

fn copy_of<L: Lease>(value: &Value<'_, L>) -> Option<Vec<u8>> {
    let lease = match value {
        Value::Whole(bytes) => return copy_of_bytes(bytes),
        Value::Large(lease) => lease,
    };
    let mut copy = Vec::new();
    copy.try_reserve_exact(lease.len()).ok()?;
    while copy.len() < lease.len() {
        copy.extend_from_slice(lease.piece(copy.len()));
    }
    Some(copy)
}

fn copy_of_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}
