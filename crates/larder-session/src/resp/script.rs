//! Scripts: `EVAL`, `EVALSHA` and `SCRIPT`. There is no Lua interpreter: the server recognises
//! known scripts, and executes each as operations on one item.

use super::batch::Outcome;
use super::single_key::{is_binary, milliseconds_left, try_show_copied, waits, without_padding};
use crate::Host;
use crate::context::Context;
use crate::session::resp_state::State;
use crate::time::resolve_millis;
use larder_operations::{Edit, EditRefusal, EditValue, LookupOptions, has_value};
use larder_protocol::reply::resp::{self as reply, Version};
use larder_protocol::resp::{
    CommandError, SCRIPT_LEN_MAX, Script, ScriptCall, ScriptHash, ScriptName, hash_of, i64_of,
};
use larder_store::{Engine, Expiry, HashedKey, Item, Lease, Lookup, Now, Value};

/// The reply of a script.
#[derive(Debug)]
enum Answer {
    Integer(i64),
    Ok,
    Null,
    /// Two numbers.
    Pair(i64, i64),
    /// The numbers of allowed and remaining requests, then the seconds until a retry may succeed
    /// and until the limit resets.
    Rate([i64; 2], [f64; 2]),
    Error(CommandError<'static>),
}

/// Runs a script on its key.
pub(super) fn run<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    call: &ScriptCall<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let script = match find(cx.host, call.name) {
        Ok(script) => script,
        Err(error) => return fail(&error, output),
    };
    let arguments = match call.arguments_of(script) {
        Ok(arguments) => arguments,
        Err(error) => return fail(&error, output),
    };
    if script == Script::ShowHits {
        return show_hits(cx, state, key, output);
    }
    let now = cx.operations.now;
    let edited = cx.operations.edit(key, is_binary(key.bytes), |item| {
        let found = item.map(|item| FoundItem::of(item, arguments[0]));
        decide(script, &arguments, found.as_ref(), now)
            .unwrap_or_else(|error| (Edit::Keep, Answer::Error(error)))
    });
    match edited {
        Ok(Some(answer)) => write(&answer, state.version, output),
        Ok(None) => return waits(state, key),
        Err(EditRefusal::OutOfMemory) => return fail(&CommandError::OutOfMemory, output),
        Err(EditRefusal::TooLarge) => return fail(&CommandError::TooLarge, output),
    }
    Outcome::Done
}

/// Writes the value of an item, and the milliseconds until the item expires.
fn show_hits<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let (now, mark) = (cx.operations.now, output.len());
    reply::array(2, output);
    let value_at = output.len();
    let options = LookupOptions::default();
    // A lookup that changes nothing needs no memory, so it is never refused.
    let lookup = cx.operations.look_up(key, &options, false, |item| {
        output.truncate(value_at);
        let shown = try_show_copied(item.value, output);
        shown.map(|()| milliseconds_left(item.attributes.expiry, now))
    });
    let left = match lookup.unwrap_or(Lookup::Miss) {
        Lookup::Hit(Some(left)) => left,
        Lookup::Hit(None) => {
            output.truncate(mark);
            return fail(&CommandError::OutOfMemory, output);
        }
        Lookup::Pending => {
            output.truncate(mark);
            return waits(state, key);
        }
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
            reply::null(state.version, output);
            -2
        }
    };
    reply::integer(left, output);
    Outcome::Done
}

fn fail(error: &CommandError<'_>, output: &mut Vec<u8>) -> Outcome {
    reply::error(error, output);
    Outcome::Done
}

/// Finds a script by its source or hash. For a source, also stores the script under its hash, for
/// later calls by hash.
fn find(host: &impl Host, name: ScriptName<'_>) -> Result<Script, CommandError<'static>> {
    match name {
        ScriptName::Text(text) => load(host, text).map(|(script, _)| script),
        ScriptName::Hash(hash) => known(host, &hash).ok_or(CommandError::NoScript),
    }
}

/// Returns the script with this hash: a script that a known library sends or that a client has
/// loaded.
pub(super) fn known(host: &impl Host, hash: &ScriptHash) -> Option<Script> {
    Script::of_hash(hash).or_else(|| host.script(hash))
}

/// Recognises a script by its source, and stores the hash of the source.
pub(super) fn load(
    host: &impl Host,
    text: &[u8],
) -> Result<(Script, ScriptHash), CommandError<'static>> {
    if text.len() > SCRIPT_LEN_MAX {
        // Refuse a long source before hashing it, because hashing is slow. All known scripts are
        // shorter.
        return Err(CommandError::UnknownScript);
    }
    let hash = hash_of(text);
    if let Some(script) = known(host, &hash) {
        return Ok((script, hash));
    }
    let script = Script::of_text(text).ok_or(CommandError::UnknownScript)?;
    host.keep_script(hash, script);
    Ok((script, hash))
}

