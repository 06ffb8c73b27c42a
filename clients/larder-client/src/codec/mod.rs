//! Codecs convert a program's own types to bytes and flags, and back.
//!
//! | codec | values |
//! |---|---|
//! | [`Json`] (feature `serde`) | types that serde serializes to JSON and deserializes |
//! | [`Compressed`] (feature `compression`) | the output of another codec, compressed if that saves space |
//! | [`Convention`] | bytes, text and numbers in the format of pymemcache, pylibmc or dalli |
//! | a [`Codec`] of the program | any |
//!
//! ```no_run
//! use larder_client::codec::Convention;
//! use larder_client::{Lease, blocking::Client};
//!
//! let cache = Client::connect("cache:11211")?;
//! let visits = cache.typed::<i64, _>(Convention::Pymemcache);
//! visits.set("visits", &7, 60)?;
//! assert_eq!(visits.get("visits")?, Some(7));
//! let names = cache.typed::<String, _>(Convention::Dalli);
//! let name = names.get_or_compute("name", Lease::ttl(60), || Ok::<_, ()>("ann".to_owned()));
//! # Ok::<(), larder_client::Error>(())
//! ```

#[cfg(feature = "compression")]
mod compressed;
mod convention;
mod inflate;
mod interface;
#[cfg(feature = "serde")]
mod json;
mod marshal;
mod scalar;

#[cfg(feature = "compression")]
pub use compressed::Compressed;
pub use convention::Convention;
pub use interface::{Codec, CodecError, DECOMPRESSED_LEN_MAX, InvalidValue};

#[cfg(feature = "serde")]
pub use json::Json;
pub use scalar::{Scalar, Value};
