//! The bookstore that runs work on.
//!
//! Real runs share one store that is open all the time. A simulated run opens a copy of its files on its own
//! machine: the store's state in memory depends on the time and on threads, so a store that was opened
//! elsewhere, or has served another run, would give other results each time.

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
    /// Open, on this machine.
    Open(Database, Arc<Sequences>),
    /// Closed, for simulated machines; each run has its own.
    Closed(Box<Simulated>, Files),
}

/// A filled bookstore that is not open.
#[derive(Clone, Debug)]
pub struct Files {
    files: MemFs,
    scale: Scale,
    workers: usize,
}

/// Its path in the file system in memory.
const PATH: &str = "/bookstore";
/// Of a closed one's cache: more than it needs.
const CACHE_BYTES: usize = 64 << 20;
const SEGMENT_BYTES: u64 = 2 << 20;

fn failed(doing: &'static str) -> impl Fn(Error) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

/// Makes one on this machine and fills it.
///
/// # Errors
///
/// The store's.
pub fn open(settings: &Settings) -> Result<(Database, Arc<Sequences>), BenchError> {
    let builder = Database::builder().cache_bytes(512 << 20);
    let db = builder.open_in_memory().map_err(failed("opening the store"))?;
    let data = Data::new(settings.scale, settings.seed);
    let sequences = fill(&db, &data, &mut |_| {}).map_err(failed("filling the bookstore"))?;
    Ok((db, Arc::new(sequences)))
}

impl Bookstore {
    /// Makes one and fills it, on the machine of the settings.
    ///
    /// # Errors
    ///
    /// The store's, and the simulated machine's.
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

    /// Releases it.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn close(self) -> Result<(), BenchError> {
        match self {
            Self::Open(db, _) => db.close().map_err(failed("closing the store")),
            Self::Closed(..) => Ok(()),
        }
    }
}

impl Files {
    /// Runs `serve` on a copy of them, on a machine with this number of processors and that seed.
    ///
    /// # Errors
    ///
    /// The store's, the machine's, and those of `serve`.
    pub fn run<T: 'static>(
        &self,
        machine: &Simulated,
        (processors, seed): (usize, u64),
        serve: impl FnOnce(&Database, Sequences) -> Result<T, BenchError> + 'static,
    ) -> Result<T, BenchError> {
        let copy = Self { files: self.files.copied(), ..self.clone() };
        machine.run(processors, seed, move || {
            let db = copy.open()?;
            // Walks everything: brings every page in.
            db.check(&mut |_, _| {}).map_err(failed("reading the store in"))?;
            let served = serve(&db, Sequences::of_filled(copy.scale))?;
            db.close().map_err(failed("closing the store"))?;
            Ok(served)
        })?
    }

    /// Opens it without threads of its own: its device costs nothing, and no other process reads it.
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
