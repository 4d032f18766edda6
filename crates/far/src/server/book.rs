//! The pages of one session, and the shelf where another may find them to begin with.
//!
//! A child process made by `fork` begins with its parent's pages. Its session gets a copy of the parent's
//! *book*, in which both have the same pages; a page is never changed, only another put in its place, so
//! neither sees what the other writes. What that costs is the copy of the book, a few tens of bytes for each
//! page.
//!
//! - **BOOK-1** A session's book is changed by that session's thread only; others read it, under its lock.
//! - **BOOK-2** A book is found by a name of 128 random bits that its session alone was told, so no client
//!   can name another's (F6).

use crate::digest::Digest;
use crate::wire::auth::nonce;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A page as it came.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) bytes: Box<[u8]>,
    pub(super) digest: Digest,
}

type Pages = HashMap<u64, Arc<Stored>>;

/// All books that are open, by name.
#[derive(Debug, Default)]
pub(super) struct Shelf(Mutex<HashMap<u128, Weak<Mutex<Pages>>>>);

/// See the [module](self). Leaves the shelf when dropped.
#[derive(Debug)]
pub(super) struct Book<'a> {
    shelf: &'a Shelf,
    name: u128,
    pages: Arc<Mutex<Pages>>,
}

/// Why there is no book.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("no such session to begin with")]
    Unknown,
    #[error("no random numbers: {0}")]
    Random(#[from] io::Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    /// A new book, with the pages of that one; empty if it is 0.
    pub(super) fn open(&self, like: u128) -> Result<Book<'_>, OpenError> {
        let pages = if like == 0 {
            Pages::new()
        } else {
            let other = lock(&self.0).get(&like).and_then(Weak::upgrade).ok_or(OpenError::Unknown)?;
            lock(&other).clone()
        };
        let name = u128::from_le_bytes(nonce()?) | 1; // never 0
        let pages = Arc::new(Mutex::new(pages));
        lock(&self.0).insert(name, Arc::downgrade(&pages));
        Ok(Book { shelf: self, name, pages })
    }
}

impl Book<'_> {
    pub(super) fn name(&self) -> u128 {
        self.name
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.pages).len()
    }

    /// Of any page, if there is one: all of a session have the same length.
    pub(super) fn bytes_of_a_page(&self) -> Option<usize> {
        lock(&self.pages).values().next().map(|page| page.bytes.len())
    }

    pub(super) fn has(&self, page: u64) -> bool {
        lock(&self.pages).contains_key(&page)
    }

    pub(super) fn get(&self, page: u64) -> Option<Arc<Stored>> {
        lock(&self.pages).get(&page).cloned()
    }

    /// Returns what was in its place.
    pub(super) fn put(&self, page: u64, stored: Stored) -> Option<Arc<Stored>> {
        lock(&self.pages).insert(page, Arc::new(stored))
    }

    pub(super) fn forget(&self, page: u64) -> Option<Arc<Stored>> {
        lock(&self.pages).remove(&page)
    }

    /// A page's memory, if no other book has the page.
    pub(super) fn alone(page: Arc<Stored>) -> Option<Box<[u8]>> {
        Arc::into_inner(page).map(|page| page.bytes)
    }
}

impl Drop for Book<'_> {
    fn drop(&mut self) {
        lock(&self.shelf.0).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Stored {
        Stored { bytes: vec![byte; 8].into(), digest: Digest::default() }
    }

    fn byte(book: &Book<'_>, number: u64) -> Option<u8> {
        book.get(number).map(|page| page.bytes[0])
    }

    #[test]
    fn a_book_begins_with_anothers_pages_and_neither_sees_what_the_other_writes() {
        let shelf = Shelf::default();
        let parent = shelf.open(0).unwrap();
        parent.put(1, page(10));
        parent.put(2, page(20));
        let child = shelf.open(parent.name()).unwrap();
        assert_ne!(child.name(), parent.name());
        let old = parent.put(1, page(11)).unwrap();
        assert_eq!(Book::alone(old), None, "the child has it, too");
        child.put(2, page(22));
        child.put(3, page(33));
        parent.forget(2);
        assert_eq!([1, 2, 3].map(|n| byte(&parent, n)), [Some(11), None, None]);
        assert_eq!([1, 2, 3].map(|n| byte(&child, n)), [Some(10), Some(22), Some(33)]);
        let name = parent.name();
        drop(parent);
        assert!(matches!(shelf.open(name), Err(OpenError::Unknown)));
        assert_eq!(byte(&child, 1), Some(10));
        drop(child);
        assert!(lock(&shelf.0).is_empty());
    }
}
