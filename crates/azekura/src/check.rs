//! The check of a store: reads every page and tests the invariants.

use std::fmt;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_btree::{Held, Report};
use azekura_buffer::PageFile;
use azekura_io::OpenOptions;
use serde::Serialize;

use crate::catalog::CATALOG;
use crate::database::{Database, Shared};
use crate::interrupt::check_interrupt;
use crate::{Error, Transaction, catalog};

/// One finding of damage.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Number of the damaged page.
    pub page: u64,
    /// Description of the damage.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}: {}", self.page, self.what)
    }
}

/// Counts of one table.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// Name of the table.
    pub name: String,
    /// Number of rows.
    pub rows: u64,
    /// Number of levels of the tree; 1 if its root is a leaf.
    pub height: u32,
    /// Number of inner pages.
    pub inner_pages: u64,
    /// Number of leaf pages.
    pub leaf_pages: u64,
    /// Number of overflow pages, which hold large values.
    pub overflow_pages: u64,
    /// Bytes in the leaves that rows use.
    pub leaf_bytes_used: u64,
}

/// Result of a check, returned by [`Database::check`].
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Number of pages visited.
    pub pages: u64,
    /// One report for each table, in order of names.
    pub tables: Vec<TableReport>,
    /// Number of leaked pages that [`Database::repair`] has freed. A leaked page is marked as used, but
    /// nothing refers to it.
    pub freed_pages: u64,
    /// All damage; empty for a valid store.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Returns `true` if no damage was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The treatment of leaked pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaks {
    Report,
    /// Frees leaked pages unless there is other damage, because pages below a damaged page look leaked.
    Free,
}

/// Number of attempts, 1 ms apart, to find a moment at which no transaction is between its commit and the
/// freeing of its pages.
const GATE_ATTEMPTS: usize = 100;

/// Time between two calls of the function of [`Builder::interrupt`](crate::Builder::interrupt) during the
/// pass without writers.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

/// Number of passes concurrent with writers, before a pass without writers decides.
const SHARED_PASSES: usize = 2;

