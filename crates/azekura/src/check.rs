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

pub(crate) fn check(db: &Database, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
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
            Some(tree) => {
                names.push(String::from_utf8_lossy(name).into_owned());
                trees.push(tree);
            }
            None => findings.push(Finding {
                page: CATALOG.root.0,
                what: format!("the row of table {:?} is no tree", String::from_utf8_lossy(name)),
            }),
        }
        Ok(())
    })?;
    let report = azekura_btree::verify(&shared.env, &trees, &shared.unfreed_pages(), progress)?;
    findings.extend(report.findings.into_iter().map(|f| Finding { page: f.page_id.0, what: f.what }));
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
    Ok(CheckReport { pages: report.pages, tables, findings })
}
