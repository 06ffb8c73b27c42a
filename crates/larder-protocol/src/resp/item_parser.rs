//! Parses the arguments after the key of a command on one key into an [`ItemCommand`]. The caller
//! is `command_parser.rs`.

use super::command::{
    Expire, ExpireConditions, ExpireTime, ItemCommand, NewExpiry, Set, SetAnswer, SetCondition,
};
use super::decimal::{Decimal, DecimalError};
use super::error::{CommandError, Parsed};
use super::number::i64_of;
use super::request::Arguments;
use super::table::Verb;
use super::words::{integer, is, next, nth};

/// The maximum number of tags per item.
const TAGS_MAX: usize = 7;

/// The maximum length of a tag's name, in bytes.
const TAG_LEN_MAX: usize = 250;

pub(super) fn checked_tag<'b>(tag: &'b [u8]) -> Parsed<'b, &'b [u8]> {
    if (1..=TAG_LEN_MAX).contains(&tag.len()) { Ok(tag) } else { Err(CommandError::TagLength) }
}

/// Parses the arguments after the key.
pub(super) fn item_command<'b>(
    mut rest: Arguments<'b>,
    verb: Verb,
    name: &'static str,
) -> Parsed<'b, ItemCommand<'b>> {
    let (first, second) = (nth(rest, 0), nth(rest, 1));
    let show_expiry = |in_millis, absolute| ItemCommand::ShowExpiry { in_millis, absolute };
    let plain_set = |value, condition, answer| {
        ItemCommand::Set(Set {
            value,
            condition,
            expiry: NewExpiry::Never,
            answer,
            tags: None,
            name,
        })
    };
    Ok(match verb {
        Verb::Get => ItemCommand::Get,
        Verb::GetDel => ItemCommand::GetDel,
        Verb::DelIfEq => ItemCommand::DeleteIf { value: first, equal: true },
        Verb::DelEx if rest.len() != 2 => return Err(CommandError::Arity(name)),
        Verb::DelEx if is(first, "ifeq") => ItemCommand::DeleteIf { value: second, equal: true },
        Verb::DelEx if is(first, "ifne") => ItemCommand::DeleteIf { value: second, equal: false },
        Verb::GetEx => {
            let options = Options::parse(rest, OptionsOf::GetEx)?;
            ItemCommand::GetEx(match options.expiry {
                ExpiryOption::None => None,
                _ => Some(options.expiry(name)?),
            })
        }
        Verb::Set => {
            rest.next();
            let options = Options::parse(rest, OptionsOf::Set)?;
            let answer = if options.get { SetAnswer::OldValue } else { SetAnswer::Ok };
            let expiry = options.expiry(name)?;
            ItemCommand::Set(Set {
                value: first,
                condition: options.condition,
                expiry,
                answer,
                tags: options.tags,
                name,
            })
        }
        Verb::SetNx => plain_set(first, SetCondition::Absent, SetAnswer::Number),
        Verb::GetSet => plain_set(first, SetCondition::Always, SetAnswer::OldValue),
        Verb::SetEx | Verb::PSetEx => {
            let unit = if verb == Verb::SetEx { Unit::Seconds } else { Unit::Millis };
            let expiry = NewExpiry::At(positive_time(first, unit, false, name)?);
            let (condition, answer) = (SetCondition::Always, SetAnswer::Ok);
            ItemCommand::Set(Set { value: second, condition, expiry, answer, tags: None, name })
        }
        Verb::Append => ItemCommand::Append(first),
        Verb::StrLen => ItemCommand::StrLen,
        Verb::GetRange => ItemCommand::GetRange { start: integer(first)?, end: integer(second)? },
        Verb::SetRange => {
            let offset = u64::try_from(integer(first)?).map_err(|_| CommandError::OffsetRange)?;
            ItemCommand::SetRange { offset, bytes: second }
        }
        Verb::SetBit => {
            let offset = bit_offset(first)?;
            match i64_of(second) {
                Some(bit @ (0 | 1)) => ItemCommand::SetBit(offset, bit == 1),
                _ => return Err(CommandError::NotBit),
            }
        }
        Verb::GetBit => ItemCommand::GetBit(bit_offset(first)?),
        Verb::BitCount => bit_count(rest)?,
        Verb::Incr => ItemCommand::Add(1),
        Verb::Decr => ItemCommand::Add(-1),
        Verb::IncrBy => ItemCommand::Add(integer(first)?),
        Verb::IncrByFloat => ItemCommand::AddDecimal(decimal(first)?),
        Verb::DecrBy => {
            let delta = integer(first)?.checked_neg();
            ItemCommand::Add(delta.ok_or(CommandError::DecrementOverflow)?)
        }
        Verb::Expire => ItemCommand::Expire(expire(rest, Unit::Seconds, false, name)?),
        Verb::PExpire => ItemCommand::Expire(expire(rest, Unit::Millis, false, name)?),
        Verb::ExpireAt => ItemCommand::Expire(expire(rest, Unit::Seconds, true, name)?),
        Verb::PExpireAt => ItemCommand::Expire(expire(rest, Unit::Millis, true, name)?),
        Verb::Persist => ItemCommand::Persist,
        Verb::Ttl => show_expiry(false, false),
        Verb::PTtl => show_expiry(true, false),
        Verb::ExpireTime => show_expiry(false, true),
        Verb::PExpireTime => show_expiry(true, true),
        Verb::Type => ItemCommand::Type,
        _ => return Err(CommandError::Syntax),
    })
}

