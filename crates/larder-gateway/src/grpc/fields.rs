//! Conversions of request fields to operations, and of outcomes to replies.

use super::pb::set_request::Condition;
use super::pb::{Outcome, SetRequest, SetResponse};
use crate::expiry::expiry_after;
use crate::items::{StoredItem, Upload, is_binary};
use crate::web::app::App;
use bytes::Bytes;
use larder_operations::{Store, StoreMode, StoreOutcome, TAG_LEN_MAX, Tags};
use larder_store::{Expiry, KEY_LEN_MAX, Now, Refusal, TAGS_MAX};
use prost_types::Duration;
use tonic::Status;

/// Checks the key of an item.
///
/// # Errors
/// `INVALID_ARGUMENT`: the key is empty or too long.
pub(super) fn key(key: &Bytes) -> Result<&[u8], Status> {
    if (1..=KEY_LEN_MAX).contains(&key.len()) {
        return Ok(key);
    }
    Err(Status::invalid_argument(format!("A key has 1 to {KEY_LEN_MAX} bytes.")))
}

/// Checks the name of a tag.
///
/// # Errors
/// `INVALID_ARGUMENT`: the name is empty or too long.
pub(super) fn tag(name: &[u8]) -> Result<(), Status> {
    if (1..=TAG_LEN_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("A tag has 1 to {TAG_LEN_MAX} bytes.")))
}

fn tags(app: &App, names: &[Bytes]) -> Result<Tags, Status> {
    if names.len() > TAGS_MAX {
        let text = format!("An item may have at most {TAGS_MAX} tags.");
        return Err(Status::invalid_argument(text));
    }
    names.iter().try_for_each(|name| tag(name))?;
    let names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    app.items.tags(&names).map_err(|refusal| match refusal {
        Refusal::NoTags => no_tags(),
        _ => out_of_memory(),
    })
}

/// Converts a time to live to an expiry. `None` becomes [`Expiry::Never`].
///
/// # Errors
/// `INVALID_ARGUMENT`: the time is not above 0, or is too long.
pub(super) fn expiry(ttl: Option<Duration>, now: Now) -> Result<Expiry, Status> {
    let Some(ttl) = ttl else { return Ok(Expiry::Never) };
    let refused = || Status::invalid_argument("A time must be above 0 and end before 2106.");
    let ttl = std::time::Duration::try_from(ttl).map_err(|_| refused())?;
    let millis = ttl.as_nanos().div_ceil(1_000_000);
    let millis = u64::try_from(millis).ok().filter(|millis| *millis > 0).ok_or_else(refused)?;
    expiry_after(millis, now).ok_or_else(refused)
}

/// Returns the time until an item expires, or `None` if it never does.
pub(super) fn ttl(found: &StoredItem) -> Option<Duration> {
    found.ttl.and_then(|left| Duration::try_from(left).ok())
}

/// The attributes and the condition of an item to store.
pub(super) struct NewItem {
    expiry: Expiry,
    client_flags: u32,
    tags: Tags,
    condition: Option<Condition>,
}

impl NewItem {
    /// Reads the fields of a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: a field is invalid. `UNIMPLEMENTED`: the engine does not support tags.
    /// `RESOURCE_EXHAUSTED`: the engine could not allocate memory for the tags.
    pub(super) fn of(app: &App, request: &SetRequest) -> Result<Self, Status> {
        key(&request.key)?;
        let condition = request.condition.map(|condition| match condition {
            Condition::Absent(false) | Condition::Present(false) => {
                Err(Status::invalid_argument("absent and present must be true or unset."))
            }
            condition => Ok(condition),
        });
        Ok(Self {
            expiry: expiry(request.ttl, app.view.now())?,
            client_flags: request.flags,
            tags: tags(app, &request.tags)?,
            condition: condition.transpose()?,
        })
    }

    /// Stores the item with `value`, or with the value of `upload`. `upload` contains an upload and
    /// the length of its value in bytes.
    ///
    /// # Errors
    /// The item is too large, or the engine could not allocate memory for it.
    pub(super) async fn store(
        &self,
        app: &App,
        key: &[u8],
        value: &[u8],
        upload: Option<(Upload, usize)>,
    ) -> Result<SetResponse, Status> {
        let (mode, compare) = match self.condition {
            None => (StoreMode::Set, None),
            Some(Condition::Absent(_)) => (StoreMode::Add, None),
            Some(Condition::Present(_)) => (StoreMode::Replace, None),
            Some(Condition::Cas(cas)) => (StoreMode::Set, Some(cas)),
        };
        let op = Store {
            mode,
            value,
            value_len: upload.as_ref().map_or(value.len(), |(_, len)| *len),
            client_flags: self.client_flags,
            expiry: self.expiry,
            compare,
            tags: &self.tags,
            binary_key: is_binary(key),
            ..Store::default()
        };
        let (outcome, cas) = match app.items.store(key, op, upload.map(|(upload, _)| upload)).await
        {
            StoreOutcome::Stored { cas, .. } => (Outcome::Done, cas),
            StoreOutcome::NotStored if mode == StoreMode::Add => (Outcome::Exists, 0),
            StoreOutcome::NotStored | StoreOutcome::NotFound => (Outcome::NotFound, 0),
            StoreOutcome::Exists => (Outcome::Exists, 0),
            StoreOutcome::TooLarge => return Err(too_large()),
            StoreOutcome::OutOfMemory | StoreOutcome::NoCas | StoreOutcome::Pending => {
                return Err(out_of_memory());
            }
        };
        Ok(SetResponse { outcome: outcome.into(), cas })
    }
}

pub(super) fn too_large() -> Status {
    Status::invalid_argument("The item would be larger than the server's limit (-I).")
}

pub(super) fn out_of_memory() -> Status {
    Status::resource_exhausted("The server has no memory for the item and can evict nothing.")
}

pub(super) fn no_tags() -> Status {
    Status::unimplemented("The engine of this server has no tags.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_store::Seconds;

    #[test]
    fn a_time_to_live_is_above_zero_and_rounded_up_to_milliseconds() {
        let now = Now { secs: Seconds(1000), millis: 500, ahead: 0 };
        let end = |seconds, nanos| {
            let expiry = expiry(Some(Duration { seconds, nanos }), now);
            expiry.ok().and_then(Expiry::in_millis)
        };
        assert_eq!(end(0, 250_000_000), Some(1_000_750));
        assert_eq!(end(0, 1), Some(1_000_501));
        assert_eq!(end(3600, 0), Some(4_600_000));
        for (seconds, nanos) in [(0, 0), (-1, 0), (0, -1), (i64::MAX, 0), (1 << 32, 0)] {
            assert_eq!(end(seconds, nanos), None, "{seconds} {nanos}");
        }
        assert_eq!(expiry(None, now).unwrap(), Expiry::Never);
    }
}
