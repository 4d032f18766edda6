//! Forbidden words, lasting exceptions, and the violations that are allowed in older files.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Violation;

/// A forbidden word, or the words of a forbidden phrase in order; all in lower case.
pub(crate) type Phrase = Vec<String>;

/// Reads the forbidden words and phrases: one per line, in lower case. A comment after `#` may give a
/// replacement.
pub(crate) fn words(text: &str) -> Result<Vec<Phrase>, String> {
    let phrases = entries(text).map(|(_, line)| {
        if line == line.to_lowercase() {
            Ok(line.split_whitespace().map(str::to_owned).collect())
        } else {
            Err(format!("words.txt: {line:?} is not in lower case"))
        }
    });
    phrases.collect()
}

/// Returns the entries of a list, without comments, and their line numbers.
fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let uncommented = |line: &'_ str| line.split('#').next().unwrap_or_default().trim().len();
    text.lines().enumerate().map(move |(at, line)| (at + 1, line[..].trim())).filter_map(move |(at, line)| {
        let kept = uncommented(line);
        (kept > 0).then(|| (at, line[..kept].trim()))
    })
}

/// Lasting exceptions: lines of `CHECK PATH-PREFIX # reason`.
#[derive(Debug)]
pub(crate) struct Exceptions(Vec<(String, String)>);

impl Exceptions {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut exceptions = Vec::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("exceptions.txt:{}: write CHECK PATH # reason", at + 1);
            let (entry, reason) = line.split_once(" # ").ok_or_else(wrong)?;
            let (check, path) = entry.trim().split_once(' ').ok_or_else(wrong)?;
            if reason.trim().is_empty() {
                return Err(wrong());
            }
            exceptions.push((check.to_owned(), path.trim().to_owned()));
        }
        Ok(Self(exceptions))
    }

    pub(crate) fn covers(&self, violation: &Violation) -> bool {
        self.0
            .iter()
            .any(|(check, path)| check == violation.check && violation.file.starts_with(path.as_str()))
    }
}

/// The number of violations allowed for each check and file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt(BTreeMap<(String, String), usize>);

impl Debt {
    /// Parses lines of `CHECK COUNT PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut debt = BTreeMap::new();
        for (at, line) in entries(text) {
            let parts: Vec<&str> = line.splitn(3, ' ').collect();
            let &[check, count, path] = parts.as_slice() else {
                return Err(format!("debt.txt:{at}: write CHECK COUNT PATH"));
            };
            let count = count.parse().map_err(|_| format!("debt.txt:{at}: {count} is not a number"))?;
            debt.insert((check.to_owned(), path.to_owned()), count);
        }
        Ok(Self(debt))
    }

    pub(crate) fn of(found: &[Violation]) -> Self {
        let mut debt = BTreeMap::new();
        for violation in found {
            *debt.entry((violation.check.to_owned(), violation.file.clone())).or_default() += 1;
        }
        Self(debt)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the violations of each check and file that has more of them than allowed.
    pub(crate) fn exceeded_by(&self, found: &[Violation]) -> Vec<Violation> {
        let present = Self::of(found);
        let is_exceeded = |violation: &&Violation| {
            let key = (violation.check.to_owned(), violation.file.clone());
            present.0[&key] > self.0.get(&key).copied().unwrap_or(0)
        };
        found.iter().filter(is_exceeded).cloned().collect()
    }

    /// Returns the smaller of both counts for each entry of `self`.
    pub(crate) fn lowered_to(&self, present: &Self) -> Self {
        let lowered = self.0.iter().filter_map(|(key, &allowed)| {
            let count = present.0.get(key).copied().unwrap_or(0).min(allowed);
            (count > 0).then(|| (key.clone(), count))
        });
        Self(lowered.collect())
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from(
            "# Violations that files written before the checks are allowed: CHECK COUNT PATH. The counts \
             only shrink:\n\
             # cargo run -p azekura-tidy -- --update\n",
        );
        for ((check, path), count) in &self.0 {
            let _ = writeln!(text, "{check} {count} {path}");
        }
        text
    }

    /// Returns the sum of the counts of each check, as lines of text.
    pub(crate) fn totals(&self) -> String {
        let mut sums = BTreeMap::new();
        for ((check, _), count) in &self.0 {
            *sums.entry(check).or_insert(0) += count;
        }
        sums.into_iter().fold(String::new(), |mut text, (check, sum)| {
            let _ = writeln!(text, "{check} {sum}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(count: usize) -> Vec<Violation> {
        let one = Violation { file: "a.rs".into(), line: 1, check: "who", text: String::new() };
        vec![one; count]
    }

    #[test]
    fn a_file_may_have_no_more_violations_than_before() {
        let debt = Debt::parse("# old files\nwho 2 a.rs\n").expect("well formed");
        assert_eq!(debt.exceeded_by(&violations(2)), []);
        assert_eq!(debt.exceeded_by(&violations(3)).len(), 3);
        assert_eq!(debt.lowered_to(&Debt::of(&violations(1))).text().lines().last(), Some("who 1 a.rs"));
        assert_eq!(debt.lowered_to(&Debt::of(&violations(9))), debt);
        assert!(Debt::parse("who a.rs").is_err() && Debt::parse("who x a.rs").is_err());
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let exceptions = Exceptions::parse("who docs/old # quotes\n").expect("well formed");
        let violation =
            |file: &str| Violation { file: file.into(), line: 1, check: "who", text: String::new() };
        assert!(
            exceptions.covers(&violation("docs/old.md")) && !exceptions.covers(&violation("docs/new.md"))
        );
        assert!(Exceptions::parse("who docs/old\n").is_err());
    }

    #[test]
    fn words_are_read_without_their_advice() {
        let read = words("manner # mode\n\n# names\non its way\n").expect("lower case");
        assert_eq!(read, [vec!["manner"], vec!["on", "its", "way"]]);
        assert!(words("Two words\n").is_err());
    }
}
