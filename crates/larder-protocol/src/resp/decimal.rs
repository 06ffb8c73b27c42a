//! Decimal numbers for `INCRBYFLOAT`.

use std::fmt;

/// The number of digits after the point.
const SCALE: u32 = 17;
/// The number 1 in the representation of [`Decimal`].
const ONE: i128 = 10_i128.pow(SCALE);
/// The maximum number of digits that are read after the point. Further digits are ignored.
const FRACTION_MAX: u32 = 25;

/// A fixed-point decimal number with 17 digits after the point, as many as redis-server prints. Its
/// absolute value is below 1.7 × 10^21. Sums are exact, whereas redis-server rounds its binary
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal(i128);

/// The reason why a string is not accepted as a [`Decimal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecimalError {
    /// The string is not a number.
    NotANumber,
    /// The number is infinite or too large.
    OutOfRange,
}

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Parses a number, such as `-12`, `.5` or `1.25e3`, and rounds it to 17 digits after the
    /// point.
    ///
    /// # Errors
    /// See [`DecimalError`].
    pub fn parse(text: &[u8]) -> Result<Self, DecimalError> {
        let (is_negative, unsigned) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if [&b"inf"[..], b"infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word)) {
            return Err(DecimalError::OutOfRange);
        }
        let is_exponent = |byte: &u8| matches!(byte, b'e' | b'E');
        let mut parts = unsigned.splitn(2, is_exponent);
        let digits = parts.next().unwrap_or_default();
        let exponent = parts.next().map_or(Ok(0), exponent)?;
        let (mut number, mut fraction) = (0_i128, 0);
        let (mut has_digit, mut has_point) = (false, false);
        for byte in digits {
            match byte {
                b'.' if !has_point => has_point = true,
                b'0'..=b'9' => {
                    has_digit = true;
                    if has_point && fraction == FRACTION_MAX {
                        continue;
                    }
                    fraction += u32::from(has_point);
                    let next = number.checked_mul(10);
                    let next = next.and_then(|number| number.checked_add(i128::from(byte - b'0')));
                    number = next.ok_or(DecimalError::OutOfRange)?;
                }
                _ => return Err(DecimalError::NotANumber),
            }
        }
        if !has_digit {
            return Err(DecimalError::NotANumber);
        }
        let shift = i64::from(SCALE) - i64::from(fraction) + i64::from(exponent);
        let scaled = scaled(number, shift).ok_or(DecimalError::OutOfRange)?;
        Ok(Self(if is_negative { -scaled } else { scaled }))
    }

    /// Returns the sum, or `None` if it is out of range.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

/// Parses the exponent of a number.
fn exponent(text: &[u8]) -> Result<i32, DecimalError> {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(DecimalError::NotANumber);
    }
    // With an exponent beyond this limit, any number except 0 is out of range or rounds to 0.
    let limit = if text.starts_with(b"-") { -10_000 } else { 10_000 };
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<i32>().ok());
    Ok(number.unwrap_or(limit).clamp(-10_000, 10_000))
}

/// Returns `number` × 10^`shift`, rounded half up, or `None` if the result is too large.
fn scaled(number: i128, shift: i64) -> Option<i128> {
    let power = |shift: u64| 10_i128.checked_pow(u32::try_from(shift).ok()?);
    if number == 0 {
        return Some(0);
    }
    if shift >= 0 {
        return number.checked_mul(power(shift.unsigned_abs())?);
    }
    // If the divisor does not fit in 128 bits, the result is 0.
    let Some(divisor) = power(shift.unsigned_abs()) else { return Some(0) };
    let (quotient, rest) = (number / divisor, number % divisor);
    Some(quotient + i128::from(rest >= divisor - rest))
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / ONE, (self.0 % ONE).unsigned_abs());
        // The integer part of a number between -1 and 0 is 0, which is shown without a sign.
        let sign = if self.0 < 0 && whole == 0 { "-" } else { "" };
        write!(f, "{sign}{whole}")?;
        if fraction > 0 {
            let digits = format!("{fraction:017}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_without_needless_digits() {
        for (text, shown) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("007", "7"),
            ("+5.", "5"),
            (".5", "0.5"),
            ("-.25", "-0.25"),
            ("-3.50", "-3.5"),
            ("5.0e3", "5000"),
            ("2E-3", "0.002"),
            ("12e+1", "120"),
            ("0.00000000000000001", "0.00000000000000001"),
            ("0.000000000000000005", "0.00000000000000001"),
            ("0.0000000000000000049", "0"),
            ("1e-99999999999999999999", "0"),
            ("0e99999999999999999999", "0"),
            ("1700000000000000000000", "1700000000000000000000"),
            ("0.3333333333333333333333333333333333333333333", "0.33333333333333333"),
        ] {
            assert_eq!(
                Decimal::parse(text.as_bytes()).map(|n| n.to_string()),
                Ok(shown.into()),
                "{text}"
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", ".", "-", "+-1", "1.2.3", "1e", "1e+", "e5", "1 ", " 1", "x", "0x10", "nan",
            "1e1.5",
        ] {
            assert_eq!(Decimal::parse(text.as_bytes()), Err(DecimalError::NotANumber), "{text}");
        }
        for text in ["inf", "-Infinity", "1e22", "1800000000000000000000", "1e99999999999999999999"]
        {
            assert_eq!(Decimal::parse(text.as_bytes()), Err(DecimalError::OutOfRange), "{text}");
        }
    }

    #[test]
    fn sums_are_exact() {
        for (a, b, sum) in [
            ("10.50", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.6", "-5.6", "0"),
            ("9007199254740993", "0.1", "9007199254740993.1"),
            ("-0.5", "0.25", "-0.25"),
        ] {
            let [a, b] = [a, b].map(|text| Decimal::parse(text.as_bytes()).unwrap());
            assert_eq!(a.checked_add(b).map(|n| n.to_string()), Some(sum.into()));
        }
        let large = Decimal::parse(b"1700000000000000000000").unwrap();
        assert_eq!(large.checked_add(large), None);
    }
}
