//! Typed views of both clients. A view handles values of one type. A macro generates the code for
//! each client, as in `calls.rs`.

#[cfg(feature = "tokio")]
use crate::asynchronous;
use crate::blocking;
use crate::codec::Codec;
use crate::computing::ComputeStep;
use crate::core::key::Key;
use crate::core::lease::Lease;
use crate::core::operation::Get;
use crate::error::{ComputeError, Error, ErrorKind};
use crate::item::{Item, StoreOutcome, Ttl};
use std::fmt;
use std::marker::PhantomData;

/// A view of a client for values of type `T`. A [codec](crate::codec) encodes values before a store
/// and decodes them after a lookup. A client's method `typed` creates the view with a clone of the
/// client.
#[derive(Clone)]
pub struct Typed<T, C, K> {
    client: K,
    codec: C,
    types: PhantomData<fn(&T) -> T>,
}

impl<T, C: fmt::Debug, K: fmt::Debug> fmt::Debug for Typed<T, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Typed");
        shown.field("client", &self.client).field("codec", &self.codec).finish()
    }
}

impl<T, C: Codec<T>, K> Typed<T, C, K> {
    fn encode(&self, value: &T) -> Result<Item, Error> {
        let mut bytes = Vec::new();
        let encoded = self.codec.encode(value, &mut bytes);
        let encode = |error: crate::codec::CodecError| ErrorKind::Encode(error.into());
        let flags = encoded.map_err(|error| Error::definite(encode(error)))?;
        Ok(Item { value: bytes.into(), flags, cas: None })
    }

    fn decode(&self, item: &Item) -> Result<Option<T>, Error> {
        match self.codec.decode(&item.value, item.flags) {
            Ok(value) => Ok(Some(value)),
            // The server has created an empty item with flags 0 for a lease, and another caller is
            // computing its value. This counts as a miss.
            Err(_) if item.flags == 0 && item.value.is_empty() => Ok(None),
            Err(error) => Err(Error::definite(ErrorKind::Decode(error.into()))),
        }
    }
}

macro_rules! typed {
    ($client:ty, [$($async:tt)?] [$($await:tt)*] [$($compute:tt)*]) => {
        impl $client {
            /// Returns a view of the cache for values of type `T`.
            pub fn typed<T, C: Codec<T>>(&self, codec: C) -> Typed<T, C, Self> {
                Typed { client: self.clone(), codec, types: PhantomData }
            }
        }

        impl<T, C: Codec<T>> Typed<T, C, $client> {
            /// Returns the value of an item, or `None` if the item does not exist. During the first
            /// computation of a value, the item is empty with flags 0. The result is then `None`,
            /// unless the codec can decode an empty value.
            ///
            /// # Errors
            /// [`ErrorKind::Decode`]: the codec cannot decode the item. Also the errors of the
            /// client's `get`.
            pub $($async)? fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>, Error> {
                let key = Key::new(key.as_ref())?;
                let item = self.client.call(key, Get { key, cas: false, touch: None })$($await)*?;
                item.map_or(Ok(None), |item| self.decode(&item))
            }

            /// Stores a value, whether or not the item exists.
            ///
            /// # Errors
            /// [`ErrorKind::Encode`]: the codec cannot encode the value. Also the errors of the
            /// client's `set`.
            pub $($async)? fn set(
                &self,
                key: impl AsRef<[u8]>,
                value: &T,
                ttl: impl Into<Ttl>,
            ) -> Result<StoreOutcome, Error> {
                let item = self.encode(value)?;
                self.client.set_with_flags(key, item.value, ttl, item.flags)$($await)*
            }

            /// Returns the value of an item. If there is no value, or the codec cannot decode it,
            /// calls `compute` and stores the result: see `get_or_compute` of the client.
            ///
            /// # Errors
            /// `compute` failed, its value cannot be encoded, the key is invalid, the client is
            /// closed, or the call was interrupted: see [`ComputeError`].
            pub $($async)? fn get_or_compute<E, $($compute)*>(
                &self,
                key: impl AsRef<[u8]>,
                lease: Lease,
                compute: F,
            ) -> Result<T, ComputeError<E>> {
                let key = Key::new(key.as_ref()).map_err(Error::from)?;
                let read = |item: &Item| self.decode(item).ok().flatten();
                match self.client.obtain(key, lease, read)$($await)*? {
                    ComputeStep::Value(value) => Ok(value),
                    ComputeStep::Compute(permit, _) => {
                        let computed = compute()$($await)*;
                        let write = |value: &T| self.encode(value);
                        self.client.finish(permit, key, lease, write, computed)$($await)*
                    }
                }
            }
        }
    };
}

typed!(blocking::Client, [] [] [F: FnOnce() -> Result<T, E>]);
#[cfg(feature = "tokio")]
typed!(
    asynchronous::Client,
    [async] [.await] [F: FnOnce() -> Fut, Fut: Future<Output = Result<T, E>>]
);
