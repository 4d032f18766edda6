//! The pages of one session, and the directory in which another session finds them.
//!
//! A child process made by `fork` begins with its parent's pages. Its session gets a copy of the parent's
//! map, and the pages are shared. A page is never changed in place, only replaced, so neither session sees
//! the writes of the other. The copy of the map costs a few tens of bytes per page.
//!
//! - **PAGES-1** Only the thread of a session changes the session's map. Other threads read it under the
//!   map's lock.
//! - **PAGES-2** A map is found by a name of 128 random bits, which only the client of that session has. So
//!   no client can name the map of another client (F6).

use crate::digest::Digest;
use crate::wire::auth::nonce;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A page as it was received.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) bytes: Box<[u8]>,
    pub(super) digest: Digest,
}

type Pages = HashMap<u64, Arc<Stored>>;

/// The pages of all open sessions, by name.
#[derive(Debug, Default)]
pub(super) struct SessionDirectory(Mutex<HashMap<u128, Weak<Mutex<Pages>>>>);

/// The pages of one session. Dropping the value removes the session from the directory.
#[derive(Debug)]
pub(super) struct SessionPages<'a> {
    directory: &'a SessionDirectory,
    name: u128,
    pages: Arc<Mutex<Pages>>,
}

/// Error of opening a session.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("there is no session with the name of the parent")]
    Unknown,
    #[error("the system gave no random bytes: {0}")]
    Random(#[from] io::Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionDirectory {
    /// Opens a session with the pages of the session `like`, or with none if `like` is 0.
    pub(super) fn open(&self, like: u128) -> Result<SessionPages<'_>, OpenError> {
        let pages = if like == 0 {
            Pages::new()
        } else {
            let other = lock(&self.0).get(&like).and_then(Weak::upgrade).ok_or(OpenError::Unknown)?;
            lock(&other).clone()
        };
        let name = u128::from_le_bytes(nonce()?) | 1; // never 0
        let pages = Arc::new(Mutex::new(pages));
        lock(&self.0).insert(name, Arc::downgrade(&pages));
        Ok(SessionPages { directory: self, name, pages })
    }
}

impl SessionPages<'_> {
    pub(super) fn name(&self) -> u128 {
        self.name
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.pages).len()
    }

    /// Returns the page size in bytes, if the session has a page. All pages of a session have the same size.
    pub(super) fn bytes_of_a_page(&self) -> Option<usize> {
        lock(&self.pages).values().next().map(|page| page.bytes.len())
    }

    pub(super) fn has(&self, page: u64) -> bool {
        lock(&self.pages).contains_key(&page)
    }

    pub(super) fn get(&self, page: u64) -> Option<Arc<Stored>> {
        lock(&self.pages).get(&page).cloned()
    }

    /// Stores a page and returns the page that it replaced.
    pub(super) fn put(&self, page: u64, stored: Stored) -> Option<Arc<Stored>> {
        lock(&self.pages).insert(page, Arc::new(stored))
    }

    pub(super) fn forget(&self, page: u64) -> Option<Arc<Stored>> {
        lock(&self.pages).remove(&page)
    }

    /// Returns the buffer of a page, unless another session shares the page.
    pub(super) fn alone(page: Arc<Stored>) -> Option<Box<[u8]>> {
        Arc::into_inner(page).map(|page| page.bytes)
    }
}

impl Drop for SessionPages<'_> {
    fn drop(&mut self) {
        lock(&self.directory.0).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Stored {
        Stored { bytes: vec![byte; 8].into(), digest: Digest::default() }
    }

    fn byte(session_pages: &SessionPages<'_>, number: u64) -> Option<u8> {
        session_pages.get(number).map(|page| page.bytes[0])
    }

    #[test]
    fn a_copied_session_has_the_pages_and_sees_no_later_writes() {
        let directory = SessionDirectory::default();
        let parent = directory.open(0).unwrap();
        parent.put(1, page(10));
        parent.put(2, page(20));
        let child = directory.open(parent.name()).unwrap();
        assert_ne!(child.name(), parent.name());
        let old = parent.put(1, page(11)).unwrap();
        assert_eq!(SessionPages::alone(old), None, "the child has it, too");
        child.put(2, page(22));
        child.put(3, page(33));
        parent.forget(2);
        assert_eq!([1, 2, 3].map(|n| byte(&parent, n)), [Some(11), None, None]);
        assert_eq!([1, 2, 3].map(|n| byte(&child, n)), [Some(10), Some(22), Some(33)]);
        let name = parent.name();
        drop(parent);
        assert!(matches!(directory.open(name), Err(OpenError::Unknown)));
        assert_eq!(byte(&child, 1), Some(10));
        drop(child);
        assert!(lock(&directory.0).is_empty());
    }
}
