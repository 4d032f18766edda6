//! Loads rows in any order: sorts them in bounded memory and in files (`azekura::RowSorter`), then loads them
//! in the order of their keys.
//!
//! An empty table is bulk loaded. If the table has rows, or the store has a log archive, transactions of
//! neighboring rows insert them, so that each page is changed once. A row that is malformed, or that the
//! store rejects, ends the input; the rows before it are loaded.

use anyhow::{Result, anyhow};
use azekura::{ErrorKind, RowSorter, SortedRows};

use super::{BYTES_PER_COMMIT, Loading, NumberedRow, ROWS_PER_COMMIT};
use crate::format::Row;
use crate::show;

impl Loading<'_> {
    /// Loads the rows read so far and all remaining rows.
    pub(super) fn load_unsorted(&mut self) -> Result<()> {
        let mut sorter = self.db.row_sorter(self.sort_memory);
        let input = self.sort_into(&mut sorter)?;
        let pushed = sorter.pushed();
        let sorted = sorter.into_sorted()?;
        let before = self.loaded;
        self.bar.set_position(self.rows.bytes());
        let distinct = if self.takes_bulk()? { self.fill(sorted)? } else { self.insert_sorted(sorted)? };
        self.replaced += pushed - distinct;
        self.loaded = before + pushed; // Rows of the input, including rows that later rows replaced.
        input
    }

    /// Reads rows until the input ends; an inner `Err` has the malformed or rejected row that ended it.
    fn sort_into(&mut self, sorter: &mut RowSorter) -> Result<Result<()>> {
        let mut row = Row::default();
        loop {
            let line = if let Some(read) = self.read.pop_front() {
                row = read.row;
                read.line
            } else {
                match self.rows.read_row(&mut row) {
                    Ok(true) => self.rows.line(),
                    Ok(false) => return Ok(Ok(())),
                    Err(error) => return Ok(Err(error.into())),
                }
            };
            match sorter.push(&row.key, &row.value) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    return Ok(Err(anyhow!("line {line}: {error}")));
                }
                Err(error) => return Err(error.into()),
            }
            if sorter.pushed().is_multiple_of(ROWS_PER_COMMIT as u64) {
                self.bar.set_position(self.rows.bytes());
                self.bar.set_message(format!("{} rows/s sorted", self.rate(sorter.pushed())));
            }
        }
    }

    /// Fills the table, which is empty, in one transaction. Returns the number of rows.
    fn fill(&mut self, sorted: SortedRows) -> Result<u64> {
        let tx = self.db.begin()?;
        let mut given = 0;
        tx.table(&self.table)?.try_bulk_load(sorted.inspect(|_| {
            given += 1;
            self.show_loaded(given);
        }))?;
        tx.commit()?;
        Ok(given)
    }

    /// Inserts the rows, replacing rows with the same keys. Returns the number of inserted rows.
    fn insert_sorted(&mut self, sorted: SortedRows) -> Result<u64> {
        let mut batch = Vec::with_capacity(ROWS_PER_COMMIT);
        let (mut given, mut bytes) = (0, 0);
        for row in sorted {
            let (key, value) = row?;
            bytes += key.len() + value.len();
            batch.push(NumberedRow { line: 0, row: Row { key, value } });
            given += 1;
            if batch.len() == ROWS_PER_COMMIT || bytes >= BYTES_PER_COMMIT {
                self.insert(&batch)?.map_err(|(_, error)| error)?;
                batch.clear();
                bytes = 0;
                self.show_loaded(given);
            }
        }
        self.insert(&batch)?.map_err(|(_, error)| error)?;
        self.wait_for_last()?;
        Ok(given)
    }

    fn show_loaded(&self, rows: u64) {
        if rows.is_multiple_of(ROWS_PER_COMMIT as u64) {
            self.bar.set_message(format!("{} rows loaded, {} rows/s", show::count(rows), self.rate(rows)));
        }
    }

    fn rate(&self, rows: u64) -> String {
        show::rate(rows, self.started.elapsed())
    }
}