/// Parses a decimal number.
///
/// # Errors
/// The string is not a number, or the number is too large.
pub fn decimal(text: &[u8]) -> Parsed<'static, Decimal> {
    Decimal::parse(text).map_err(|error| match error {
        DecimalError::NotANumber => CommandError::NotFloat,
        DecimalError::OutOfRange => CommandError::FloatRange,
    })
}

/// The number of bits in redis-server's longest value.
const BITS_MAX: u64 = 8 * (512 << 20);

fn bit_offset<'b>(text: &'b [u8]) -> Parsed<'b, u64> {
    let offset = i64_of(text).and_then(|offset| u64::try_from(offset).ok());
    offset.filter(|offset| *offset < BITS_MAX).ok_or(CommandError::BitOffset)
}

/// Parses the range of `BITCOUNT`.
fn bit_count<'b>(rest: Arguments<'b>) -> Parsed<'b, ItemCommand<'b>> {
    let (start, end) = match rest.len() {
        0 => (0, -1),
        2 | 3 => (integer(nth(rest, 0))?, integer(nth(rest, 1))?),
        _ => return Err(CommandError::Syntax),
    };
    let in_bits = match { rest }.nth(2) {
        Some(unit) if is(unit, "bit") => true,
        Some(unit) if !is(unit, "byte") => return Err(CommandError::Syntax),
        _ => false,
    };
    Ok(ItemCommand::BitCount { start, end, in_bits })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
}

/// Parses the expiry of `SET`, `GETEX` and `SETEX`. The expiry must be positive.
fn positive_time<'b>(
    text: &'b [u8],
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, ExpireTime> {
    match integer(text)? {
        ..=0 => Err(CommandError::ExpireTime(name)),
        time => expire_time(time, unit, absolute, name),
    }
}

fn expire_time<'b>(
    time: i64,
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, ExpireTime> {
    let millis = if unit == Unit::Seconds { time.checked_mul(1000) } else { Some(time) };
    let millis = millis.ok_or(CommandError::ExpireTime(name))?;
    Ok(ExpireTime { millis, absolute, name })
}

fn expire<'b>(
    mut rest: Arguments<'b>,
    unit: Unit,
    absolute: bool,
    name: &'static str,
) -> Parsed<'b, Expire> {
    let time = next(&mut rest);
    let mut conditions = ExpireConditions::default();
    for option in rest {
        match option {
            _ if is(option, "nx") => conditions.has_none = true,
            _ if is(option, "xx") => conditions.has_one = true,
            _ if is(option, "gt") => conditions.later = true,
            _ if is(option, "lt") => conditions.earlier = true,
            _ => return Err(CommandError::ExpireOption(option)),
        }
    }
    let ExpireConditions { has_none, has_one, later, earlier } = conditions;
    if has_none && (has_one || later || earlier) {
        return Err(CommandError::ExpireNx);
    }
    if later && earlier {
        return Err(CommandError::ExpireGtLt);
    }
    Ok(Expire { time: expire_time(integer(time)?, unit, absolute, name)?, conditions })
}