/// Checks the store, by two kinds of passes.
///
/// A pass concurrent with writers takes no locks. It finds all damage. But a transaction that drops or
/// restores a large value or a table during the pass may look like damage (CHECK-3 of
/// `azekura_btree::verify`). So the findings of this pass count only if nothing was changed meanwhile.
/// Otherwise a pass with shared locks on all tables decides, and frees leaked pages. A valid store rarely
/// needs that pass.
pub(crate) fn check(
    db: &Database,
    leaks: Leaks,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, Error> {
    check_lsn_map(db.shared())?;
    for _ in 0..SHARED_PASSES {
        let using = db.owners().enter()?;
        let interrupt = using.options.interrupt.as_ref();
        let interrupt = interrupt.map(|is_interrupted| is_interrupted as &dyn Fn() -> bool);
        let pass = Pass::run(&using, || held_pages(&using), interrupt, progress)?;
        if pass.is_clean() || leaks == Leaks::Report && !pass.report.is_changed {
            return Ok(pass.into_report(0));
        }
    }
    // Shared locks on all tables exclude writers until the end of this transaction. The gate excludes
    // transactions that have committed and are still freeing pages.
    let (shared, tx) = (db.shared(), db.lock_all_tables()?);
    match shared.options.interrupt {
        None => last_pass(shared, tx, leaks, None, progress),
        Some(is_interrupted) => last_pass_apart(shared, tx, leaks, is_interrupted, progress),
    }
}

/// Runs the last pass in a thread of its own, which also ends `tx`. Meanwhile, this thread calls
/// `is_interrupted`. If that function waits for a lock of `tx`, the wait ends with the pass.
fn last_pass_apart(
    shared: &Shared,
    tx: Transaction,
    leaks: Leaks,
    is_interrupted: fn() -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, Error> {
    check_interrupt(Some(is_interrupted))?;
    tx.detach_from_thread()?;
    let (stops, seen) = (AtomicBool::new(false), Mutex::new((0, 0)));
    thread::scope(|scope| {
        let pass = || {
            let interrupt = || stops.load(Relaxed); // Relaxed: a flag without other data
            last_pass(shared, tx, leaks, Some(&interrupt), &mut |done, all| *seen.lock() = (done, all))
        };
        let pass = thread::Builder::new().spawn_scoped(scope, pass);
        let pass = pass.map_err(|e| Error::io("start a thread for the check of", &shared.path, e))?;
        let mut shown = (0, 0);
        while !pass.is_finished() {
            thread::sleep(INTERRUPT_INTERVAL);
            let now = *seen.lock();
            if now != shown {
                shown = now;
                progress(now.0, now.1);
            }
            if is_interrupted() {
                stops.store(true, Relaxed); // Relaxed: as above
            }
        }
        pass.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs the pass without writers, and ends `tx`, which has locked all tables.
fn last_pass(
    shared: &Shared,
    tx: Transaction,
    leaks: Leaks,
    interrupt: Option<&dyn Fn() -> bool>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, Error> {
    let _no_leftovers = shared.leftovers_gate.write();
    let pass = Pass::run(shared, Vec::new, interrupt, progress)?;
    let frees = leaks == Leaks::Free && pass.findings.is_empty();
    let freed_pages = if frees { pass.report.leaked.len() as u64 } else { 0 };
    if frees {
        azekura_btree::free_leaked(&shared.env, shared.wal.log_buffer(), &pass.report.leaked)?;
    }
    tx.commit()?;
    Ok(pass.into_report(freed_pages))
}

/// Returns an error if the LSN map exists and cannot be opened. Reads ignore such a map, but each checkpoint
/// fails.
fn check_lsn_map(shared: &Shared) -> Result<(), Error> {
    let path = shared.path.join(PageFile::LSN_MAP_NAME);
    match shared.options.fs.open(&path, OpenOptions::new().read_only(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop).map_err(|e| Error::io("open", &path, e)),
    }
}

/// Result of one pass over the store.
struct Pass {
    names: Vec<String>,
    findings: Vec<Finding>,
    report: Report,
}

impl Pass {
    fn run(
        shared: &Shared,
        held: impl FnOnce() -> Vec<Held>,
        interrupt: Option<&dyn Fn() -> bool>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let (mut names, mut findings) = (Vec::new(), Vec::new());
        let start = || -> Result<_, Error> {
            // The pending pages are read before the catalog, so a table that is dropped meanwhile is in at
            // most one of the two lists.
            let pending = shared.unfreed_pages();
            let mut trees = vec![CATALOG];
            crate::scan::unlocked(&shared.env, CATALOG, &mut |name, value| {
                match catalog::decode(value) {
                    Some(entry) => {
                        names.push(String::from_utf8_lossy(name).into_owned());
                        trees.push(entry.tree);
                    }
                    None => findings.push(Finding {
                        page: CATALOG.root.0,
                        what: format!(
                            "the row of table {:?} does not describe a table",
                            String::from_utf8_lossy(name)
                        ),
                    }),
                }
                Ok(())
            })?;
            Ok((trees, pending))
        };
        let report = azekura_btree::verify_beside_writers(&shared.env, start, held, interrupt, progress)?;
        let found = report.findings.iter().map(|f| Finding { page: f.page_id.0, what: f.what.clone() });
        findings.extend(found);
        Ok(Self { names, findings, report })
    }

    fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.report.leaked.is_empty()
    }

    fn into_report(self, freed_pages: u64) -> CheckReport {
        let Self { names, mut findings, report } = self;
        if freed_pages == 0 {
            let what = "leaked: marked as used, but nothing refers to it";
            findings.extend(report.leaked.iter().map(|page| Finding { page: page.0, what: what.into() }));
        }
        let tables = names
            .into_iter()
            .zip(report.trees.into_iter().skip(1))
            .filter(|(_, tree)| !tree.is_freed)
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
        CheckReport { pages: report.pages, tables, freed_pages, findings }
    }
}

/// Returns the pages outside of trees that transactions hold.
fn held_pages(shared: &Shared) -> Vec<Held> {
    // The gate excludes transactions that have committed, but have not yet freed their pages or added them to
    // a list. A transaction that frees many pages may hold the gate for long. In that case this pass runs
    // without the gate, so that commits do not wait, and another pass decides.
    let mut gate = None;
    for _ in 0..GATE_ATTEMPTS {
        gate = shared.leftovers_gate.try_write();
        if gate.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let mut held = Vec::new();
    shared.active.undo_logs().iter().for_each(|undo| held.extend(undo.lock().log.held()));
    held.extend(shared.unfreed_pages().into_iter().map(Held::Deferred));
    drop(gate);
    held
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use azekura_base::{TreeId, TxnId};
    use azekura_btree::{NoLocks, Tree, UndoLog, WriteCtx};

    use super::*;
    use crate::TableDefinition;

    const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");

    /// Allocates a page and discards the undo entry for it.
    fn leak_page(db: &Database) {
        let shared = db.shared();
        let (txn, log_buffer, undo) = (TxnId(1 << 40), shared.wal.log_buffer(), &mut UndoLog::new());
        let ctx = &mut WriteCtx { txn, log_buffer, undo, locks: &mut NoLocks };
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

    thread_local! {
        /// Number of calls of `is_interrupted` until it returns `true`.
        static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    fn is_interrupted() -> bool {
        LEFT.set(LEFT.get().saturating_sub(1));
        LEFT.get() == 0
    }

    #[test]
    fn the_pass_without_writers_can_be_interrupted() {
        let db = Database::builder().interrupt(is_interrupted).open_in_memory().expect("opens");
        let rows = |tx: &Transaction| tx.table(&ROWS)?.bulk_load((0..3_000).map(|n| (n, [n as u8; 999])));
        db.transact(rows).expect("loads");
        leak_page(&db);
        LEFT.set(u32::MAX);
        assert!(!db.check(&mut |_, _| {}).expect("checks").is_clean());
        let calls = u32::MAX - LEFT.get(); // of one pass
        assert!(calls > 0);
        LEFT.set(2 * calls + 1);
        let interrupted = db.repair(&mut |_, _| {});
        assert!(matches!(interrupted, Err(Error::Interrupted)), "{interrupted:?}");
        LEFT.set(u32::MAX);
        db.transact(|tx| tx.table(&ROWS)?.insert(&5_000_u32, &[1_u8; 9][..])).expect("no lock is left");
        let repaired = db.repair(&mut |_, _| {}).expect("repairs");
        assert!(repaired.is_clean() && repaired.freed_pages == 1, "{repaired:?}");
    }
}
