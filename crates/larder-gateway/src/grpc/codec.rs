//! How messages are read: only those whose parts are few.
//!
//! A part of two bytes becomes a value of 32, so a short message of many parts would take much more memory than was
//! counted when it arrived.

use super::pb;
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The longest message, in bytes: as long as clients usually take.
pub(super) const MESSAGE_LEN_MAX: usize = 4 << 20;
/// The parts of a message: as many as `GetMany` may have keys.
pub(super) const PARTS_MAX: usize = 10_000;
/// What parts with parts of their own may have together, in bytes: a key, tags and numbers.
const HEAD_LEN_MAX: u64 = 16 << 10;
/// What numbers in one part may have together, in bytes.
const PACKED_LEN_MAX: u64 = 64;

/// A message whose parts are counted before it is read.
pub(crate) trait Bounded {
    /// The field that holds a message of its own with parts, if one does.
    const NESTED: Option<u32> = None;
    /// The field that may hold many numbers in one part, if one does.
    const PACKED: Option<u32> = None;
}

impl Bounded for pb::GetRequest {}
impl Bounded for pb::GetManyRequest {}
impl Bounded for pb::ReadRequest {}
impl Bounded for pb::SetRequest {}
impl Bounded for pb::WriteRequest {
    const NESTED: Option<u32> = Some(1);
}
impl Bounded for pb::DeleteRequest {}
impl Bounded for pb::IncrementRequest {}
impl Bounded for pb::TouchRequest {}
impl Bounded for pb::DropTagRequest {}
impl Bounded for pb::FlushRequest {}
impl Bounded for pb::WatchRequest {
    const PACKED: Option<u32> = Some(1);
}
impl Bounded for pb::StatsRequest {}

/// Reads bounded messages, and writes any.
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Bounded + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

pub(crate) struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + Bounded> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // It is contiguous; what is not would be refused as incomplete.
        count(message.chunk(), U::NESTED, U::PACKED)?;
        match self.0.decode(message) {
            Ok(decoded) => Ok(decoded),
            Err(status) => Err(Status::invalid_argument(status.message())),
        }
    }
}

/// # Errors
/// `INVALID_ARGUMENT`: it has too many parts, or is no message.
fn count(mut message: &[u8], nested: Option<u32>, packed: Option<u32>) -> Result<(), Status> {
    let malformed = |error| Status::invalid_argument(format!("The message is malformed: {error}"));
    let (mut parts, mut nested_len) = (0, 0_u64);
    while message.has_remaining() {
        parts += 1;
        if parts > PARTS_MAX {
            let text = format!("A message has at most {PARTS_MAX} fields, or keys.");
            return Err(Status::invalid_argument(text));
        }
        let (field, kind) = decode_key(&mut message).map_err(malformed)?;
        if nested == Some(field) && kind == WireType::LengthDelimited {
            let mut ahead = message;
            // They are merged if there are several.
            nested_len = nested_len.saturating_add(decode_varint(&mut ahead).map_err(malformed)?);
            if nested_len > HEAD_LEN_MAX {
                return Err(Status::invalid_argument("The head of a value is too long."));
            }
        }
        if packed == Some(field) && kind == WireType::LengthDelimited {
            let mut ahead = message;
            if decode_varint(&mut ahead).map_err(malformed)? > PACKED_LEN_MAX {
                return Err(Status::invalid_argument("The message has too many numbers."));
            }
        }
        skip_field(kind, field, &mut message, DecodeContext::default()).map_err(malformed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn messages_of_many_parts_are_refused_before_they_are_read() {
        let keys = |count| pb::GetManyRequest { keys: vec![bytes::Bytes::new(); count] };
        let count = |message: &[u8]| count(message, None, None).map_err(|status| status.code());
        assert_eq!(count(&keys(PARTS_MAX).encode_to_vec()), Ok(()));
        assert_eq!(count(&keys(PARTS_MAX + 1).encode_to_vec()), Err(Code::InvalidArgument));
        assert_eq!(count(&[0x0a, 0xff]), Err(Code::InvalidArgument));
        assert_eq!(count(&[]), Ok(()));
    }

    #[test]
    fn many_numbers_in_one_part_are_refused() {
        let kinds = |count| pb::WatchRequest { kinds: vec![1; count], ..Default::default() };
        let count = |message: &[u8]| {
            count(message, None, pb::WatchRequest::PACKED).map_err(|status| status.code())
        };
        assert_eq!(count(&kinds(5).encode_to_vec()), Ok(()));
        assert_eq!(count(&kinds(65).encode_to_vec()), Err(Code::InvalidArgument));
    }

    #[test]
    fn many_tags_do_not_fit_the_heads_of_a_value() {
        let message = |tags| {
            let tags = vec![bytes::Bytes::new(); tags];
            let item = pb::SetRequest { tags, ..Default::default() };
            let head = pb::WriteHead { item: Some(item), length: 1 };
            let part = Some(pb::write_request::Part::Head(head));
            pb::WriteRequest { part }.encode_to_vec()
        };
        let count = |message: &[u8]| {
            count(message, pb::WriteRequest::NESTED, None).map_err(|status| status.code())
        };
        assert_eq!(count(&message(7)), Ok(()));
        assert_eq!(count(&message(10_000)), Err(Code::InvalidArgument));
        assert_eq!(count(&message(7).repeat(1000)), Err(Code::InvalidArgument));
    }
}
