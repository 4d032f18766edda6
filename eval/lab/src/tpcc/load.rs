//! Loading the initial population of a database with several threads. Each transaction writes up to a
//! thousand rows of one table.

use super::failed;
use super::keyed::KeyedRows;
use super::rows::{OpenRows, Row, RowKey, Rows};
use super::schema::{
    CUSTOMER, CUSTOMER_BY_NAME, DISTRICT, HISTORY, ITEM, Loaded, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER,
    ORDER_LINE, SETTINGS, SETTINGS_KEY, STOCK, WAREHOUSE,
};
use crate::engine::{Session, Store};
use crate::error::BenchError;
use crate::progress::Progress;
use azekura::{CommitTicket, Database, TableDefinition};
use azekura_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use azekura_workload::tpcc::{Constants, DISTRICTS, Loader, Scale};

/// Number of rows per transaction: few enough that a transaction does not lock the whole table.
const GROUP: usize = 1_000;

/// The unit of work of a loading thread.
#[derive(Debug, Clone, Copy)]
enum Piece {
    Items,
    /// The rows of a warehouse and its districts.
    Warehouse(u32),
    Stocks(u32),
    /// Customers of a district, with their payments and orders.
    District(u32, u8),
}

/// Fills an empty store and marks it as loaded; all of it is durable when this returns.
///
/// # Errors
///
/// An error of the store. The store is then loaded in part, and [`loaded`] returns `None`.
pub fn load(
    db: &Database,
    scale: Scale,
    seed: u64,
    threads: usize,
    progress: &Progress,
) -> Result<Loaded, BenchError> {
    let loaded = load_by(scale, seed, threads, progress, || Ok(ByDatabase { db, last: None }))?;
    write_settings(db, &loaded)?;
    db.checkpoint().map_err(failed("taking a checkpoint"))?;
    Ok(loaded)
}

/// Fills an empty store of any engine; all of it is durable when this returns.
///
/// # Errors
///
/// An error of the engine.
pub fn load_store(
    store: &dyn Store,
    scale: Scale,
    seed: u64,
    threads: usize,
    progress: &Progress,
) -> Result<Loaded, BenchError> {
    load_by(scale, seed, threads, progress, || Ok(BySession(store.session()?)))
}

fn load_by<T: Target>(
    scale: Scale,
    seed: u64,
    threads: usize,
    progress: &Progress,
    target: impl Fn() -> Result<T, BenchError> + Sync,
) -> Result<Loaded, BenchError> {
    let constants = Constants::draw(seed);
    let pieces = pieces(scale);
    let shared = Shared {
        loader: Loader::new(scale, constants, seed, super::now_ms()),
        pieces: &pieces,
        next: AtomicUsize::new(0),
        rows: AtomicU64::new(0),
        progress,
    };
    let warehouses = scale.warehouses();
    let plural = if warehouses == 1 { "" } else { "s" };
    progress.begin(&format!("loading {warehouses} warehouse{plural}"), expected_rows(scale));
    let work = || Worker { shared: &shared, target: target()? }.run();
    std::thread::scope(|scope| {
        // The calling thread loads too. On a simulated machine, which has no threads of the operating system,
        // it is the only one.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let all = others.into_iter().map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)));
        all.fold(own, Result::and)
    })?;
    // Relaxed: joining the threads orders their writes.
    Ok(Loaded { scale, constants, seed, rows: shared.rows.load(Relaxed), runs: 0 })
}

/// Returns the description of the loaded data; `None` if loading was never completed.
///
/// # Errors
///
/// An error of the store.
pub fn loaded(db: &Database) -> Result<Option<Loaded>, BenchError> {
    db.transact(|tx| tx.table(&SETTINGS)?.get(SETTINGS_KEY)).map_err(failed("reading the settings"))
}

/// Increments the number of runs in the store. Returns the previous number.
///
/// # Errors
///
/// An error of the store.
pub fn count_run(db: &Database, loaded: &Loaded) -> Result<u64, BenchError> {
    write_settings(db, &Loaded { runs: loaded.runs + 1, ..*loaded })?;
    Ok(loaded.runs)
}

fn write_settings(db: &Database, loaded: &Loaded) -> Result<(), BenchError> {
    db.transact(|tx| tx.table(&SETTINGS)?.insert(SETTINGS_KEY, loaded))
        .map_err(failed("writing the settings"))
}

fn pieces(scale: Scale) -> Vec<Piece> {
    let of_warehouse = |w| {
        let districts = (1..=DISTRICTS).map(move |d| Piece::District(w, d));
        [Piece::Warehouse(w), Piece::Stocks(w)].into_iter().chain(districts)
    };
    std::iter::once(Piece::Items).chain((1..=scale.warehouses()).flat_map(of_warehouse)).collect()
}

/// Estimates the number of rows for the progress bar; the number of order lines is random.
fn expected_rows(scale: Scale) -> u64 {
    let (customers, orders) = (u64::from(scale.customers()), u64::from(scale.orders()));
    // Per customer: the row, the name index and a payment. Per order: the row, its index entry and about ten
    // lines.
    let district = 1 + 3 * customers + 12 * orders + u64::from(scale.undelivered());
    let warehouse = 1 + u64::from(scale.items()) + u64::from(DISTRICTS) * district;
    u64::from(scale.items()) + u64::from(scale.warehouses()) * warehouse
}

