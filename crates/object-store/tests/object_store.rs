//! Backups in object stores: restored rows, increments, and a failure of each request.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::error::Error as _;
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use azekura::{Database, Restore, TableDefinition};
use azekura_object_store::{ArchiveObjects, BackupObject, Error};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const PART: usize = 64 << 10;

fn put(db: &Database, keys: Range<u64>, byte: u8) {
    db.transact(|tx| {
        let rows = tx.table(&ROWS)?;
        keys.clone().try_for_each(|key| rows.insert(&key, &[byte; 900]))
    })
    .unwrap();
}

/// Creates a store of about 900 KiB in 1,000 rows.
fn database() -> Database {
    let db = Database::in_memory().unwrap();
    put(&db, 0..1000, 1);
    db
}

fn rows(db: &Database) -> Vec<(u64, Vec<u8>)> {
    db.read(|s| s.table(&ROWS)?.iter().collect()).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The way in which a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The object store does not execute the request.
    Refused,
    /// The object store executes the request, and its answer is lost.
    AnswerLost,
}

/// Counts of requests, and the request that fails.
#[derive(Debug)]
struct Requests {
    count: AtomicU64,
    /// Number of the request that fails, from 0.
    fails: u64,
    fault: Fault,
    begun: AtomicUsize,
    completed: AtomicUsize,
    aborted: AtomicUsize,
    parts_in_flight: AtomicUsize,
    most_parts_in_flight: AtomicUsize,
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "planted fault".into() }
}

impl Requests {
    fn new(fails: u64, fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicU64::new(0),
            fails,
            fault,
            begun: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
            parts_in_flight: AtomicUsize::new(0),
            most_parts_in_flight: AtomicUsize::new(0),
        })
    }

    /// Executes a request, unless it is the one that fails.
    async fn run<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let is_faulty = self.count.fetch_add(1, SeqCst) == self.fails;
        if is_faulty && self.fault == Fault::Refused {
            return Err(failure());
        }
        let result = request.await;
        if is_faulty { Err(failure()) } else { result }
    }
}

