//! Builder methods that set one field each.

/// Defines setters: `name(value: Type) -> field = stored value;`, each with its documentation.
macro_rules! setters {
    ($($(#[$documentation:meta])+ $name:ident($value:ident: $type:ty) -> $field:ident = $stored:expr;)+) => {
        $(
            $(#[$documentation])+
            #[must_use]
            pub fn $name(mut self, $value: $type) -> Self {
                self.$field = $stored;
                self
            }
        )+
    };
}

pub(crate) use setters;
