//! The filled bookstore under the runs.
//!
//! Real runs share one store, which stays open. A simulated run opens a copy of the store's files on its own
//! simulated machine. The state of an open store in memory depends on time and threads; a store that was
//! opened elsewhere or used by another run would give different results each time.

use super::fill::fill;
use super::settings::Settings;
use super::shop::Sequences;
use super::simulate::Simulated;
use crate::error::{BenchError, EngineError};
use azekura::{Database, Error};
use azekura_io::MemFs;
use azekura_workload::bookstore::{Data, Scale};
use std::sync::Arc;

/// A filled bookstore.
#[derive(Debug)]
pub enum Bookstore {
    /// An open store on this machine.
    Open(Database, Arc<Sequences>),
    /// A closed store for simulated machines; each run opens a copy.
    Closed(Box<Simulated>, Files),
}

/// Files of a filled bookstore that is closed.
#[derive(Clone, Debug)]
pub struct Files {
    files: MemFs,
    scale: Scale,
    workers: usize,
}

/// Path of the store in the in-memory file system.
const PATH: &str = "/bookstore";
/// Cache of a store on a simulated machine, larger than the store.
const CACHE_BYTES: usize = 64 << 20;
const SEGMENT_BYTES: u64 = 2 << 20;

fn failed(doing: &'static str) -> impl Fn(Error) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

/// Creates a store on this machine and fills it.
///
/// # Errors
///
/// An error of the store.
pub fn open(settings: &Settings) -> Result<(Database, Arc<Sequences>), BenchError> {
    let builder = Database::builder().cache_bytes(512 << 20);
    let db = builder.open_in_memory().map_err(failed("opening the store"))?;
    let data = Data::new(settings.scale, settings.seed);
    let sequences = fill(&db, &data, &mut |_| {}).map_err(failed("filling the bookstore"))?;
    Ok((db, Arc::new(sequences)))
}

impl Bookstore {
    /// Creates a bookstore on the machine of the settings and fills it.
    ///
    /// # Errors
    ///
    /// An error of the store or of the simulated machine.
    pub fn filled(settings: &Settings) -> Result<Self, BenchError> {
        let Some(machine) = &settings.machine else {
            let (db, sequences) = open(settings)?;
            return Ok(Self::Open(db, sequences));
        };
        let data = Data::new(settings.scale, settings.seed);
        let files = Files { files: MemFs::new(), scale: settings.scale, workers: settings.all_processors() };
        let filled = files.clone();
        machine.run(1, settings.seed, move || {
            let db = files.open()?;
            fill(&db, &data, &mut |_| {}).map_err(failed("filling the bookstore"))?;
            db.close().map_err(failed("closing the store"))
        })??;
        Ok(Self::Closed(Box::new(machine.clone()), filled))
    }

    /// Closes the store, if it is open.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn close(self) -> Result<(), BenchError> {
        match self {
            Self::Open(db, _) => db.close().map_err(failed("closing the store")),
            Self::Closed(..) => Ok(()),
        }
    }
}

impl Files {
    /// Runs `serve` on a copy of the files, on a simulated machine with this number of processors and this
    /// seed.
    ///
    /// # Errors
    ///
    /// An error of the store, of the machine or of `serve`.
    pub fn run<T: 'static>(
        &self,
        machine: &Simulated,
        (processors, seed): (usize, u64),
        serve: impl FnOnce(&Database, Sequences) -> Result<T, BenchError> + 'static,
    ) -> Result<T, BenchError> {
        let copy = Self { files: self.files.copied(), ..self.clone() };
        machine.run(processors, seed, move || {
            let db = copy.open()?;
            // The check reads every page, so that all pages are in the cache.
            db.check(&mut |_, _| {}).map_err(failed("reading the store in"))?;
            let served = serve(&db, Sequences::of_filled(copy.scale))?;
            db.close().map_err(failed("closing the store"))?;
            Ok(served)
        })?
    }

    /// Opens the store without background threads: writes are free here, and no other process reads the
    /// store.
    fn open(&self) -> Result<Database, BenchError> {
        Database::builder()
            .file_system(Arc::new(self.files.clone()))
            .cache_bytes(CACHE_BYTES)
            .background(false)
            .log_buffers(self.workers)
            .wal_streams(1)
            .wal_segment_bytes(SEGMENT_BYTES)
            .open(PATH)
            .map_err(failed("opening the store"))
    }
}
