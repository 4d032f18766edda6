//! Name and codecs of a table.

use std::sync::Arc;

use azekura::TableDefinition;
use pyo3::prelude::*;

use crate::codec::Codec;

/// Name and codecs of a table.
pub(crate) struct Definition {
    pub(super) table: TableDefinition<[u8], [u8]>,
    pub(super) key: Codec,
    pub(super) value: Codec,
}

impl Definition {
    /// Returns the definition for the arguments of `table`. Without codecs a table of any types opens, as
    /// bytes.
    pub(crate) fn of(
        name: String,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arc<Self>> {
        let is_raw = key.is_none() && value.is_none();
        let key = key.map_or(Ok(Codec::Bytes), Codec::of_keys)?;
        let value = value.map_or(Ok(Codec::Bytes), Codec::of_values)?;
        let table = if is_raw {
            TableDefinition::raw(name)
        } else {
            TableDefinition::encoded(name, &key.type_name(), &value.type_name())
        };
        Ok(Arc::new(Self { table, key, value }))
    }
}
