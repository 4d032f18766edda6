//! Walking everything: what must hold in a sound store, looked up page by page.

use std::fmt;

use serde::Serialize;

use crate::catalog::CATALOG;
use crate::database::Database;
use crate::{Error, catalog};

/// Something that is not as it must be.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The page where it is.
    pub page: u64,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}: {}", self.page, self.what)
    }
}

/// What is in one table.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Levels of its tree; 1 for a lone leaf.
    pub height: u32,
    /// Pages above the leaves.
    pub inner_pages: u64,
    /// Leaf pages.
    pub leaf_pages: u64,
    /// Pages of large values.
    pub overflow_pages: u64,
    /// Bytes of the leaves that rows use.
    pub leaf_bytes_used: u64,
}

/// What a check found; made by [`Database::check`].
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Pages visited.
    pub pages: u64,
    /// One for each table, in order of names.
    pub tables: Vec<TableReport>,
    /// Pages that were leaked (marked as used, but nothing referred to them) and that
    /// [`Database::repair`] has freed.
    pub freed_pages: u64,
    /// What is wrong; empty for a sound store.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The treatment of leaked pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaks {
    Report,
    /// Unless anything else is wrong: what hangs below a damaged page looks leaked.
    Free,
}

pub(crate) fn check(
    db: &Database,
    leaks: Leaks,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, Error> {
    // Shared locks on all tables keep writers out, to the end of this transaction; the gate keeps out those
    // that have committed and still free pages.
    let tx = db.lock_all_tables()?;
    let shared = db.shared();
    let _no_leftovers = shared.leftovers_gate.write();
    let mut names = Vec::new();
    let mut trees = vec![CATALOG];
    let mut findings = Vec::new();
    crate::scan::unlocked(&shared.env, CATALOG, &mut |name, value| {
        match catalog::decode(value) {
            Some(entry) => {
                names.push(String::from_utf8_lossy(name).into_owned());
                trees.push(entry.tree);
            }
            None => findings.push(Finding {
                page: CATALOG.root.0,
                what: format!("the row of table {:?} is not that of a table", String::from_utf8_lossy(name)),
            }),
        }
        Ok(())
    })?;
    let report = azekura_btree::verify(&shared.env, &trees, &shared.unfreed_pages(), progress)?;
    findings.extend(report.findings.into_iter().map(|f| Finding { page: f.page_id.0, what: f.what }));
    let frees = leaks == Leaks::Free && findings.is_empty();
    if frees {
        azekura_btree::free_leaked(&shared.env, shared.wal.worker(), &report.leaked)?;
    } else {
        let what = "leaked: marked as used, but nothing refers to it";
        findings.extend(report.leaked.iter().map(|page| Finding { page: page.0, what: what.into() }));
    }
    let freed_pages = if frees { report.leaked.len() as u64 } else { 0 };
    let tables = names
        .into_iter()
        .zip(report.trees.into_iter().skip(1))
        .map(|(name, tree)| TableReport {
            name,
            rows: tree.records,
            height: tree.height,
            inner_pages: tree.inner_pages,
            leaf_pages: tree.leaf_pages,
            overflow_pages: tree.overflow_pages,
            leaf_bytes_used: tree.leaf_bytes_used,
        })
        .collect();
    tx.commit()?;
    Ok(CheckReport { pages: report.pages, tables, freed_pages, findings })
}

#[cfg(test)]
mod tests {
    use azekura_base::{TreeId, TxnId};
    use azekura_btree::{NoLocks, Tree, UndoLog, WriteCtx};

    use super::*;
    use crate::TableDefinition;

    const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");

    /// Takes a page and loses the undo entry of that.
    fn leak_page(db: &Database) {
        let shared = db.shared();
        let (txn, worker, undo) = (TxnId(1 << 40), shared.wal.worker(), &mut UndoLog::new());
        let ctx = &mut WriteCtx { txn, worker, undo, locks: &mut NoLocks };
        Tree::create(&shared.env, ctx, TreeId(77)).expect("creates");
    }

    #[test]
    fn a_repair_frees_leaked_pages_and_nothing_else() {
        let db = Database::in_memory().expect("opens");
        let rows = |tx: &crate::Transaction| tx.table(&ROWS)?.bulk_load((0..99).map(|n| (n, [n as u8; 999])));
        db.transact(rows).expect("loads");
        let before = db.check(&mut |_, _| {}).expect("checks");
        (0..5).for_each(|_| leak_page(&db));
        let leaking = db.check(&mut |_, _| {}).expect("checks");
        assert!(!leaking.is_clean() && leaking.findings.len() == 5 && leaking.freed_pages == 0);
        let repaired = db.repair(&mut |_, _| {}).expect("repairs");
        assert!(repaired.is_clean() && repaired.freed_pages == 5, "{repaired:?}");
        let after = db.repair(&mut |_, _| {}).expect("repairs");
        assert!(after.is_clean() && after.freed_pages == 0 && after.pages == before.pages, "{after:?}");
        assert_eq!(after.tables[0].rows, 99);
    }
}
