//! Decodes messages with a limited number of parts.
//!
//! A part is one encoded field: its number and its value. Each element of a repeated field is a
//! part, except packed numbers. A part can be much longer in memory than in the message: two bytes
//! can decode to a value of 32 bytes. The gateway counts only the received bytes as memory. Without
//! a limit on the parts, a short message of many parts could use much more memory than the gateway
//! has counted.

use super::pb;
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The maximum length of a message, in bytes: the default limit of gRPC libraries.
pub(super) const MESSAGE_LEN_MAX: usize = 4 << 20;
/// The maximum number of parts in a message, and the maximum number of keys in a `GetMany` request.
pub(super) const PARTS_MAX: usize = 10_000;
/// The maximum total length, in bytes, of a message's nested messages. A nested message describes
/// an item: its key, tags and numbers.
const HEAD_LEN_MAX: u64 = 16 << 10;
/// The maximum length, in bytes, of the packed numbers in one part.
const PACKED_LEN_MAX: u64 = 64;

/// A message whose parts the codec counts before it decodes the message.
pub(crate) trait Bounded {
    /// The number of the field that contains a nested message; `None` if the message has no such
    /// field.
    const NESTED: Option<u32> = None;
    /// The number of the field that contains packed numbers; `None` if the message has no such
    /// field.
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

/// A codec that decodes bounded messages, and encodes any message.
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
        // `chunk` returns the whole message, because tonic buffers it in one piece. `count` relies
        // on this, because it cannot distinguish a whole message from a fragment that ends between
        // two fields.
        count(message.chunk(), U::NESTED, U::PACKED)?;
        match self.0.decode(message) {
            Ok(decoded) => Ok(decoded),
            Err(status) => Err(Status::invalid_argument(status.message())),
        }
    }
}

/// Checks how many parts a message has, and the lengths of its nested messages and packed numbers.
///
/// # Errors
/// `INVALID_ARGUMENT`: a limit is exceeded, or the message is malformed.
fn count(mut message: &[u8], nested: Option<u32>, packed: Option<u32>) -> Result<(), Status> {
    let malformed = |error| Status::invalid_argument(format!("The message is malformed: {error}"));
    let (mut parts, mut nested_len) = (0, 0_u64);
    while message.has_remaining() {
        parts += 1;
        if parts > PARTS_MAX {
            let text = format!("A message may have at most {PARTS_MAX} fields or keys.");
            return Err(Status::invalid_argument(text));
        }
        let (field, kind) = decode_key(&mut message).map_err(malformed)?;
        if nested == Some(field) && kind == WireType::LengthDelimited {
            let mut ahead = message;
            // The decoder merges repeated nested messages, so their lengths add up.
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
    fn a_message_with_too_many_parts_is_refused() {
        let keys = |count| pb::GetManyRequest { keys: vec![bytes::Bytes::new(); count] };
        let count = |message: &[u8]| count(message, None, None).map_err(|status| status.code());
        assert_eq!(count(&keys(PARTS_MAX).encode_to_vec()), Ok(()));
        assert_eq!(count(&keys(PARTS_MAX + 1).encode_to_vec()), Err(Code::InvalidArgument));
        assert_eq!(count(&[0x0a, 0xff]), Err(Code::InvalidArgument));
        assert_eq!(count(&[]), Ok(()));
    }

    #[test]
    fn too_many_packed_numbers_are_refused() {
        let kinds = |count| pb::WatchRequest { kinds: vec![1; count], ..Default::default() };
        let count = |message: &[u8]| {
            count(message, None, pb::WatchRequest::PACKED).map_err(|status| status.code())
        };
        assert_eq!(count(&kinds(5).encode_to_vec()), Ok(()));
        assert_eq!(count(&kinds(65).encode_to_vec()), Err(Code::InvalidArgument));
    }

    #[test]
    fn too_many_tags_in_the_head_of_a_value_are_refused() {
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
