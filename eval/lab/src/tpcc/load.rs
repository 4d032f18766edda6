//! Loading a database: the initial population, by several threads, in transactions of one table and a
//! thousand rows.

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

/// Rows per transaction: fewer than make a transaction lock the whole table.
const GROUP: usize = 1_000;

/// The part that one thread loads in one go.
#[derive(Debug, Clone, Copy)]
enum Piece {
    Items,
    /// The warehouse's row and those of its districts.
    Warehouse(u32),
    Stocks(u32),
    /// Customers, their payments and orders.
    District(u32, u8),
}

/// Fills an empty store; it is durable, and says that it is loaded, when this returns.
///
/// # Errors
///
/// An error of the store. It is then half loaded: [`loaded`] finds nothing.
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

/// Fills an empty store of any engine; it is durable when this returns.
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
        // The caller is one of them: on a simulated machine, where the system's threads have no place, it is
        // the only one.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let all = others.into_iter().map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)));
        all.fold(own, Result::and)
    })?;
    // Relaxed: the threads are joined.
    Ok(Loaded { scale, constants, seed, rows: shared.rows.load(Relaxed), runs: 0 })
}

/// Returns the store's own description; `None` if it was never loaded to the end.
///
/// # Errors
///
/// An error of the store.
pub fn loaded(db: &Database) -> Result<Option<Loaded>, BenchError> {
    db.transact(|tx| tx.table(&SETTINGS)?.get(SETTINGS_KEY)).map_err(failed("reading the settings"))
}

/// Counts one more run; returns the number of runs before.
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

/// About this number of rows, for the progress bar: the number of order lines is random.
fn expected_rows(scale: Scale) -> u64 {
    let (customers, orders) = (u64::from(scale.customers()), u64::from(scale.orders()));
    // Customer, name, payment; order, its index entry, ten lines.
    let district = 1 + 3 * customers + 12 * orders + u64::from(scale.undelivered());
    let warehouse = 1 + u64::from(scale.items()) + u64::from(DISTRICTS) * district;
    u64::from(scale.items()) + u64::from(scale.warehouses()) * warehouse
}

/// Destination of one thread's loading.
trait Target {
    /// Stores a group of rows in one transaction.
    fn put<K: RowKey, V: Row>(
        &mut self,
        table: &TableDefinition<K, V>,
        group: &[(K, V::Owned)],
    ) -> Result<(), BenchError>;

    /// Makes all of them durable.
    fn finish(self) -> Result<(), BenchError>;
}

struct ByDatabase<'d> {
    db: &'d Database,
    /// The newest commit; when it is durable, all before it are.
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
        Ok(()) // each commit was
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
    /// The next piece. Each thread takes one after another.
    next: AtomicUsize,
    /// Rows written by all threads.
    rows: AtomicU64,
    progress: &'s Progress,
}

struct Worker<'s, T> {
    shared: &'s Shared<'s>,
    target: T,
}

impl<T: Target> Worker<'_, T> {
    fn run(mut self) -> Result<(), BenchError> {
        // Relaxed: only distinctness matters.
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
            // Relaxed: a count.
            let before = self.shared.rows.fetch_add(group.len() as u64, Relaxed);
            self.shared.progress.at(before + group.len() as u64);
        }
    }
}
