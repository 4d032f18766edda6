//! Prefetch: announces the pages of keys that a program will use soon, so that the device reads many of them
//! at once. Without it, each row of a transaction waits for the read of its own leaf.

use azekura_base::PageId;
use azekura_btree::{Env, Tree};

use crate::key::{EncodeKey, Key};
use crate::locking::ScanLocks;
use crate::value::Value;
use crate::{Error, Table};

/// Largest number of pages that one call announces: 2 MiB at 8 KiB per page, as for scans.
const MOST_PAGES: usize = azekura_buffer::MOST_ANNOUNCED;
/// Number of absent pages after which a call ends if the system's page cache has all of them.
const PROBED_PAGES: usize = 8;

/// Announces the absent pages of `keys` to the page store. Returns their number; a page of keys that do not
/// follow each other may count twice. Does nothing if this thread has not read pages in lately.
pub(crate) fn prefetch<'q, K: Key + EncodeKey<Q> + ?Sized, Q: ?Sized + 'q>(
    env: &Env,
    tree: Tree,
    keys: impl IntoIterator<Item = &'q Q>,
) -> usize {
    let pool = env.pool();
    if !pool.should_prefetch() {
        return 0;
    }
    let (mut absent, mut bytes): (Vec<PageId>, _) = (Vec::new(), Vec::new());
    for key in keys {
        bytes.clear();
        K::encode(key, &mut bytes);
        let page = tree.absent_page(env, &bytes).filter(|page| absent.last() != Some(page));
        let Some(page) = page else { continue };
        absent.push(page);
        if absent.len() == PROBED_PAGES && pool.are_cached(&absent) {
            absent.clear();
            break;
        }
        if absent.len() == MOST_PAGES {
            break;
        }
    }
    let count = absent.len();
    pool.prefetch(absent);
    count
}

impl<K: Key + ?Sized, V: Value + ?Sized> Table<'_, K, V> {
    /// Announces that the rows at `keys` will be read or changed soon, so that the device reads their pages
    /// at the same time. Worth a call if a transaction uses several known keys of a table that is larger than
    /// the memory. Returns the number of announced pages.
    ///
    /// This is a hint: it locks no row, does not wait for the device, and changes no result. One call
    /// announces at most 256 pages, so call it for each part of a longer list. It does nothing if the rows
    /// are in the page cache or in the system's, if this thread's latest reads found their rows there, and
    /// with [`direct_pages`](crate::Builder::direct_pages).
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const STOCK: TableDefinition<u64, u32> = TableDefinition::new("stock");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let rows = [(7_u64, 3_u32), (1_000_000, 4), (5_000, 1)];
    /// db.transact(|tx| {
    ///     let stock = tx.table(&STOCK)?;
    ///     stock.prefetch(rows.iter().map(|(key, _)| key))?;
    ///     rows.iter().try_for_each(|(key, count)| stock.insert(key, count))
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get), when the table is looked up.
    pub fn prefetch<'q, Q: ?Sized + 'q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> Result<usize, Error>
    where
        K: EncodeKey<Q>,
    {
        let tree = self.tx.resolve_to_scan(&self.tree, ScanLocks::default())?;
        Ok(tree.map_or(0, |tree| prefetch::<K, Q>(self.tx.env(), tree, keys)))
    }
}
