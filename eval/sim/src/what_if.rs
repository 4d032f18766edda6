//! Predicts the rate without the cost of a line: accesses to lines of a given name take the time of a line
//! that only one thread uses.
//!
//! A rate is limited by one line, then by the next. Without the cost of the first line, the second becomes
//! visible before the first is removed from the code.

use crate::lines::Map;
use crate::name::Name;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;

/// A name of lines as in reports: of a field in one module or in all modules.
///
/// ```
/// use azekura_sim::LineName;
/// let counter: LineName = "next@wal::durable_lsn".parse()?;
/// assert_eq!(counter.to_string(), "next of wal::durable_lsn");
/// assert_eq!("slots[at]".parse::<LineName>()?.to_string(), "slots[at]");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineName {
    field: String,
    module: Option<String>,
}

/// Parses `FIELD` or `FIELD@MODULE`.
impl FromStr for LineName {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (field, module) = match word.rsplit_once('@') {
            Some((field, module)) => (field.trim(), Some(module.trim())),
            None => (word.trim(), None),
        };
        if field.is_empty() || module == Some("") {
            return Err(format!("{word:?} names no line; write FIELD or FIELD@MODULE, as reports have them"));
        }
        Ok(Self { field: field.into(), module: module.map(str::to_owned) })
    }
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            Some(module) => write!(f, "{} of {module}", self.field),
            None => f.write_str(&self.field),
        }
    }
}

impl LineName {
    fn is(&self, name: &Name) -> bool {
        self.field == name.field && self.module.as_ref().is_none_or(|module| *module == name.module)
    }
}

/// The names of lines that cost nothing in a run.
#[derive(Debug, Default)]
pub(crate) struct Free {
    names: Vec<LineName>,
    /// By name: `true` if an object of this name was accessed.
    met: Vec<bool>,
    /// By address of the place: `true` if its accesses cost nothing.
    places: Map<usize, bool>,
}

impl Free {
    pub(crate) fn new(names: Vec<LineName>) -> Self {
        Self { met: vec![false; names.len()], names, places: Map::default() }
    }

    /// Returns `true` if accesses at this place cost nothing.
    pub(crate) fn has(&mut self, place: &'static Location<'static>) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let Self { names, met, places } = self;
        *places.entry(std::ptr::from_ref(place).addr()).or_insert_with(|| {
            let name = Name::of(place);
            let mut is_free = false;
            for (wanted, met) in names.iter().zip(met) {
                let is_it = wanted.is(&name);
                *met |= is_it;
                is_free |= is_it;
            }
            is_free
        })
    }

    /// Returns a name of which no object was accessed.
    pub(crate) fn unmet(&self) -> Option<&LineName> {
        self.names.iter().zip(&self.met).find(|(_, met)| !**met).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word;

    impl Word {
        #[track_caller]
        fn load(&self) -> &'static Location<'static> {
            Location::caller()
        }
    }

    #[test]
    fn places_are_free_by_field_and_by_module_and_what_was_not_met_is_known() {
        let (hot, cold) = (Word, Word);
        let mut free =
            Free::new(["hot", "cold@somewhere::else", "nothing"].map(|n| n.parse().expect("a name")).into());
        assert!(free.has(hot.load()) && free.has(hot.load()), "another place of the same name");
        assert!(!free.has(cold.load()), "another module");
        assert_eq!(free.unmet().map(ToString::to_string).as_deref(), Some("cold of somewhere::else"));
        assert!(Free::new(vec!["hot@sim::what_if".parse().expect("a name")]).has(hot.load()));
    }

    #[test]
    fn a_name_has_a_field() {
        for bad in ["", " ", "@wal", "next@", "@"] {
            assert!(bad.parse::<LineName>().is_err(), "{bad}");
        }
    }
}
