//! The guard that a hit returns.

use std::fmt;
use std::ops::Deref;

use super::Cache;
use azekura_buffer::parts::FrameId;

/// A borrowed value. It stays unchanged until the guard is dropped, even if its key is removed or receives
/// another value. A borrowed entry is not evicted, so do not keep many guards.
#[must_use]
pub struct Ref<'c, K, V, S> {
    cache: &'c Cache<K, V, S>,
    frame: FrameId,
}

impl<'c, K, V, S> Ref<'c, K, V, S> {
    /// Creates the guard of a pin that the caller has taken.
    pub(super) const fn pinned(cache: &'c Cache<K, V, S>, frame: FrameId) -> Self {
        Self { cache, frame }
    }

    pub(super) const fn frame(&self) -> FrameId {
        self.frame
    }

    fn entry(&self) -> &(K, V) {
        // SAFETY: CACHE-1: this guard is the pin, and the reference does not outlive it.
        unsafe { self.cache.entries[self.frame.0 as usize].get() }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.entry().0
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &V {
        &self.entry().1
    }
}

impl<K, V, S> Deref for Ref<'_, K, V, S> {
    type Target = V;
    fn deref(&self) -> &V {
        self.value()
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for Ref<'_, K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ref").field(self.key()).field(self.value()).finish()
    }
}

impl<K, V, S> Drop for Ref<'_, K, V, S> {
    fn drop(&mut self) {
        self.cache.frames[self.frame.0 as usize].unpin();
    }
}
