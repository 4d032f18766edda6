//! `load`: loads rows from a file into a table.
//!
//! Rows are stored as upserts, in transactions of up to 10,000 rows. So an interrupted load is resumed by
//! running it again. A transaction is durable or absent; the next one is read while the previous one is being
//! flushed.
//!
//! If the table is empty and there are more rows than one transaction holds, the rows are bulk loaded as long
//! as they are in key order (`sorted`). This is one transaction, which an interruption undoes completely.
//! Rows in any other order are sorted first (`unsorted`). With `--no-replace` they are not sorted: the sort
//! keeps only the last of the rows with one key. With a log archive there is no bulk load: it would log each
//! row, and keep the undo entries of all rows in memory until its end.

mod sorted;
mod unsorted;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use azekura::{CommitTicket, Database, Error, ErrorKind};
use clap::Args;
use indicatif::ProgressBar;

use crate::arguments::{StoreArguments, TableArguments, cache_bytes};
use crate::format::escape::escaped;
use crate::format::row_types::{Checked, RowTypes};
use crate::format::{self, Format, ReadOptions, ReadRows, Row};
use crate::store::{Bytes, row_types};
use crate::{Outcome, UsageError, progress, show, stdin};

use sorted::Sorted;

const EXAMPLES: &str = "\
Examples:
  azekura load my.db words words.tsv
  azekura load my.db people people.csv --key email
  zcat events.jsonl.gz | azekura load my.db events --format jsonl --key id
  azekura load copy.db words words.tsv --types str u64

Formats:
  tsv    The first column is the key, the rest of the line the value.
         \\t \\n \\r \\\\ stand for tab, newline, carriage return, backslash
         and \\xHH for any byte, as `dump` writes them. Any other backslash
         is refused, unless --raw takes backslashes literally.
  csv    With a header line. --key names the key field or gives its number,
         from 1; default: 1. The value is the record as a JSON object.
         --delimiter ';' or --delimiter tab sets the field separator.
  jsonl  One JSON object per line. --key names the key field, text or number;
         the value is the unchanged line.

Rows in key order are bulk loaded into an empty table. Rows in another order
are sorted first, with --sort-memory and files in the store's directory. With
--archive there is no bulk load: transactions of 10,000 rows insert the rows.

A row replaces a row with the same key, so an interrupted load is resumed by
running it again; the number of replaced rows is printed. --no-replace stops
at the first such row, and inserts rows that are not in key order one by one
instead of sorting them. The first malformed row stops the load (exit code 1,
with file and line); the rows before it stay loaded. The table is also created
if the input has no rows.";

/// Largest number of rows of one transaction, and number of bytes after which it ends earlier.
const ROWS_PER_COMMIT: usize = 10_000;
const BYTES_PER_COMMIT: usize = 16 << 20;

/// Load rows from a file or stdin into a table
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Load {
    #[command(flatten)]
    table: TableArguments,

    /// File to load; stdin if omitted or `-`
    file: Option<PathBuf>,

    /// Format of the rows [default: by the file name's extension, else tsv]
    #[arg(long)]
    format: Option<Format>,

    /// Key field (csv: name, or number from 1; jsonl: name)
    #[arg(long, value_name = "FIELD")]
    key: Option<String>,

    /// tsv only: backslashes, and carriage returns at the ends of lines, are literal
    #[arg(long)]
    raw: bool,

    /// Memory for sorting rows that are not in key order, such as 64M or 2G
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes, default_value = "64M")]
    sort_memory: usize,

    /// csv only: field separator, one ASCII character or `tab` [default: a comma]
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,

    /// Types of keys and values, by the names that `azekura tables` prints; keys and values are encodings of
    /// them, as in a dump [default: those of the table; a new table has bytes]
    #[arg(long, num_args = 2, value_names = ["KEY", "VALUE"], value_parser = type_name)]
    types: Option<Vec<String>>,

    /// Stop at the first row with a key that is already in the table
    #[arg(long)]
    no_replace: bool,
}

/// Parses the byte between fields.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r' | 0) => Ok(*byte),
        _ => Err("one ASCII character that is no quote and no line end, or `tab`".into()),
    }
}

