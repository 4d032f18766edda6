//! Option strings: `name=value` pairs separated by commas, so that a new option changes no function.

use std::mem;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use azekura::{Builder, Durability, Error};

fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

/// Calls `set` for each pair of an option string. A value in double quotes may have commas.
///
/// # Errors
///
/// A part of the string is not a pair, or `set` returned an error.
pub(crate) fn each(text: &str, mut set: impl FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
    // A quote begins a quoted value only directly behind the equals sign; it ends it anywhere.
    let (mut is_quoted, mut before) = (false, ' ');
    let pairs = text.split(|char: char| {
        is_quoted = if is_quoted { char != '"' } else { char == '"' && before == '=' };
        if !char.is_whitespace() {
            before = char;
        }
        char == ',' && !is_quoted
    });
    for (pair, number) in pairs.map(str::trim).zip(1..).filter(|(pair, _)| !pair.is_empty()) {
        // The text may be a part of a key, so the message does not contain it.
        let Some((name, value)) = pair.split_once('=') else {
            return Err(invalid(format!("option {number} has no value; write name=value")));
        };
        let value = value.trim();
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.strip_suffix('"').ok_or_else(|| {
                invalid(format!("the value of option {number} does not end with its quote"))
            })?,
            None => value,
        };
        set(name.trim(), value)?;
    }
    Ok(())
}

/// Returns a path, which must not be empty.
///
/// # Errors
///
/// The path is empty.
pub(crate) fn path<'a>(name: &str, given: &'a str) -> Result<&'a Path, Error> {
    if given.is_empty() {
        Err(invalid(format!("option {name} is an empty path")))
    } else {
        Ok(Path::new(given))
    }
}

/// Returns the durability of commits.
pub(crate) const fn durability(is_durable: bool) -> Durability {
    // Relaxed is a durability here, not a memory ordering: the commit returns before its records are on disk.
    if is_durable { Durability::Immediate } else { Durability::Relaxed }
}

/// A type of the values of options.
pub(crate) trait Value: FromStr {
    /// Text form of a value, for messages.
    const FORM: &'static str;
}

impl Value for bool {
    const FORM: &'static str = "true or false";
}

impl Value for usize {
    const FORM: &'static str = u64::FORM;
}

impl Value for u64 {
    const FORM: &'static str = "a whole number in decimal digits, of at most 64 bits";
}

/// Reads a number or a boolean.
///
/// # Errors
///
/// The text is not such a value.
pub(crate) fn value<T: Value>(name: &str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|_| invalid(format!("option {name} has the value {value:?}; write {}", T::FORM)))
}

/// Reads a number of milliseconds.
///
/// # Errors
///
/// The text is not a number.
pub(crate) fn time(name: &str, given: &str) -> Result<Duration, Error> {
    value(name, given).map(Duration::from_millis)
}

/// Returns the error for an option that the function does not have.
pub(crate) fn unknown(name: &str) -> Error {
    invalid(format!("unknown option {name:?}"))
}

/// Reads a key of 64 hexadecimal digits. The error message does not contain the digits.
pub(crate) fn key(digits: &str) -> Result<[u8; 32], Error> {
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    let key = bytes.filter(|_| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    key.and_then(|key| key.try_into().ok())
        .ok_or_else(|| invalid("option encryption_key has not the 64 hexadecimal digits of a key".to_owned()))
}

/// Returns the settings of a store for an option string.
///
/// # Errors
///
/// An unknown option, or an invalid value.
pub(crate) fn builder(text: &str) -> Result<Builder, Error> {
    let mut builder = Builder::default();
    each(text, |name, given| {
        builder = set(mem::take(&mut builder), name, given)?;
        Ok(())
    })?;
    Ok(builder)
}

/// Changes one setting of a store.
///
/// # Errors
///
/// As of [`builder`].
pub(crate) fn set(old: Builder, name: &str, given: &str) -> Result<Builder, Error> {
    Ok(match name {
        "create" => old.create(value(name, given)?),
        "read_only" => old.read_only(value(name, given)?),
        "memory_bytes" => old.memory_bytes(value(name, given)?),
        "cache_bytes" => old.cache_bytes(value(name, given)?),
        "page_size" => old.page_size(value(name, given)?),
        "undo_bytes" => old.undo_bytes(value(name, given)?),
        "version_bytes" => old.version_bytes(value(name, given)?),
        "transaction_timeout_ms" => old.transaction_timeout(time(name, given)?),
        "lock_timeout_ms" => old.lock_timeout(time(name, given)?),
        "close_time_ms" => old.close_time(time(name, given)?),
        "encryption_key" => old.encryption_key(&key(given)?),
        "direct_pages" => old.direct_pages(value(name, given)?),
        "durable" => old.durability(durability(value(name, given)?)),
        "recovery_time_ms" => old.recovery_time(time(name, given)?),
        "log_sync_interval_ms" => old.log_sync_interval(Some(time(name, given)?)),
        "file_mode" => old.file_mode(
            u32::from_str_radix(given, 8)
                .map_err(|_| invalid(format!("option {name} is {given:?}; write octal digits")))?,
        ),
        "archive" => old.archive(path(name, given)?),
        _ => return Err(unknown(name)),
    })
}

#[cfg(test)]
mod tests {
    use super::builder;

    #[test]
    fn a_quoted_value_may_have_commas_and_other_quotes_are_characters() {
        let pairs = |text: &str| {
            let mut found = Vec::new();
            super::each(text, |name, value| {
                found.push(format!("{name}:{value}"));
                Ok(())
            })
            .map(|()| found)
        };
        assert_eq!(pairs(r#"to="/a,b", n=5"#).expect("pairs"), ["to:/a,b", "n:5"]);
        assert_eq!(pairs(r#"to=/a"b,n=5"#).expect("pairs"), [r#"to:/a"b"#, "n:5"]);
        assert_eq!(pairs(r#"to= "x, y" ,n=5"#).expect("pairs"), ["to:x, y", "n:5"]);
        assert!(pairs(r#"to="/a,n=5"#).is_err());
    }

    #[test]
    fn options_are_read_and_wrong_ones_are_named() {
        let key = format!("encryption_key={}", "0aF9".repeat(16));
        for right in [
            "",
            " create = false , cache_bytes=33554432,",
            "page_size=4096,read_only=true",
            "close_time_ms=5",
            &key,
        ] {
            assert!(builder(right).is_ok(), "{right}");
        }
        for wrong in ["", "0a", &"+1".repeat(32), &"é".repeat(32)] {
            let error = builder(&format!("encryption_key={wrong}")).expect_err(wrong).to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
        for wrong in ["cache_bytes=33554432,encryption_key:0af9", "encryption_key=00,0af9"] {
            let error = builder(wrong).expect_err(wrong).to_string();
            assert!(!error.contains("0af9"), "{error}");
        }
        for (wrong, named) in [
            ("color=red", "color"),
            ("create", "name=value"),
            ("create=2", "create"),
            ("create=yes", "write true or false"),
            ("cache_bytes=1MiB", "write a whole number"),
            ("close_time_ms=-1", "close_time_ms"),
        ] {
            let error = builder(wrong).expect_err(wrong).to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
