//! The life of a store: its files at many moments, and the states that the store may have at each moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura::{Database, Error};
use azekura_io::{Fs, MemFs, OpenOptions};

use crate::common::{self, Model, Rows, Shape};

pub(crate) const DIR: &str = "/db";
pub(crate) const PAGE: usize = 4096;
/// Number of frames: so few that pages are written all the time, but more than the height of the tree.
const FRAMES: usize = 64;

pub(crate) fn open(fs: &Arc<dyn Fs>) -> Result<Database, Error> {
    common::deterministic(Arc::clone(fs), PAGE, FRAMES).open(DIR)
}

/// The files at one moment.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) files: MemFs,
    /// `true` if the store was closed, `false` if its process was killed.
    pub(crate) is_closed: bool,
    /// The oldest and the newest state that an opening may find, as indices into [`Life::states`].
    pub(crate) oldest: usize,
    pub(crate) newest: usize,
}

/// The life of a store: see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// The content after each commit, including commits that a kill has lost.
    pub(crate) states: Vec<Model>,
    pub(crate) moments: Vec<Moment>,
}

impl Life {
    /// Runs a workload with openings, checkpoints, closings and kills.
    pub(crate) fn live(seed: u64, sessions: usize) -> Self {
        let shape = Shape {
            txns: sessions * 30,
            ops: 12,
            keys: 400,
            tables: 3,
            large_values: true,
            checkpoints: true,
        };
        let txns = common::workload(seed, shape);
        let (mut life, mut files) = (Self::default(), MemFs::new());
        for (number, session) in txns.chunks(30).enumerate() {
            let fs: Arc<dyn Fs> = Arc::new(files.clone());
            let db = open(&fs).expect("opens");
            life.states.push(common::content(&db).expect("reads"));
            life.load(&db, &files, number);
            for piece in session.chunks(10) {
                life.go_on(&db, piece);
                life.note(files.copied());
            }
            if number % 3 == 2 {
                files = files.copied(); // killed
                continue;
            }
            db.close().expect("closes");
            drop(db);
            life.note_closed(&files);
            life.short_sessions(&files, number);
        }
        life
    }

    /// Runs openings that write only a few pages. Each uses the first slots of the double-write area, so the
    /// copies in the other slots become outdated.
    fn short_sessions(&mut self, files: &MemFs, number: usize) {
        for n in 0..3 {
            let db = open(&(Arc::new(files.clone()) as _)).expect("opens");
            let key = common::key(((number * 3 + n) * 37 % 400) as u32);
            let put = common::Op::Put { table: n % 2, key, value: vec![n as u8; 30] };
            db.transact(|tx| common::apply_to_store(tx, &put)).expect("commits");
            let mut state = self.states.last().expect("a start").clone();
            common::apply_to_model(&mut state, &put);
            self.states.push(state);
            db.close().expect("closes");
            drop(db);
            self.note_closed(files);
        }
    }

    fn note_closed(&mut self, files: &MemFs) {
        let newest = self.states.len() - 1;
        self.moments.push(Moment { files: files.copied(), is_closed: true, oldest: newest, newest });
    }

    /// Drops a table, and fills it again by a bulk load, so that its pages are not in the log.
    fn load(&mut self, db: &Database, files: &MemFs, number: usize) {
        let mut state = self.states.last().expect("a start").clone();
        db.transact(|tx| tx.drop_table("loaded").map(drop)).expect("drops");
        if state.remove("loaded").is_some() {
            self.states.push(state.clone());
        }
        self.note_killed(files);
        let row = |n: usize| (common::key((n * 4) as u32), vec![(number + n) as u8; 500]);
        let rows: Rows = (0..150 + number * 20).map(row).collect();
        let loaded = azekura::TableDefinition::<[u8], [u8]>::new("loaded");
        let load = |tx: &azekura::Transaction| {
            tx.table(&loaded)?.bulk_load(rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())))
        };
        db.transact(load).expect("loads");
        state.insert("loaded".into(), rows);
        self.states.push(state);
        self.note_killed(files);
    }

    /// Adds a moment with a killed process, at which all commits are acknowledged.
    fn note_killed(&mut self, files: &MemFs) {
        let newest = self.states.len() - 1;
        self.moments.push(Moment { files: files.copied(), is_closed: false, oldest: newest, newest });
    }

    fn go_on(&mut self, db: &Database, txns: &[common::Txn]) {
        let start = self.states.last().expect("a start").clone();
        let base = self.states.len() - 1;
        let outcome = common::run(db, start, txns);
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        self.states.extend(outcome.states.into_iter().skip(1));
        let acknowledged = if outcome.acknowledged == 0 { 0 } else { base + outcome.acknowledged };
        let before = self.moments.last().map_or(0, |moment| moment.oldest);
        let oldest = acknowledged.max(before);
        self.moments.push(Moment { files: MemFs::new(), is_closed: false, oldest, newest: 0 });
    }

    /// Completes the moment that [`go_on`](Self::go_on) began.
    fn note(&mut self, files: MemFs) {
        let newest = self.states.len() - 1;
        let moment = self.moments.last_mut().expect("was begun");
        (moment.files, moment.newest) = (files, newest);
    }
}

/// Returns all files of a store except LOCK, in order of their names.
pub(crate) fn paths(fs: &MemFs) -> Vec<PathBuf> {
    fn walk(fs: &MemFs, dir: &Path, found: &mut Vec<PathBuf>) {
        for path in fs.list_dir(dir).expect("is there").into_iter().map(|name| dir.join(name)) {
            if fs.list_dir(&path).is_ok() {
                walk(fs, &path, found);
            } else if !path.ends_with("LOCK") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(fs, Path::new(DIR), &mut found);
    found.sort();
    found
}

pub(crate) fn read(fs: &MemFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenOptions::new()).expect("is there");
    let mut bytes = vec![0; file.len().expect("length") as usize];
    file.read_at(0, &mut bytes).expect("reads");
    bytes
}

pub(crate) fn write(fs: &MemFs, path: &Path, bytes: &[u8]) {
    fs.create_dir_all(path.parent().expect("has one")).expect("makes");
    let file = fs.open(path, OpenOptions::new().create(true)).expect("opens");
    file.set_len(0).expect("empties");
    file.set_len(bytes.len() as u64).expect("lengthens");
    for (number, block) in bytes.chunks(PAGE).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            file.write_at((number * PAGE) as u64, block).expect("writes");
        }
    }
}
