//! Patterns of `MATCH` and `KEYS`, over bytes: `*`, `?`, `[abc]`, `[a-z]`, `[^a]`, and `\` to escape a byte.
//!
//! The time is at most proportional to the product of the two lengths.

/// Returns `true` if all of `text` matches `pattern`.
pub(crate) fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // Position of the next attempt if the part after the last `*` does not match: one byte further.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(b'*') = pattern.first() {
            pattern = &pattern[1..];
            again = Some((pattern, text));
            continue;
        }
        let fits = match (pattern.is_empty(), text.split_first()) {
            (true, None) => return true,
            (true, Some(_)) => None,
            (false, None) => return false,
            (false, Some((&byte, rest))) => one(pattern, byte).map(|pattern| (pattern, rest)),
        };
        (pattern, text) = match (fits, again) {
            (Some(further), _) => further,
            (None, Some((after_star, [_, rest @ ..]))) => {
                again = Some((after_star, rest));
                (after_star, rest)
            }
            (None, _) => return false,
        };
    }
}

/// Returns the rest of the pattern if `byte` matches its first element.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (fits, rest) = match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'\\', literal, rest @ ..] => (*literal == byte, rest),
        [b'[', rest @ ..] => class(rest, byte),
        [literal, rest @ ..] => (*literal == byte, rest),
        [] => return None,
    };
    fits.then_some(rest)
}

/// Returns `true` if `byte` is in the class that begins here, and the rest of the pattern. A class without
/// `]` extends to the end.
fn class(mut rest: &[u8], byte: u8) -> (bool, &[u8]) {
    let is_negated = rest.first() == Some(&b'^');
    if is_negated {
        rest = &rest[1..];
    }
    let mut is_in = false;
    loop {
        rest = match rest {
            [] => return (is_in != is_negated, rest),
            [b']', rest @ ..] => return (is_in != is_negated, rest),
            [b'\\', literal, rest @ ..] => {
                is_in |= *literal == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                is_in |= *literal == byte;
                rest
            }
        };
    }
}

/// Returns the literal prefix of the pattern.
pub(crate) fn literal_prefix(mut pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    loop {
        pattern = match pattern {
            [] | [b'*' | b'?' | b'[', ..] => return prefix,
            [b'\\', literal, rest @ ..] | [literal, rest @ ..] => {
                prefix.push(*literal);
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matches by exhaustive search, as a reference.
    fn slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|skip| slowly(rest, &text[skip..])),
            _ => text
                .split_first()
                .is_some_and(|(&byte, rest)| one(pattern, byte).is_some_and(|pattern| slowly(pattern, rest))),
        }
    }

    #[test]
    fn patterns_fit_as_redis_documents_them() {
        for (pattern, yes, no) in [
            ("h?llo", "hello", "hllo"),
            ("h*llo", "heeeello", "hell"),
            ("h[ae]llo", "hallo", "hillo"),
            ("h[^e]llo", "hallo", "hello"),
            ("h[a-b]llo", "hbllo", "hcllo"),
            ("a\\*b", "a*b", "axb"),
            ("[z-a]", "m", "1"),
            ("*", "", ""),
        ] as [(&str, &str, &str); 8]
        {
            assert!(matches(pattern.as_bytes(), yes.as_bytes()), "{pattern} {yes}");
            assert!(pattern == "*" || !matches(pattern.as_bytes(), no.as_bytes()), "{pattern} {no}");
        }
    }

    #[test]
    fn every_short_pattern_fits_what_trying_everything_says() {
        let letters = b"ab*?";
        let words = |letters: &[u8], len: usize| -> Vec<Vec<u8>> {
            let mut all = vec![Vec::new()];
            for _ in 0..len {
                let longer: Vec<Vec<u8>> = all
                    .iter()
                    .flat_map(|w| letters.iter().map(move |&b| [w.as_slice(), &[b]].concat()))
                    .collect();
                all.extend(longer);
                all.sort();
                all.dedup();
            }
            all
        };
        let texts = words(b"ab", 4);
        for pattern in words(letters, 4) {
            let prefix = literal_prefix(&pattern);
            for text in &texts {
                let fits = slowly(&pattern, text);
                assert_eq!(matches(&pattern, text), fits, "{pattern:?} {text:?}");
                assert!(!fits || text.starts_with(&prefix));
            }
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends_soon() {
        let pattern = b"*a".repeat(2000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(5000)));
    }
}