/// Parses the name of a type. Programs define types with any names; names that no table can have are refused.
fn type_name(text: &str) -> Result<String, String> {
    let name_of = |stored: &str| Err(format!("a table has the name `{stored}` for this type"));
    match text {
        "String" | "&str" => name_of("str"),
        "Vec<u8>" | "[u8]" | "&[u8]" => name_of("bytes"),
        _ if text.is_empty() || text.contains(char::is_control) => {
            Err("write the name of a type, as `azekura tables` prints it".into())
        }
        _ => Ok(text.into()),
    }
}

impl Load {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let format = self.format();
        self.refuse_options_of_other_formats(format)?;
        let input = self.open_input()?;
        let options = ReadOptions { key_field: self.key.clone(), raw: self.raw, delimiter: self.delimiter };
        let rows = format::open(format, input.source, &options)
            .map_err(|error| anyhow!(error).context(input.name.clone()))?;
        let db = store.open_or_create(&self.table.path)?;
        let name = &self.table.table;
        let (table, types) = match self.types.as_deref() {
            Some([key, value]) => (Bytes::encoded(name, key, value), RowTypes::new(key, value)),
            _ => (Bytes::raw(name), row_types(&db, name)?),
        };
        let rows = Box::new(Checked::new(rows, types));
        let mut loading = Loading::new(&db, table, rows, progress::bytes(input.len));
        loading.sort_memory = self.sort_memory;
        loading.is_new_only = self.no_replace;
        loading.is_archived = store.archive.is_some();
        let ended = loading.run().and_then(|()| loading.create_table());
        let summary = loading.end();
        if let Err(error) = ended {
            let loaded = show::count(summary.rows);
            return Err(anyhow!("{}, {error:#}; rows loaded before that: {loaded}", input.name));
        }
        db.close()?;
        writeln!(out, "loaded {summary}")?;
        Ok(Outcome::Well)
    }

    /// Returns the file to read, unless it is stdin.
    fn path(&self) -> Option<&PathBuf> {
        self.file.as_ref().filter(|path| path.as_os_str() != "-")
    }

    fn format(&self) -> Format {
        let extension = || self.path()?.extension()?.to_str();
        self.format.or_else(|| Format::of_extension(extension()?)).unwrap_or(Format::Tsv)
    }

    fn refuse_options_of_other_formats(&self, format: Format) -> Result<(), UsageError> {
        let refuse = |what: &str| Err(UsageError(format!("{what}; see `azekura load --help`")));
        match format {
            Format::Jsonl if self.key.is_none() => {
                refuse("jsonl needs --key FIELD, the name of the key field")
            }
            Format::Tsv if self.key.is_some() => {
                refuse("--key is for csv and jsonl; the key of tsv is the first column")
            }
            Format::Csv | Format::Jsonl if self.raw => refuse("--raw is for tsv"),
            Format::Tsv | Format::Jsonl if self.delimiter.is_some() => refuse("--delimiter is for csv"),
            _ => Ok(()),
        }
    }

    fn open_input(&self) -> Result<Input> {
        let Some(path) = self.path() else {
            return Ok(Input { name: "stdin".into(), len: None, source: Box::new(stdin()?) });
        };
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let metadata = file.metadata().with_context(|| format!("cannot read {name}"))?;
        let len = metadata.is_file().then_some(metadata.len());
        let mut source = BufReader::with_capacity(1 << 20, file);
        // An error of reading is reported with the first row.
        if len.is_some() && !self.raw && source.fill_buf().is_ok_and(is_compressed) {
            bail!("{name} is compressed; pass its text by a pipe, as in `zcat FILE | azekura load DB TABLE`");
        }
        Ok(Input { name, len, source: Box::new(source) })
    }
}

/// Returns `true` for the first bytes of a compressed file. Parts of such a file could pass for rows.
fn is_compressed(start: &[u8]) -> bool {
    const GZIP: &[u8] = b"\x1f\x8b";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
    const XZ: &[u8] = b"\xfd7zXZ\0";
    [GZIP, ZSTD, XZ].iter().any(|magic| start.starts_with(magic))
}