/// The item of a script's key.
struct FoundItem<'i> {
    /// Whether the value equals the script's first argument.
    is_first_argument: bool,
    /// The value; `None` if it is large.
    value: Option<&'i [u8]>,
    expiry: Expiry,
}

impl<'i> FoundItem<'i> {
    fn of<L: Lease>(item: &Item<'i, L>, argument: &[u8]) -> Self {
        let value = if let Value::Whole(bytes) = item.value { Some(bytes) } else { None };
        let is_first_argument = has_value(item, argument);
        Self { is_first_argument, value, expiry: item.attributes.expiry }
    }

    /// Parses the value as a number, without its padding.
    fn number(&self) -> Result<i64, CommandError<'static>> {
        let digits = without_padding(self.value.unwrap_or_default());
        i64_of(digits).ok_or(CommandError::NotInteger)
    }
}

type Decision<'v> = Result<(Edit<'v>, Answer), CommandError<'static>>;

/// Returns the change that a script makes, and the answer of the script.
fn decide<'v>(
    script: Script,
    arguments: &[&'v [u8]; 4],
    item: Option<&FoundItem<'_>>,
    now: Now,
) -> Decision<'v> {
    let &[first, second, third, _] = arguments;
    let equal = item.filter(|item| item.is_first_argument);
    let no = Ok((Edit::Keep, Answer::Integer(0)));
    let after = |millis, command| expiry_after(millis, now, command);
    match script {
        Script::DeleteIfEqual => match equal {
            Some(_) => Ok((Edit::Remove, Answer::Integer(1))),
            None => no,
        },
        Script::ReleaseLock => match (equal, item) {
            (Some(_), _) => Ok((Edit::Remove, Answer::Integer(1))),
            (None, Some(_)) => no,
            (None, None) => Ok((Edit::Keep, Answer::Integer(-1))),
        },
        Script::ExpireOrLock => match equal {
            Some(_) => Ok((Edit::Expire(after(integer(second)?, "pexpire")?), Answer::Integer(1))),
            None => {
                let edit = store(EditValue::Bytes(first), integer(second)?, now, "set")?;
                if item.is_some() { no } else { Ok((edit, Answer::Integer(1))) }
            }
        },
        Script::ExpireMillisIfEqual | Script::ExpireSecondsIfEqual => {
            let Some(_) = equal else { return no };
            let (millis, command) = match script {
                Script::ExpireMillisIfEqual => (integer(second)?, "pexpire"),
                _ => (millis_of(second, "expire")?, "expire"),
            };
            Ok((Edit::Expire(after(millis, command)?), Answer::Integer(1)))
        }
        Script::ExtendIfEqual => {
            let Some(left) = equal.map(|item| milliseconds_left(item.expiry, now)) else {
                return no;
            };
            if left < 0 {
                return no;
            }
            let more = if third == b"0" { left } else { 0 };
            let millis = integer(second)?.checked_add(more);
            let millis = millis.ok_or(CommandError::ExpireTime("pexpire"))?;
            Ok((Edit::Expire(after(millis, "pexpire")?), Answer::Integer(1)))
        }
        Script::AddForSeconds => match item {
            Some(_) => Ok((Edit::Keep, Answer::Null)),
            None => {
                let millis = millis_of(second, "setex")?;
                Ok((store(EditValue::Bytes(first), millis, now, "setex")?, Answer::Ok))
            }
        },
        // Like `SET`, check the expiry before the condition.
        Script::AddForMillis => {
            let edit = store(EditValue::Bytes(first), integer(second)?, now, "set")?;
            Ok(if item.is_some() { (Edit::Keep, Answer::Null) } else { (edit, Answer::Ok) })
        }
        Script::LockForMillis => match item {
            Some(_) => no,
            None => {
                let edit = store(EditValue::Bytes(first), integer(second)?, now, "set")?;
                Ok((edit, Answer::Integer(1)))
            }
        },
        Script::RelockForMillis => {
            let Some(_) = equal else { return no };
            let edit = store(EditValue::Bytes(first), integer(second)?, now, "set")?;
            Ok((edit, Answer::Integer(1)))
        }
        Script::Increment => {
            let (edit, sum) = add(item, integer(first)?, None)?;
            Ok((edit, Answer::Integer(sum)))
        }
        Script::IncrementExisting => match item {
            None => Ok((Edit::Keep, Answer::Null)),
            Some(_) => {
                let (edit, sum) = add(item, integer(first)?, None)?;
                Ok((edit, Answer::Integer(sum)))
            }
        },
        Script::IncrementForSeconds | Script::IncrementForMillis => {
            let is_seconds = script == Script::IncrementForSeconds;
            let (delta, time) = if is_seconds { (second, first) } else { (first, second) };
            let delta = if is_seconds { lua_integer(delta)? } else { integer(delta)? };
            let sum = sum_of(item, delta)?;
            let is_first = sum == if is_seconds { delta } else { 1 };
            let millis = match (is_first, is_seconds) {
                (false, _) => None,
                (true, true) => Some(millis_of(time, "expire")?),
                (true, false) => Some(integer(time)?),
            };
            let command = if is_seconds { "expire" } else { "pexpire" };
            let expiry = millis.map(|millis| after(millis, command)).transpose()?;
            let (edit, sum) = add(item, delta, expiry)?;
            Ok((edit, Answer::Integer(sum)))
        }
        Script::CountHit => {
            let is_mortal = item.is_some_and(|item| item.expiry != Expiry::Never);
            hit(item, !is_mortal || first == b"1", second, now)
        }
        Script::CountHitInWindow => match item {
            Some(found) if found.expiry != Expiry::Never => hit(item, first == b"1", second, now),
            _ => {
                let millis = lua_integer(second)?;
                let edit = store(EditValue::Bytes(b"1"), millis, now, "set")?;
                Ok((edit, Answer::Pair(1, millis)))
            }
        },
        // `run` answers this script without calling `decide`.
        Script::ShowHits => Ok((Edit::Keep, Answer::Null)),
        Script::ConsumePoints => {
            let millis = millis_of(second, "set")?;
            let expiry = positive_expiry(millis, now, "set")?;
            let left = item.map_or(-1, |item| milliseconds_left(item.expiry, now));
            let (left, expiry) = if left < 0 { (millis, Some(expiry)) } else { (left, None) };
            let (edit, sum) = add(item, integer(first)?, expiry)?;
            Ok((edit, Answer::Pair(sum, left)))
        }
        Script::AllowRate | Script::AllowRateAtMost => allow_rate(script, arguments, item, now),
    }
}

