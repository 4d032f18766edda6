//! Reports as JSON: indented, for people and programs.

use serde::Serialize;

/// A value that can be written as JSON.
pub trait Json: Serialize {
    /// Returns the value as indented JSON text.
    ///
    /// # Panics
    ///
    /// If a map in the value has keys that are neither text nor numbers, which is a bug of the type.
    #[must_use]
    fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("text and numbers")
    }
}

impl<T: Serialize + ?Sized> Json for T {}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn it_is_indented() {
        assert_eq!([1, 2].to_json(), "[\n  1,\n  2\n]");
    }
}