/// The source of rows.
struct Input {
    name: String,
    len: Option<u64>,
    source: Box<dyn BufRead>,
}

/// A row and the line on which it began.
struct NumberedRow {
    line: u64,
    row: Row,
}

/// A running load.
struct Loading<'a> {
    db: &'a Database,
    table: Bytes,
    rows: Box<dyn ReadRows + 'a>,
    bar: ProgressBar,
    started: Instant,
    loaded: u64,
    sort_memory: usize,
    /// Number of rows that replaced a row with the same key.
    replaced: u64,
    /// `true` if a row with an existing key ends the load.
    is_new_only: bool,
    /// `true` if the store has a log archive.
    is_archived: bool,
    /// Rows that were read and not yet loaded.
    read: VecDeque<NumberedRow>,
    /// The previous transaction, which may not be durable yet, with its number of rows and of replaced rows.
    last: Option<(CommitTicket, u64, u64)>,
}

impl<'a> Loading<'a> {
    fn new(db: &'a Database, table: Bytes, rows: Box<dyn ReadRows + 'a>, bar: ProgressBar) -> Self {
        Self {
            db,
            table,
            rows,
            bar,
            started: Instant::now(),
            loaded: 0,
            replaced: 0,
            sort_memory: 0,
            is_new_only: false,
            is_archived: false,
            read: VecDeque::new(),
            last: None,
        }
    }

    /// Loads all rows. After an error the rows before it stay, durably, and `loaded` counts them.
    fn run(&mut self) -> Result<()> {
        let mut next = self.read_batch();
        // A bulk load or a sort is not worthwhile for less than a batch of rows.
        if matches!(next.1, Ok(false)) {
            let (ascends, takes_bulk) = (sorted::ascends(&next.0), self.takes_bulk()?);
            if takes_bulk || !ascends {
                self.read = next.0.into();
                if ascends && !self.bulk_load()? {
                    return Ok(());
                }
                if !self.is_new_only {
                    return self.load_unsorted();
                }
                next = self.read_batch();
            }
        }
        loop {
            let (batch, end) = next;
            let committed = self.commit(&batch);
            match (committed, end) {
                (Ok(()), Ok(false)) => self.show(),
                (committed, end) => {
                    self.wait_for_last()?;
                    return committed.and(end.map(drop));
                }
            }
            next = self.read_batch();
        }
    }

    /// Returns the next rows, and whether they are the last ones, or the error after them.
    fn read_batch(&mut self) -> (Vec<NumberedRow>, Result<bool>) {
        let mut batch = Vec::from(std::mem::take(&mut self.read));
        let mut bytes = batch.iter().map(|read| read.row.key.len() + read.row.value.len()).sum::<usize>();
        while batch.len() < ROWS_PER_COMMIT && bytes < BYTES_PER_COMMIT {
            let mut row = Row::default();
            match self.rows.read_row(&mut row) {
                Ok(true) => {
                    bytes += row.key.len() + row.value.len();
                    batch.push(NumberedRow { line: self.rows.line(), row });
                }
                Ok(false) => return (batch, Ok(true)),
                Err(error) => return (batch, Err(error.into())),
            }
        }
        (batch, Ok(false))
    }

    /// Returns `true` if the rows can be bulk loaded.
    fn takes_bulk(&self) -> Result<bool> {
        let is_empty = || self.db.transact(|tx| tx.table(&self.table)?.is_empty());
        Ok(!self.is_archived && is_empty()?)
    }

    /// Creates the table if the input had no rows: a table without rows has types, too.
    fn create_table(&self) -> Result<()> {
        if self.loaded > 0 {
            return Ok(());
        }
        let nothing = Vec::<u8>::new();
        Ok(self.db.transact(|tx| {
            let table = tx.table(&self.table)?;
            if !table.is_empty()? {
                return Ok(());
            }
            table.insert(&nothing, &nothing)?; // an insert creates a table
            table.remove(&nothing).map(drop)
        })?)
    }