/// An object store in memory in which one request fails.
#[derive(Debug)]
struct Faulty {
    inner: Arc<InMemory>,
    requests: Arc<Requests>,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty:")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.requests.run(self.inner.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.requests.run(self.inner.put_multipart_opts(path, options)).await?;
        self.requests.begun.fetch_add(1, SeqCst);
        Ok(Box::new(FaultyUpload { inner, requests: Arc::clone(&self.requests) }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.run(self.inner.get_opts(path, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.requests.run(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    requests: Arc<Requests>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, requests) = (self.inner.put_part(data), Arc::clone(&self.requests));
        let now = requests.parts_in_flight.fetch_add(1, SeqCst) + 1;
        requests.most_parts_in_flight.fetch_max(now, SeqCst);
        Box::pin(async move {
            let result = requests.run(part).await;
            requests.parts_in_flight.fetch_sub(1, SeqCst);
            result
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let result = self.requests.run(self.inner.complete()).await;
        self.requests.completed.fetch_add(usize::from(result.is_ok()), SeqCst);
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.requests.aborted.fetch_add(1, SeqCst);
        self.inner.abort().await
    }
}

/// Returns the backup `monday` in an object store in memory, which counts the requests in `requests`.
fn object(inner: &Arc<InMemory>, requests: &Arc<Requests>) -> BackupObject {
    let store = Faulty { inner: Arc::clone(inner), requests: Arc::clone(requests) };
    BackupObject::new(Arc::new(store), "copies/monday").unwrap().part_bytes(PART)
}

fn without_faults(inner: &Arc<InMemory>) -> BackupObject {
    object(inner, &Requests::new(u64::MAX, Fault::Refused))
}

#[test]
fn a_backup_in_parts_restores_to_the_same_rows() {
    let (scratch, db, inner) = (Scratch::new(), database(), Arc::new(InMemory::new()));
    let requests = Requests::new(u64::MAX, Fault::Refused);
    let monday = object(&inner, &requests);
    let report = monday.write(db.backup()).unwrap();
    assert_eq!((report.rows, report.is_incremental), (1000, false));
    let parts = requests.count.load(SeqCst) - 3; // without find, begin and complete
    assert_eq!(parts, report.bytes.div_ceil(PART as u64));
    // OBJECT-2: two parts are uploaded while the third one fills.
    assert!((1..=2).contains(&requests.most_parts_in_flight.load(SeqCst)), "{requests:?}");
    assert_eq!(monday.verify(Restore::new()).unwrap(), report);
    let restored = monday.restore(Restore::new().verify(true), scratch.path("new")).unwrap();
    assert_eq!(restored.backup, report);
    assert_eq!(rows(&Database::open(scratch.path("new")).unwrap()), rows(&db));
    let again = monday.write(db.backup()).unwrap_err();
    assert!(
        matches!(&again, Error::Exists { object } if object.ends_with("copies/monday/backup.azk")),
        "{again}"
    );
}

#[test]
fn an_object_larger_than_a_range_is_read_in_ranges() {
    let (db, inner) = (Database::in_memory().unwrap(), Arc::new(InMemory::new()));
    put(&db, 0..20_000, 7);
    let requests = Requests::new(u64::MAX, Fault::Refused);
    let monday = object(&inner, &requests).part_bytes(5 << 20);
    let report = monday.write(db.backup()).unwrap();
    let before = requests.count.load(SeqCst);
    assert_eq!(monday.verify(Restore::new()).unwrap(), report);
    let reads = requests.count.load(SeqCst) - before - 1; // without find
    assert_eq!((reads, reads), (report.bytes.div_ceil(8 << 20), 3));
    // The object is replaced while it is read: parts of two objects must not be combined.
    let mut reader = monday.reader().unwrap();
    reader.read_exact(&mut [0]).unwrap();
    let (runtime, path) = (runtime(), Path::from("copies/monday/backup.azk"));
    runtime.block_on(inner.put(&path, vec![0; report.bytes as usize].into())).unwrap();
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("recondition"), "{error}");
}

#[test]
fn increments_restore_with_their_bases_from_objects() {
    let (scratch, db, inner) = (Scratch::new(), database(), Arc::new(InMemory::new()));
    let at = |prefix: &str| BackupObject::new(inner.clone(), prefix).unwrap();
    let (monday, tuesday, wednesday) = (at("monday"), at("tuesday"), at("wednesday"));
    let since = |base: &BackupObject| db.backup().since_reader(base.name(), base.reader().unwrap());
    monday.write(db.backup()).unwrap();
    put(&db, 5..6, 2);
    let second = tuesday.write(since(&monday)).unwrap();
    put(&db, 700..701, 3);
    let third = wednesday.write(since(&tuesday)).unwrap();
    assert!(second.is_incremental && second.rows < 500 && third.rows < 500, "{second:?}, {third:?}");
    let with = |bases: &[&BackupObject]| {
        bases.iter().fold(Restore::new().verify(true), |restore, base| {
            restore.base_reader(base.name(), base.reader().unwrap())
        })
    };
    wednesday.restore(with(&[&monday, &tuesday]), scratch.path("new")).unwrap();
    assert_eq!(rows(&Database::open(scratch.path("new")).unwrap()), rows(&db));
    let error = wednesday.restore(with(&[&monday]), scratch.path("alone")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("wednesday/backup.azk") && text.contains("is incremental"), "{text}");
    let error = at("thursday").reader().unwrap_err();
    assert!(error.to_string().contains("thursday/backup.azk does not exist"), "{error}");
    // The base of another store is refused.
    let other = Database::in_memory().unwrap();
    let backup = other.backup().since_reader(monday.name(), monday.reader().unwrap());
    let error = at("friday").write(backup).unwrap_err();
    assert!(error.to_string().contains("monday/backup.azk is a backup of another store"), "{error}");
    assert!(matches!(at("friday").reader(), Err(Error::NotFound { .. })));
}

#[test]
fn an_upload_that_fails_at_any_request_leaves_no_backup() {
    let (db, small) = (database(), Database::in_memory().unwrap());
    put(&small, 0..10, 1);
    for (db, is_small) in [(&db, false), (&small, true)] {
        for fault in [Fault::Refused, Fault::AnswerLost] {
            let mut failures = 0;
            for fails in 0.. {
                let (inner, requests) = (Arc::new(InMemory::new()), Requests::new(fails, fault));
                let Err(error) = object(&inner, &requests).write(db.backup()) else { break };
                failures += 1;
                let text = format!("{error}: {:?}", error.source().map(ToString::to_string));
                assert!(text.contains("monday/backup.azk") && text.contains("planted fault"), "{text}");
                let begun = requests.begun.load(SeqCst);
                assert_eq!(requests.aborted.load(SeqCst), begun, "request {fails}: parts are dropped");
                match without_faults(&inner).verify(Restore::new()) {
                    Err(Error::NotFound { .. }) => {
                        without_faults(&inner).write(db.backup()).unwrap(); // the next try succeeds
                    }
                    // OBJECT-1: the object is there only because the answer to the last request was lost.
                    Ok(_) => assert_eq!(fault, Fault::AnswerLost, "request {fails}"),
                    Err(error) => panic!("request {fails}: {error}"),
                }
            }
            let requests = if is_small { 2 } else { 10 };
            assert!(failures >= requests, "{failures} requests failed");
        }
    }
}

#[test]
fn a_restore_that_fails_at_any_request_leaves_no_store() {
    let (scratch, db, inner) = (Scratch::new(), database(), Arc::new(InMemory::new()));
    without_faults(&inner).write(db.backup()).unwrap();
    let mut failures = 0;
    for fails in 0.. {
        let (monday, to) =
            (object(&inner, &Requests::new(fails, Fault::Refused)), scratch.path(&fails.to_string()));
        let Err(error) = monday.restore(Restore::new(), &to) else { break };
        failures += 1;
        let text = format!("{error}: {:?}", error.source().map(ToString::to_string));
        assert!(text.contains("monday/backup.azk") && text.contains("planted fault"), "{text}");
        assert!(Database::builder().create(false).open(&to).is_err());
    }
    assert_eq!(failures, 2); // find, and one range
}

#[test]
fn a_damaged_cut_or_replaced_object_is_refused_by_its_name() {
    let (db, inner) = (database(), Arc::new(InMemory::new()));
    let monday = without_faults(&inner);
    monday.write(db.backup()).unwrap();
    let runtime = runtime();
    let path = Path::from("copies/monday/backup.azk");
    let right: Vec<u8> =
        runtime.block_on(async { inner.get(&path).await.unwrap().bytes().await.unwrap() }).into();
    let refused = |bytes: Vec<u8>, reason: &str| {
        runtime.block_on(inner.put(&path, bytes.into())).unwrap();
        let error = monday.verify(Restore::new()).unwrap_err().to_string();
        assert!(error.contains("monday/backup.azk") && error.contains(reason), "{error}");
    };
    let mut damaged = right.clone();
    damaged[right.len() / 2] ^= 1;
    refused(damaged, "damaged at byte");
    refused(right[..right.len() - 1].to_vec(), "truncated");
    refused(b"not a backup".to_vec(), "truncated");
    refused(vec![0; 1000], "is not a backup");
    assert!(BackupObject::new(inner.clone(), "a//b").is_err());
}

fn archive(inner: &Arc<InMemory>, requests: &Arc<Requests>) -> ArchiveObjects {
    let store = Faulty { inner: Arc::clone(inner), requests: Arc::clone(requests) };
    ArchiveObjects::new(Arc::new(store), "log/shop").unwrap()
}

fn archive_without_faults(inner: &Arc<InMemory>) -> ArchiveObjects {
    archive(inner, &Requests::new(u64::MAX, Fault::Refused))
}

#[test]
fn an_archive_in_objects_restores_to_each_time() {
    let (scratch, inner) = (Scratch::new(), Arc::new(InMemory::new()));
    let open = || Database::builder().archive(scratch.path("log")).open(scratch.path("db")).unwrap();
    let mut db = open();
    let monday = without_faults(&inner);
    monday.write(db.backup()).unwrap();
    let mut copy = archive_without_faults(&inner);
    let mut states = Vec::new();
    for round in 0..24_u8 {
        // The rows are large enough for a second file of the archive; a file has 16 MiB.
        for part in 0..8 {
            put(&db, part * 100..part * 100 + 100, round);
        }
        states.push((db.archive_log().unwrap(), rows(&db)));
        if round % 3 == 0 {
            assert!(copy.push(scratch.path("log")).unwrap() > 0);
            assert_eq!(copy.push(scratch.path("log")).unwrap(), 0, "nothing is new");
        }
        if round % 8 == 7 {
            db.close().unwrap();
            db = open();
            copy = archive_without_faults(&inner); // as in a new process, which has copied nothing yet
        }
    }
    db.close().unwrap();
    copy.push(scratch.path("log")).unwrap();
    let fetched = copy.fetch(scratch.path("fetched")).unwrap();
    assert!(fetched >= 2, "{fetched}");
    for file in std::fs::read_dir(scratch.path("fetched")).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    for (n, (time, rows_then)) in states.iter().enumerate().step_by(5) {
        let to = scratch.path(&format!("to{n}"));
        let restore = Restore::new().archive(scratch.path("fetched")).to_time(*time);
        monday.restore(restore, &to).unwrap();
        assert_eq!(&rows(&Database::open(&to).unwrap()), rows_then, "time {n}");
    }
    // A restore to the end of the archive has all commits, or names the objects that are lost.
    let restore = |dir: &str, to: &str| {
        monday.restore(Restore::new().archive(scratch.path(dir)), scratch.path(to))?;
        Ok::<_, Error>(rows(&Database::open(scratch.path(to)).unwrap()))
    };
    assert_eq!(restore("fetched", "all").unwrap(), states.last().unwrap().1);
    let logs = std::fs::read_dir(scratch.path("fetched")).unwrap().map(|entry| entry.unwrap().path());
    let newest = logs.filter(|path| path.to_string_lossy().contains("/log-")).max().unwrap();
    let newest = format!("log/shop/{}", newest.file_name().unwrap().to_str().unwrap());
    runtime().block_on(inner.delete(&Path::from(newest))).unwrap();
    copy.fetch(scratch.path("lost")).unwrap();
    let error = restore("lost", "none").unwrap_err();
    assert!(error.to_string().contains("newest part of the archive is missing"), "{error}");
    // The archive of another store does not overwrite this one.
    let other = Database::builder().archive(scratch.path("log2")).open(scratch.path("db2")).unwrap();
    put(&other, 0..1, 1);
    other.archive_log().unwrap();
    let error = archive_without_faults(&inner).push(scratch.path("log2")).unwrap_err();
    assert!(matches!(&error, Error::Exists { object } if object.contains("log/shop/log-")), "{error}");
    let error = ArchiveObjects::new(inner, "nowhere").unwrap().fetch(scratch.path("none")).unwrap_err();
    assert!(matches!(&error, Error::NotFound { object } if object.contains("nowhere")), "{error}");
}

#[test]
fn an_archive_that_is_copied_while_its_end_is_written_restores() {
    let (scratch, inner) = (Scratch::new(), Arc::new(InMemory::new()));
    let db = Database::builder().archive(scratch.path("log")).open(scratch.path("db")).unwrap();
    let monday = without_faults(&inner);
    monday.write(db.backup()).unwrap();
    put(&db, 0..100, 1);
    let first = db.archive_log().unwrap();
    put(&db, 0..100, 2);
    db.archive_log().unwrap();
    let mut names = std::fs::read_dir(scratch.path("log")).unwrap().map(|entry| entry.unwrap().file_name());
    let name = names.find(|name| name.to_string_lossy().starts_with("log-")).unwrap();
    let whole = std::fs::read(scratch.path("log").join(&name)).unwrap();
    std::fs::create_dir(scratch.path("cut")).unwrap();
    for (n, end) in [whole.len() - 1, whole.len() - 30_000].into_iter().enumerate() {
        std::fs::write(scratch.path("cut").join(&name), &whole[..end]).unwrap();
        archive_without_faults(&inner).push(scratch.path("cut")).unwrap();
        let fetched = scratch.path(&format!("fetched{n}"));
        archive_without_faults(&inner).fetch(&fetched).unwrap();
        let to = scratch.path(&format!("to{n}"));
        monday.restore(Restore::new().archive(&fetched).to_time(first), &to).unwrap();
        assert!(rows(&Database::open(&to).unwrap()).iter().all(|(_, value)| value[0] == 1));
    }
}

#[test]
fn a_copy_of_an_archive_continues_after_each_failed_request() {
    let (scratch, inner) = (Scratch::new(), Arc::new(InMemory::new()));
    let db = Database::builder().archive(scratch.path("log")).open(scratch.path("db")).unwrap();
    put(&db, 0..100, 1);
    db.archive_log().unwrap();
    for fault in [Fault::Refused, Fault::AnswerLost] {
        let mut failures = 0;
        for fails in 0.. {
            put(&db, 0..10, 2);
            db.archive_log().unwrap();
            let mut copy = archive(&inner, &Requests::new(fails, fault));
            let pushed = copy.push(scratch.path("log"));
            failures += u64::from(pushed.is_err());
            copy.push(scratch.path("log")).unwrap();
            archive_without_faults(&inner).fetch(scratch.path("fetched")).unwrap();
            for entry in std::fs::read_dir(scratch.path("log")).unwrap() {
                let entry = entry.unwrap();
                if entry.file_name() == "archive.lock" {
                    continue;
                }
                let copied = std::fs::read(scratch.path("fetched").join(entry.file_name())).unwrap();
                assert!(copied == std::fs::read(entry.path()).unwrap(), "request {fails}");
            }
            if pushed.is_ok() {
                break;
            }
        }
        assert!(failures >= 2, "{failures} requests failed");
    }
}