fn integer(text: &[u8]) -> Result<i64, CommandError<'static>> {
    i64_of(text).ok_or(CommandError::NotInteger)
}

/// Parses a number like Lua's `tonumber`, which allows surrounding blanks and leading zeros.
fn lua_integer(text: &[u8]) -> Result<i64, CommandError<'static>> {
    let text = str::from_utf8(text.trim_ascii()).ok();
    text.and_then(|text| text.parse().ok()).ok_or(CommandError::NotInteger)
}

/// Parses a number of seconds, and converts it to milliseconds.
fn millis_of(text: &[u8], command: &'static str) -> Result<i64, CommandError<'static>> {
    integer(text)?.checked_mul(1000).ok_or(CommandError::ExpireTime(command))
}

fn expiry_after(
    millis: i64,
    now: Now,
    command: &'static str,
) -> Result<Expiry, CommandError<'static>> {
    resolve_millis(millis, false, now).ok_or(CommandError::ExpireTime(command))
}

fn positive_expiry(
    millis: i64,
    now: Now,
    command: &'static str,
) -> Result<Expiry, CommandError<'static>> {
    if millis > 0 {
        expiry_after(millis, now, command)
    } else {
        Err(CommandError::ExpireTime(command))
    }
}

/// Returns the edit that stores a value for `millis` milliseconds. `millis` must be positive.
fn store<'v>(
    value: EditValue<'v>,
    millis: i64,
    now: Now,
    command: &'static str,
) -> Result<Edit<'v>, CommandError<'static>> {
    Ok(Edit::Store { replaces: true, value, expiry: positive_expiry(millis, now, command)? })
}

/// Returns the item's number plus `delta`. Without an item, the number is 0.
fn sum_of(item: Option<&FoundItem<'_>>, delta: i64) -> Result<i64, CommandError<'static>> {
    let sum = item.map_or(Ok(0), FoundItem::number)?.checked_add(delta);
    sum.ok_or(CommandError::Overflow)
}

/// Adds 1 to the item's number. If `is_renewed`, sets the expiry to `millis` milliseconds from now.
/// The answer is the sum, and the milliseconds until the item expires.
fn hit<'v>(
    item: Option<&FoundItem<'_>>,
    is_renewed: bool,
    millis: &[u8],
    now: Now,
) -> Decision<'v> {
    let (left, expiry) = if is_renewed {
        let millis = lua_integer(millis)?;
        (millis, Some(expiry_after(millis, now, "pexpire")?))
    } else {
        (item.map_or(-1, |item| milliseconds_left(item.expiry, now)), None)
    };
    let (edit, sum) = add(item, 1, expiry)?;
    Ok((edit, Answer::Pair(sum, left)))
}