    /// Loads the rows read so far and the next rows, as long as they are in order; returns whether rows are
    /// left. At a malformed row the rows before it stay, durably.
    fn bulk_load(&mut self) -> Result<bool> {
        let mut rows = Sorted::new(std::mem::take(&mut self.read), &mut *self.rows, self.db.max_key_bytes());
        let (bar, started) = (&self.bar, self.started);
        let tx = self.db.begin()?;
        let loaded = tx.table(&self.table)?.bulk_load(std::iter::from_fn(|| {
            let row = rows.next()?;
            if rows.given().is_multiple_of(ROWS_PER_COMMIT as u64) {
                bar.set_position(rows.bytes_read());
                bar.set_message(format!("{} rows/s", show::rate(rows.given(), started.elapsed())));
            }
            Some(row)
        }))?;
        tx.commit()?;
        let (left, malformed) = rows.into_rest();
        self.loaded += loaded;
        if let Some(error) = malformed {
            return Err(error.into());
        }
        if let Some(first) = left.front().filter(|_| !self.is_new_only) {
            self.bar.suspend(|| {
                progress::note(format_args!(
                    "note: line {} is out of key order; from there on rows are sorted before they are loaded",
                    first.line
                ));
            });
        }
        self.read = left;
        Ok(!self.read.is_empty())
    }

    /// Commits the rows. If the store rejects a row of the batch, commits the rows before it.
    fn commit(&mut self, batch: &[NumberedRow]) -> Result<()> {
        let Err((refused, error)) = self.insert(batch)? else { return Ok(()) };
        if let Err((_, error)) = self.insert(&batch[..refused])? {
            return Err(error.into());
        }
        Err(anyhow!("line {}: {error}", batch[refused].line))
    }

    /// Inserts all rows in one transaction. An inner `Err` has the row that the store rejects; then nothing
    /// was inserted.
    fn insert(&mut self, batch: &[NumberedRow]) -> Result<Result<(), (usize, Error)>> {
        if batch.is_empty() {
            return Ok(Ok(()));
        }
        let mut at = 0;
        let inserted = self.db.transact_async(|tx| {
            let table = tx.table(&self.table)?;
            let mut replaced = 0;
            for (index, NumberedRow { row, .. }) in batch.iter().enumerate() {
                at = index;
                if table.insert_if_absent(&row.key, &row.value)? {
                    continue;
                }
                if self.is_new_only {
                    let key = escaped(&row.key);
                    return Err(Error::Invalid(format!("the table has a row with the key {key} already")));
                }
                table.insert(&row.key, &row.value)?;
                replaced += 1;
            }
            Ok(replaced)
        });
        match inserted {
            Ok((replaced, ticket)) => {
                self.wait_for_last()?;
                self.last = Some((ticket, batch.len() as u64, replaced));
                Ok(Ok(()))
            }
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(Err((at, error))),
            Err(error) => Err(error.into()),
        }
    }

    fn wait_for_last(&mut self) -> Result<()> {
        if let Some((ticket, rows, replaced)) = self.last.take() {
            ticket.wait()?;
            self.loaded += rows;
            self.replaced += replaced;
        }
        Ok(())
    }

    fn end(self) -> Summary {
        self.bar.finish_and_clear();
        Summary {
            rows: self.loaded,
            replaced: self.replaced,
            bytes: self.rows.bytes(),
            span: self.started.elapsed(),
        }
    }

    fn show(&self) {
        self.bar.set_position(self.rows.bytes());
        self.bar.set_message(format!("{} rows/s", show::rate(self.loaded, self.started.elapsed())));
    }
}

/// The counts of durably loaded rows.
struct Summary {
    rows: u64,
    replaced: u64,
    bytes: u64,
    span: Duration,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rows, bytes) = (show::counted(self.rows, "row"), show::bytes(self.bytes));
        let (span, rate) = (show::duration(self.span), show::rate(self.rows, self.span));
        write!(f, "{rows} ({bytes}) in {span}, {rate} rows/s")?;
        match self.replaced {
            0 => Ok(()),
            replaced => write!(f, "; {} replaced one with the same key", show::counted(replaced, "row")),
        }
    }
}
