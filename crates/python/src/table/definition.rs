//! Name and codecs of a table.

use std::borrow::Cow;
use std::ops::Bound as Edge;
use std::sync::Arc;

use azekura::TableDefinition;
use pyo3::prelude::*;

use super::Bounds;
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

    /// Encodes the range from `start` (inclusive) to `end` (exclusive), or the range of a prefix.
    pub(super) fn bounds(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bounds> {
        let key = &self.key;
        if let Some(prefix) = prefix {
            let low = key.prefix(prefix)?;
            if key.is_whole(prefix) {
                return Ok((Edge::Included(low.clone()), Edge::Excluded([low, vec![0]].concat())));
            }
            let high = match low.iter().rposition(|byte| *byte != u8::MAX) {
                Some(at) => {
                    let mut high = low[..=at].to_vec();
                    high[at] += 1;
                    Edge::Excluded(high)
                }
                None => Edge::Unbounded,
            };
            return Ok((Edge::Included(low), high));
        }
        let bound = |key: &Codec, bound: &Bound<'_, PyAny>| key.bound(bound).map(Cow::into_owned);
        let low = start.map(|start| bound(key, start)).transpose()?;
        let high = end.map(|end| bound(key, end)).transpose()?;
        Ok((low.map_or(Edge::Unbounded, Edge::Included), high.map_or(Edge::Unbounded, Edge::Excluded)))
    }
}