/// Destination of the rows that one thread loads.
trait Target {
    /// Stores a group of rows in one transaction.
    fn put<K: RowKey, V: Row>(
        &mut self,
        table: &TableDefinition<K, V>,
        group: &[(K, V::Owned)],
    ) -> Result<(), BenchError>;

    /// Waits until all rows are durable.
    fn finish(self) -> Result<(), BenchError>;
}

struct ByDatabase<'d> {
    db: &'d Database,
    /// The newest commit; once it is durable, all earlier ones are.
    last: Option<CommitTicket>,
}

impl Target for ByDatabase<'_> {
    fn put<K: RowKey, V: Row>(
        &mut self,
        table: &TableDefinition<K, V>,
        group: &[(K, V::Owned)],
    ) -> Result<(), BenchError> {
        let ((), ticket) = self.db.transact_async(|tx| put(tx, table, group)).map_err(failed("loading"))?;
        self.last = Some(ticket);
        Ok(())
    }

    fn finish(self) -> Result<(), BenchError> {
        match self.last {
            Some(ticket) => ticket.wait().map_err(failed("making rows durable")),
            None => Ok(()),
        }
    }
}

struct BySession<'s>(Box<dyn Session + 's>);

impl Target for BySession<'_> {
    fn put<K: RowKey, V: Row>(
        &mut self,
        table: &TableDefinition<K, V>,
        group: &[(K, V::Owned)],
    ) -> Result<(), BenchError> {
        self.0.write(&mut |writer| put(&KeyedRows::writing(writer), table, group))?;
        Ok(())
    }

    fn finish(self) -> Result<(), BenchError> {
        Ok(()) // each commit was durable when it returned
    }
}

fn put<R: Rows, K: RowKey, V: Row>(
    tx: &R,
    table: &TableDefinition<K, V>,
    group: &[(K, V::Owned)],
) -> Result<(), R::Error> {
    let table = tx.open(table)?;
    group.iter().try_for_each(|(key, row)| table.put(key, row))
}

struct Shared<'s> {
    loader: Loader,
    pieces: &'s [Piece],
    /// Index of the next piece; a thread increments it to take a piece.
    next: AtomicUsize,
    /// Number of rows written by all threads.
    rows: AtomicU64,
    progress: &'s Progress,
}

struct Worker<'s, T> {
    shared: &'s Shared<'s>,
    target: T,
}

impl<T: Target> Worker<'_, T> {
    fn run(mut self) -> Result<(), BenchError> {
        // Relaxed: the index only has to be unique.
        while let Some(&piece) = self.shared.pieces.get(self.shared.next.fetch_add(1, Relaxed)) {
            self.load(piece)?;
        }
        self.target.finish()
    }

    fn load(&mut self, piece: Piece) -> Result<(), BenchError> {
        let loader = &self.shared.loader;
        match piece {
            Piece::Items => self.put(&ITEM, loader.items()),
            Piece::Stocks(w) => self.put(&STOCK, loader.stocks(w).map(|(i, stock)| ((w, i), stock))),
            Piece::Warehouse(w) => {
                self.put(&WAREHOUSE, std::iter::once((w, loader.warehouse(w))))?;
                self.put(&DISTRICT, (1..=DISTRICTS).map(|d| ((w, d), loader.district(w, d))))
            }
            Piece::District(w, d) => {
                self.customers(w, d)?;
                self.orders(w, d)
            }
        }
    }

    fn customers(&mut self, w: u32, d: u8) -> Result<(), BenchError> {
        let loader = &self.shared.loader;
        let mut names = Vec::new();
        let customers = loader.customers(w, d).inspect(|(c, customer)| {
            names.push(((w, d, customer.last.clone(), customer.first.clone(), *c), ()));
        });
        self.put(&CUSTOMER, customers.map(|(c, customer)| ((w, d, c), customer)))?;
        names.sort_unstable();
        self.put(&CUSTOMER_BY_NAME, names.into_iter())?;
        self.put(&HISTORY, loader.histories(w, d).map(|(c, history)| ((w, d, c, 1), history)))
    }

    fn orders(&mut self, w: u32, d: u8) -> Result<(), BenchError> {
        let (mut orders, mut by_customer, mut open, mut lines) = (vec![], vec![], vec![], vec![]);
        for (o, order, its_lines) in self.shared.loader.orders(w, d) {
            by_customer.push(((w, d, order.c_id, o), ()));
            if order.carrier_id.is_none() {
                open.push(((w, d, o), ()));
            }
            lines.extend((1..).zip(its_lines).map(|(number, line)| ((w, d, o, number), line)));
            orders.push(((w, d, o), order));
        }
        by_customer.sort_unstable();
        self.put(&ORDER, orders.into_iter())?;
        self.put(&ORDER_BY_CUSTOMER, by_customer.into_iter())?;
        self.put(&NEW_ORDER, open.into_iter())?;
        self.put(&ORDER_LINE, lines.into_iter())
    }

    fn put<K: RowKey, V: Row>(
        &mut self,
        table: &TableDefinition<K, V>,
        mut rows: impl Iterator<Item = (K, V::Owned)>,
    ) -> Result<(), BenchError> {
        loop {
            let group: Vec<(K, V::Owned)> = rows.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return Ok(());
            }
            self.target.put(table, &group)?;
            // Relaxed: only the count itself matters.
            let before = self.shared.rows.fetch_add(group.len() as u64, Relaxed);
            self.shared.progress.at(before + group.len() as u64);
        }
    }
}