/// The options that follow the value of `SET`, or the key of `GETEX`.
struct Options<'b> {
    condition: SetCondition<'b>,
    get: bool,
    expiry: ExpiryOption<'b>,
    pub(super) tags: Option<(Arguments<'b>, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionsOf {
    Set,
    GetEx,
}

#[derive(Clone, Copy)]
enum ExpiryOption<'b> {
    None,
    Keep,
    Persist,
    Time { text: &'b [u8], unit: Unit, absolute: bool },
}

impl<'b> Options<'b> {
    fn parse(mut rest: Arguments<'b>, of: OptionsOf) -> Parsed<'b, Self> {
        let mut options = Self {
            condition: SetCondition::Always,
            get: false,
            expiry: ExpiryOption::None,
            tags: None,
        };
        let is_set = of == OptionsOf::Set;
        while let Some(word) = rest.next() {
            let before = options.expiry;
            // If an expiry option is given several times, its last argument is used.
            let mut time = |unit, absolute| match before {
                ExpiryOption::None => time_option(rest.next(), unit, absolute),
                ExpiryOption::Time { unit: other, absolute: is_absolute, .. }
                    if (other, is_absolute) == (unit, absolute) =>
                {
                    time_option(rest.next(), unit, absolute)
                }
                _ => Err(CommandError::Syntax),
            };
            match word {
                _ if is(word, "nx") && is_set && options.may_be(SetCondition::Absent) => {
                    options.condition = SetCondition::Absent;
                }
                _ if is(word, "xx") && is_set && options.may_be(SetCondition::Present) => {
                    options.condition = SetCondition::Present;
                }
                _ if is(word, "ifeq") && is_set && options.condition == SetCondition::Always => {
                    options.condition =
                        SetCondition::Equal(rest.next().ok_or(CommandError::Syntax)?);
                }
                _ if is(word, "ifne") && is_set && options.condition == SetCondition::Always => {
                    options.condition =
                        SetCondition::Unequal(rest.next().ok_or(CommandError::Syntax)?);
                }
                _ if is(word, "get") && is_set => options.get = true,
                _ if is(word, "tags") && is_set && options.tags.is_none() => {
                    let count = usize::try_from(integer(rest.next().ok_or(CommandError::Syntax)?)?);
                    let count = count.ok().filter(|count| (1..=TAGS_MAX).contains(count));
                    let count = count.ok_or(CommandError::TagCount)?;
                    options.tags = Some((rest, count));
                    for _ in 0..count {
                        checked_tag(rest.next().ok_or(CommandError::Syntax)?)?;
                    }
                }
                _ if is(word, "keepttl") && is_set => match options.expiry {
                    ExpiryOption::None | ExpiryOption::Keep => options.expiry = ExpiryOption::Keep,
                    _ => return Err(CommandError::Syntax),
                },
                _ if is(word, "persist") && !is_set => match options.expiry {
                    ExpiryOption::None | ExpiryOption::Persist => {
                        options.expiry = ExpiryOption::Persist;
                    }
                    _ => return Err(CommandError::Syntax),
                },
                _ if is(word, "ex") => options.expiry = time(Unit::Seconds, false)?,
                _ if is(word, "px") => options.expiry = time(Unit::Millis, false)?,
                _ if is(word, "exat") => options.expiry = time(Unit::Seconds, true)?,
                _ if is(word, "pxat") => options.expiry = time(Unit::Millis, true)?,
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }

    /// Returns whether this condition is allowed: no earlier option may have set another condition.
    fn may_be(&self, condition: SetCondition<'_>) -> bool {
        [SetCondition::Always, condition].contains(&self.condition)
    }

    fn expiry(&self, name: &'static str) -> Parsed<'b, NewExpiry> {
        Ok(match self.expiry {
            ExpiryOption::None | ExpiryOption::Persist => NewExpiry::Never,
            ExpiryOption::Keep => NewExpiry::Keep,
            ExpiryOption::Time { text, unit, absolute } => {
                NewExpiry::At(positive_time(text, unit, absolute, name)?)
            }
        })
    }
}

fn time_option<'b>(
    text: Option<&'b [u8]>,
    unit: Unit,
    absolute: bool,
) -> Parsed<'b, ExpiryOption<'b>> {
    let text = text.ok_or(CommandError::Syntax)?;
    Ok(ExpiryOption::Time { text, unit, absolute })
}
