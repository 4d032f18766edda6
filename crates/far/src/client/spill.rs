//! A local file as an additional replica of pages: page N is at offset N times the page size. The file is
//! unlinked as soon as it is open and is used in one session only, so it is never synced.

use super::{Order, Replica, Sink, Verb};
use crate::descriptors::{self, Hidden};
use crate::digest::Digest;
use crate::needed;
use rustix::fs::SeekFrom;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

#[derive(Default)]
struct Queue {
    runs: VecDeque<Vec<Order>>,
    closed: bool,
}

struct Shared {
    name: String,
    path: PathBuf,
    index: usize,
    file: Hidden<File>,
    queue: Mutex<Queue>,
    moved: Condvar,
    sink: Weak<dyn Sink>,
}

/// A replica that stores pages in a file.
pub(crate) struct Spill {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Spill {
    pub(crate) fn create(path: &Path, index: usize, sink: Weak<dyn Sink>) -> io::Result<Self> {
        Self::start(unnamed(path)?, path, index, sink)
    }

    fn start(file: File, path: &Path, index: usize, sink: Weak<dyn Sink>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name: format!("spill file {}", path.display()),
            path: path.into(),
            index,
            file: Hidden::new(file),
            queue: Mutex::default(),
            moved: Condvar::new(),
            sink,
        });
        let working = Arc::clone(&shared);
        let thread = needed::spawn("far-spill", move || working.work())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }
}

/// Creates a file and unlinks it, so that the file system frees it when its last descriptor is closed.
fn unnamed(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = descriptors::with_room(|| options.open(path))?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Copies the data of a file and preserves its holes.
fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    let mut at = 0;
    while at < length {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(()), // the rest of the file is a hole
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        let (mut source, mut target) = (at, at);
        while source < end {
            let left = usize::try_from(end - source).unwrap_or(usize::MAX);
            if rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

impl Replica for Spill {
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(run);
        }
        match run.first().map(|order| order.verb) {
            Some(Verb::Get) => queue.runs.push_front(run),
            Some(Verb::Put) => queue.runs.push_back(run),
            None => {}
        }
        drop(queue);
        self.shared.moved.notify_one();
        Ok(())
    }

    fn forget(&self, _page: u32) {} // a later page-out overwrites the page

    fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    /// Copies the file, by reference (`copy_file_range`) if the file system supports it.
    fn for_child(&self, sink: Weak<dyn Sink>) -> Result<Arc<dyn Replica>, String> {
        let mut path = self.shared.path.clone().into_os_string();
        path.push(format!(".{}", std::process::id()));
        let path = Path::new(&path);
        let make = || {
            let file = unnamed(path)?;
            copy_data(&self.shared.file, &file)?;
            self.abandon();
            Self::start(file, path, self.shared.index, sink)
        };
        make().map(|spill| Arc::new(spill) as _).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn abandon(&self) {
        descriptors::close(self.shared.file.as_raw_fd()); // as in `Connection::abandon`
    }

    fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.moved.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(mut run) = self.next() {
            let (done, error) = self.carry_out(&mut run);
            let Some(sink) = self.sink.upgrade() else { return };
            let mut rest = run.split_off(done);
            if !run.is_empty() {
                sink.finished(self.index, run, None);
            }
            match error {
                None => {}
                // A full disk refuses new pages, but the stored pages can still be read.
                Some(error) if rest[0].verb == Verb::Put => {
                    sink.finished(self.index, rest, Some(error.to_string()));
                }
                Some(error) => {
                    let mut queue = self.lock();
                    queue.closed = true;
                    rest.extend(queue.runs.drain(..).flatten());
                    drop(queue);
                    return sink.lost(self.index, error.to_string(), rest);
                }
            }
        }
    }

    fn next(&self) -> Option<Vec<Order>> {
        let mut queue = self.lock();
        loop {
            if let Some(run) = queue.runs.pop_front() {
                return Some(run);
            }
            if queue.closed {
                return None;
            }
            queue = self.moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Executes the orders one after the other until the first error. Returns the number of executed orders,
    /// and the error.
    fn carry_out(&self, run: &mut [Order]) -> (usize, Option<io::Error>) {
        for (done, order) in run.iter_mut().enumerate() {
            if let Err(error) = self.carry_out_one(order) {
                return (done, Some(error));
            }
        }
        (run.len(), None)
    }

    fn carry_out_one(&self, order: &mut Order) -> io::Result<()> {
        let offset = u64::from(order.page) * order.bytes as u64;
        match order.verb {
            Verb::Put => self.file.write_all_at(order.source(), offset),
            Verb::Get => {
                self.file.read_exact_at(order.target(), offset)?;
                if Digest::of(order.source()) == order.digest {
                    return Ok(());
                }
                let why = format!("the bytes of page {} differ from those that were stored", order.page);
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
        }
    }
}
