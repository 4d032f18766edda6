//! Decimal numbers with the arithmetic of Redis on x86: 80-bit floating point, written with at most 17 digits
//! after the decimal point.

use rustc_apfloat::ieee::X87DoubleExtended;
use rustc_apfloat::{Float, Round};

/// Maximum of digits after the decimal point.
const FRACTION_DIGITS: u32 = 17;
/// Length limit of a text that is parsed as a number.
const MAX_TEXT_BYTES: usize = 5 * 1024;
/// Bound of parsed exponents. With a larger exponent, every text of [`MAX_TEXT_BYTES`] is zero or infinite,
/// whatever its digits are.
const MAX_EXPONENT: i64 = 40_000;
/// Exponent bias of the lowest bit of the significand: the format's bias and the 63 bits behind the point.
const BIAS: i32 = 16_383 + 63;

/// A finite or infinite 80-bit number.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongDouble(X87DoubleExtended);

impl LongDouble {
    pub(super) const ZERO: Self = Self(X87DoubleExtended::ZERO);

    /// Parses all of `text` as `strtold` does: decimal or hexadecimal, with or without fraction and exponent,
    /// `inf`, `infinity`. Returns `None` if `text` is not a number or is out of range.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= MAX_TEXT_BYTES {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let (is_negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let magnitude = if ["inf", "infinity"].iter().any(|word| digits.eq_ignore_ascii_case(word)) {
            X87DoubleExtended::INFINITY
        } else {
            finite(digits)?
        };
        Some(Self(if is_negative { -magnitude } else { magnitude }))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.add_r(other.0, Round::NearestTiesToEven).value)
    }

    /// Returns the number without an exponent and without trailing zeros; `None` if it is not finite.
    pub(super) fn to_text(self) -> Option<String> {
        if !self.0.is_finite() {
            return None;
        }
        let bits = self.0.to_bits();
        let significand = bits & u128::from(u64::MAX);
        // Subnormal numbers have the weight of the least exponent.
        let exponent = i32::try_from((bits >> 64) & 0x7fff).ok()?.max(1) - BIAS;
        let text = if exponent >= 0 {
            shifted(u64::try_from(significand).ok()?, exponent.unsigned_abs())
        } else {
            rounded(significand, exponent.unsigned_abs())
        };
        let sign = if self.0.is_negative() && text != "0" { "-" } else { "" };
        Some(format!("{sign}{text}"))
    }
}

/// Parses a number without a sign. Returns `None` if `text` is not a number or is out of range.
fn finite(text: &str) -> Option<X87DoubleExtended> {
    let is_hex = text.get(..2).is_some_and(|head| head.eq_ignore_ascii_case("0x"));
    let (body, mark) = if is_hex { (&text[2..], ['p', 'P']) } else { (text, ['e', 'E']) };
    let (significand, exponent) = match body.split_once(mark) {
        Some((significand, exponent)) => (significand, bounded_exponent(exponent)?),
        None => (body, 0),
    };
    let (whole, fraction) = significand.split_once('.').unwrap_or((significand, ""));
    let mut digits = whole.bytes().chain(fraction.bytes());
    let is_digit = |b: u8| if is_hex { b.is_ascii_hexdigit() } else { b.is_ascii_digit() };
    if whole.len() + fraction.len() == 0 || !digits.all(is_digit) {
        return None;
    }
    let is_zero = whole.bytes().chain(fraction.bytes()).all(|b| b == b'0');
    if is_zero {
        return Some(X87DoubleExtended::ZERO);
    }
    let (prefix, mark) = if is_hex { ("0x", 'p') } else { ("", 'e') };
    let text = format!("{prefix}{whole}.{fraction}{mark}{exponent}");
    let number = X87DoubleExtended::from_str_r(&text, Round::NearestTiesToEven).ok()?.value;
    (number.is_finite() && !number.is_zero()).then_some(number)
}

/// Parses an exponent. Limits it to [`MAX_EXPONENT`].
fn bounded_exponent(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude = digits.parse().unwrap_or(i64::MAX).min(MAX_EXPONENT);
    Some(if is_negative { -magnitude } else { magnitude })
}

/// Returns `significand` times two to the power of `exponent`, in decimal.
fn shifted(significand: u64, exponent: u32) -> String {
    const LIMB: u64 = 1_000_000_000;
    // Decimal digits in groups of nine, the lowest group first.
    let mut limbs = vec![significand % LIMB, significand / LIMB % LIMB, significand / LIMB / LIMB];
    let mut left = exponent;
    while left > 0 {
        let bits = left.min(32);
        let mut carry = 0;
        for limb in &mut limbs {
            let product = (*limb << bits) + carry;
            (*limb, carry) = (product % LIMB, product / LIMB);
        }
        while carry > 0 {
            limbs.push(carry % LIMB);
            carry /= LIMB;
        }
        left -= bits;
    }
    let digits: String = limbs.iter().rev().map(|limb| format!("{limb:09}")).collect();
    digits.trim_start_matches('0').to_owned()
}

/// Returns `significand` divided by two to the power of `exponent`, rounded to [`FRACTION_DIGITS`] digits,
/// ties to even.
fn rounded(significand: u128, exponent: u32) -> String {
    let scale = 10_u128.pow(FRACTION_DIGITS);
    // The product is below 2^64 times 10^17, so below 2^121.
    let scaled = significand * scale;
    let number = if exponent > 121 {
        0
    } else {
        let (quotient, rest) = (scaled >> exponent, scaled & ((1 << exponent) - 1));
        let half = 1_u128 << (exponent - 1);
        quotient + u128::from(rest > half || (rest == half && quotient % 2 == 1))
    };
    let text = format!("{}.{:0width$}", number / scale, number % scale, width = FRACTION_DIGITS as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        LongDouble::parse(a.as_bytes())?.plus(LongDouble::parse(b.as_bytes())?).to_text()
    }

    /// The results equal those of Redis 7.0.15 on x86-64.
    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, text) in [
            ("0.1", "0.2", "0.3"),
            ("3", "1.1", "4.1"),
            ("1", "0.00000000000000001", "1.00000000000000001"),
            ("3.0e3", "200", "3200"),
            ("-0", "-0.0", "0"),
            ("-1", "1e-30", "-1"),
            ("0x10", "0x.8p1", "17"),
            (".5", "5.", "5.5"),
            ("1e18", "1", "1000000000000000001"),
            ("1e20", "1", "100000000000000000000"),
            ("18446744073709551616", "0", "18446744073709551616"),
            ("5e-324", "0", "0"),
            ("+1.5", "-2.25", "-0.75"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(text), "{a} + {b}");
        }
        let large = sum("1e4932", "0").expect("in range");
        assert!(large.len() == 4933 && large.starts_with("1000000000000000000"), "{large}");
    }

    #[test]
    fn texts_that_are_no_numbers_in_range_are_refused() {
        let no_numbers =
            ["", " 1", "1 ", "1a", "nan", "0x", "0x.p1", ".", "e5", "1e", "1e+", "--1", "1.2.3", "1e5.5"];
        let out_of_range =
            ["1e5000", "-1e5000", "1e-5000", "1e99999999999999999999", "1e-99999999999999999999"];
        for text in no_numbers.into_iter().chain(out_of_range) {
            assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text}");
        }
        assert!(LongDouble::parse(&[b'1'; MAX_TEXT_BYTES]).is_none());
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("infinity", "-inf"), None);
    }
}