/// Returns the edit that adds `delta` to the item's number, and the sum. If `expiry` is `None`, the
/// item keeps its expiry.
fn add<'v>(
    item: Option<&FoundItem<'_>>,
    delta: i64,
    expiry: Option<Expiry>,
) -> Result<(Edit<'v>, i64), CommandError<'static>> {
    let sum = sum_of(item, delta)?;
    let value = short(&sum.to_string())?;
    let expiry = expiry.unwrap_or_else(|| item.map_or(Expiry::Never, |item| item.expiry));
    Ok((Edit::Store { replaces: false, value, expiry }, sum))
}

fn short<'v>(text: &str) -> Result<EditValue<'v>, CommandError<'static>> {
    let mut bytes = [0; 20];
    let len = text.len();
    bytes.get_mut(..len).ok_or(CommandError::Overflow)?.copy_from_slice(text.as_bytes());
    Ok(EditValue::Short(bytes, len.try_into().map_err(|_| CommandError::Overflow)?))
}

/// The epoch of redis_rate's times: 2017-01-01, in Unix seconds.
const RATE_EPOCH: f64 = 1_483_228_800.0;

/// Executes the generic cell rate algorithm (GCRA). The item's value is the theoretical arrival
/// time of the next request, in seconds since [`RATE_EPOCH`].
fn allow_rate<'v>(
    script: Script,
    arguments: &[&[u8]; 4],
    item: Option<&FoundItem<'_>>,
    now: Now,
) -> Decision<'v> {
    let number = |text: &[u8]| {
        let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
        number.filter(|number| number.is_finite()).ok_or(CommandError::NotInteger)
    };
    let [burst, rate, period, cost] = arguments.map(number);
    let (burst, rate, period, cost) = (burst?, rate?, period?, cost?);
    let interval = period / rate;
    if !interval.is_finite() || interval <= 0.0 {
        return Err(CommandError::NotInteger);
    }
    #[expect(clippy::cast_precision_loss, reason = "as Lua, whose numbers are floats")]
    let now_secs = now.in_millis() as f64 / 1000.0 - RATE_EPOCH;
    let arrival = match item {
        Some(item) => number(item.value.unwrap_or_default())?.max(now_secs),
        None => now_secs,
    };
    // `left` is the number of remaining requests: with `AllowRate` after this request, and with
    // `AllowRateAtMost` before this request.
    let has_whole_cost = script == Script::AllowRate;
    let charged = if has_whole_cost { interval * cost } else { 0.0 };
    let diff = now_secs - (arrival + charged - interval * burst);
    let left = diff / interval;
    let least = if has_whole_cost { 0.0 } else { 1.0 };
    if left < least {
        let retry = interval * least - diff;
        return Ok((Edit::Keep, Answer::Rate([0, 0], [retry, arrival - now_secs])));
    }
    let (allowed, left) = match has_whole_cost {
        true => (cost, left),
        false if left < cost => (left, 0.0),
        false => (cost, left - cost),
    };
    let next = arrival + interval * allowed;
    let reset = next - now_secs;
    let counts = [truncated(allowed), truncated(left)];
    let answer = Answer::Rate(counts, [-1.0, reset]);
    if reset <= 0.0 {
        return Ok((Edit::Keep, answer));
    }
    let millis = truncated(reset.ceil()).checked_mul(1000);
    let millis = millis.ok_or(CommandError::ExpireTime("set"))?;
    Ok((store(short(&next.to_string())?, millis, now, "set")?, answer))
}

/// Converts a number to an integer reply. Redis truncates the numbers that a script returns.
#[expect(clippy::cast_possible_truncation, reason = "numbers beyond 64 bits saturate")]
fn truncated(number: f64) -> i64 {
    number as i64
}

fn write(answer: &Answer, version: Version, output: &mut Vec<u8>) {
    match answer {
        Answer::Integer(number) => reply::integer(*number, output),
        Answer::Ok => reply::ok(output),
        Answer::Null => reply::null(version, output),
        Answer::Pair(one, other) => {
            reply::array(2, output);
            reply::integer(*one, output);
            reply::integer(*other, output);
        }
        Answer::Rate(counts, times) => {
            reply::array(4, output);
            counts.iter().for_each(|count| reply::integer(*count, output));
            times.iter().for_each(|time| reply::bulk(lua_text(*time).as_bytes(), output));
        }
        Answer::Error(error) => reply::error(error, output),
    }
}

/// Returns a number as Lua's `tostring` writes it: C's `%.14g`.
fn lua_text(number: f64) -> String {
    let scientific = format!("{number:.13e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match usize::try_from(13 - exponent) {
        Ok(decimals @ ..=17) => trimmed(&format!("{number:.decimals$}")),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_lua_writes_them() {
        for (number, text) in [
            (-1.0, "-1"),
            (0.0, "0"),
            (0.5, "0.5"),
            (59.999, "59.999"),
            (1.0 / 3.0, "0.33333333333333"),
            (1e13, "10000000000000"),
            (1e14, "1e+14"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
        ] {
            assert_eq!(lua_text(number), text);
        }
    }
}
