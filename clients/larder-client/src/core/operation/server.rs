//! Operations that concern a server instead of an item.

use super::interface::{Operation, ReplyFailure, check, one};
use crate::core::connection::{Answers, Connection, Frame};
use bytes::Bytes;
use larder_protocol::Exptime;
use larder_protocol::answer::Answer;
use larder_protocol::encode::{WireKey, classic, meta};

/// A flush of all items. The field is the time at which the flush takes effect. [`Exptime::NEVER`]
/// means at once.
pub(crate) struct Flush(pub(crate) Exptime);

impl Flush {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<()> {
        matches!(answer, Answer::Ok).then_some(())
    }
}

impl Operation for Flush {
    type Output = ();
    fn reads(&self) -> bool {
        false
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        connection.push_request(
            Frame::One,
            || check::<Self>(&[]),
            |out| classic::flush_all(self.0, false, out),
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<()>, ReplyFailure> {
        one(reply, Self::known)
    }
}

/// A request for the server's version.
pub(crate) struct Version;

impl Version {
    pub(crate) fn known(answer: &Answer<'_>) -> Option<String> {
        match answer {
            Answer::Version(version) => Some(String::from_utf8_lossy(version).into_owned()),
            _ => None,
        }
    }
}

impl Operation for Version {
    type Output = String;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        Self::known(answer).is_some()
    }

    fn encode(&mut self, connection: &mut Connection) {
        connection.push_request(Frame::One, || check::<Self>(&[]), classic::version);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<String>, ReplyFailure> {
        one(reply, Self::known)
    }
}

/// A probe for meta commands. The output is true if the server supports meta commands.
pub(crate) struct MetaProbe;

impl Operation for MetaProbe {
    type Output = bool;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::End)
    }

    fn encode(&mut self, connection: &mut Connection) {
        connection.push_request(Frame::One, || check::<Self>(&[]), meta::noop);
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<bool>, ReplyFailure> {
        one(reply, |answer| match answer {
            Answer::End => Some(true),
            Answer::Error { line: b"ERROR", .. } => Some(false),
            _ => None,
        })
    }
}

/// A request for a page of statistics. `None` requests the general page.
pub(crate) struct Stats<'t>(pub(crate) Option<WireKey<'t>>);

impl Operation for Stats<'_> {
    type Output = Vec<(String, String)>;
    fn reads(&self) -> bool {
        true
    }

    fn fits(answer: &Answer<'_>) -> bool {
        matches!(answer, Answer::Stat { .. } | Answer::End | Answer::Ok)
    }

    fn encode(&mut self, connection: &mut Connection) {
        connection.push_request(
            Frame::Statistics,
            || check::<Self>(&[]),
            |out| classic::stats(self.0, out),
        );
    }

    fn take(&mut self, reply: &Bytes) -> Result<Option<Self::Output>, ReplyFailure> {
        let mut page = Vec::new();
        for answer in Answers(reply) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match &answer {
                Answer::Stat { name, value } => page.push((text(name), text(value))),
                Answer::End | Answer::Ok => return Ok(Some(page)),
                other => return Err(ReplyFailure::of(Some(other), reply)),
            }
        }
        Err(ReplyFailure::of(None, reply))
    }
}
