//! `DeviceFs`: a layer over any file system that takes as long as a modeled device.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | `DeviceModel`: the costs, and the devices by name |
//! | [`state`] | `DeviceState`: completion times of commands; pure, for simulators as well |
//! | here | `Device`: a state with a clock, shared by threads; `DeviceFs` and its files |
//!
//! The bytes go to the file system below (usually memory). Then the caller waits, in real time, for the
//! device:
//!
//! | call | charged as |
//! |---|---|
//! | [`File::write_at_sync`] | a write, then a flush |
//! | [`File::write_at`], [`File::write_zeroes`] of a direct file | a write |
//! | [`File::write_at`], [`File::write_zeroes`] of a buffered file | nothing yet |
//! | [`File::sync`] | a write of the unsynced bytes of a buffered file, then a flush |
//! | [`File::read_at`] | a read |
//! | [`File::discard`] | a write without bytes |
//! | [`File::allocate`] | nothing: a change of metadata, made durable by the next [`File::sync`] |
//! | [`Fs::sync_dir`] | a flush |
//!
//! Waits are exact to some microseconds: a thread sleeps, with its timer slack permanently set to one
//! nanosecond, and spins for the last part. With fewer processors than threads, waits are longer than in the
//! model.

pub mod model;
pub mod state;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use azekura_base::page::PageWord;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::sync::{Mutex, hint, machine, thread};
use azekura_trace::{Site, WaitKind, wait};

use crate::fs::{File, FileLock, Fs, OpenOptions};
pub use model::DeviceModel;
pub use state::{DeviceCounts, DeviceState};

static DEVICE: Site = Site::new("modeled device");
/// The last part of a wait, in which the thread spins: the largest lateness of a sleep.
const SPIN: Duration = Duration::from_micros(12);

/// A modeled device with a clock. One device may serve several file systems.
#[derive(Debug)]
pub struct Device {
    state: Mutex<DeviceState>,
    on_since: Instant,
    /// `true` if waits on a simulated machine use processor time as on a real one.
    spins_when_simulated: bool,
}

impl Device {
    /// Returns a device that is switched on now.
    #[must_use]
    pub fn new(model: DeviceModel) -> Arc<Self> {
        Arc::new(Self::switched_on(model, false))
    }

    /// Returns a device as [`new`](Self::new) does, for comparisons of a simulated machine with a real one.
    /// Waits on the simulated machine also end with a spin, instead of using no processor time.
    #[must_use]
    pub fn spinning(model: DeviceModel) -> Arc<Self> {
        Arc::new(Self::switched_on(model, true))
    }

    fn switched_on(model: DeviceModel, spins_when_simulated: bool) -> Self {
        Self { state: Mutex::new(DeviceState::new(model)), on_since: Instant::now(), spins_when_simulated }
    }

    /// Returns the counters of requests.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        self.state.lock().counts()
    }

    /// Returns the current costs.
    #[must_use]
    pub fn model(&self) -> DeviceModel {
        *self.state.lock().model()
    }

    /// Changes the costs of later commands.
    pub fn change(&self, model: DeviceModel) {
        self.state.lock().change(model);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.on_since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Executes a command and waits until it is complete. Returns the completion time by the device's clock.
    fn serve(&self, command: impl FnOnce(&mut DeviceState, u64) -> u64) -> u64 {
        let mut state = self.state.lock();
        let done = command(&mut state, self.now());
        drop(state);
        self.wait_until(done);
        done
    }

    /// Makes a write, and a flush that starts when the write is done.
    fn write(&self, bytes: u64, sync: bool) {
        let written = self.serve(|state, now| {
            let written = state.write(now, bytes);
            if sync && state.model().is_power_safe() { state.flush(written) } else { written }
        });
        // The flush is requested after the bytes are written, so that other requests are served meanwhile.
        if sync && !self.model().is_power_safe() {
            self.serve(|state, _| state.flush(written));
        }
    }

    fn wait_until(&self, done: u64) {
        let deadline = self.on_since + Duration::from_nanos(done);
        if Instant::now() >= deadline {
            return;
        }
        let _waiting = wait(&DEVICE, std::ptr::from_ref(self).addr(), WaitKind::Device);
        match machine::current() {
            // A simulated clock is exact.
            Some(_) if !self.spins_when_simulated => thread::sleep(left(deadline)),
            Some(_) => spin_simulated(deadline),
            None => sleep_exactly(deadline),
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Returns at `deadline` on a simulated machine, as [`sleep_exactly`] does on a real one.
fn spin_simulated(deadline: Instant) {
    let own = 0_u8;
    if left(deadline) > SPIN {
        thread::sleep(left(deadline) - SPIN);
    }
    while !left(deadline).is_zero() {
        // An access to shared memory, so that other threads run meanwhile.
        machine::reads(&own);
        hint::spin_loop();
    }
}

/// Returns at `deadline`, or a little later.
fn sleep_exactly(deadline: Instant) {
    thread_local! {
        static IS_EXACT: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_EXACT.replace(true) {
        // If this call is refused, sleeps end up to 50 µs late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
    loop {
        let left = left(deadline);
        if left.is_zero() {
            return;
        }
        if left > SPIN {
            std::thread::sleep(left.saturating_sub(SPIN));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// A file system on a modeled device.
///
/// ```
/// use azekura_io::device::{DeviceFs, DeviceModel};
/// use azekura_io::{Fs, MemFs, OpenOptions};
/// use std::sync::Arc;
///
/// let fs = DeviceFs::new(Arc::new(MemFs::new()), DeviceModel::plp());
/// let log = fs.open("log".as_ref(), OpenOptions::new().create(true))?;
/// log.write_at_sync(0, b"some twelve microseconds later")?;
/// assert_eq!(fs.device().counts().writes, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceFs {
    below: Arc<dyn Fs>,
    device: Arc<Device>,
}

impl DeviceFs {
    /// Returns the files of `below` on a new device.
    #[must_use]
    pub fn new(below: Arc<dyn Fs>, model: DeviceModel) -> Self {
        Self { below, device: Device::new(model) }
    }

    /// Returns the files of `below` on a device that other file systems may share.
    #[must_use]
    pub fn on(below: Arc<dyn Fs>, device: Arc<Device>) -> Self {
        Self { below, device }
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Fs for DeviceFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let below = self.below.open(path, options)?;
        let device = Arc::clone(&self.device);
        Ok(Arc::new(DeviceFile { below, device, direct: options.direct, owed: AtomicU64::new(0) }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.below.create_dir_all(path)
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.below.list_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.below.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.below.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.below.sync_dir(path)?;
        self.device.serve(|state, now| state.flush(now));
        Ok(())
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.below.lock_exclusive(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.below.lock_shared(path)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.below.absolute(path)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.below.canonical(path)
    }
}

/// A file on a modeled device.
#[derive(Debug)]
struct DeviceFile {
    below: Arc<dyn File>,
    device: Arc<Device>,
    /// `true` if the file was opened for direct I/O: each write is charged at once, even if the file system
    /// below is buffered.
    direct: bool,
    /// Bytes written to a buffered file since its last sync. Relaxed: a counter that nothing else depends on.
    owed: AtomicU64,
}

impl DeviceFile {
    fn charge_write(&self, bytes: u64) {
        if self.direct {
            self.device.write(bytes, false);
        } else {
            self.owed.fetch_add(bytes, Relaxed);
        }
    }
}

impl File for DeviceFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.below.read_at(offset, buf)?;
        self.device.serve(|state, now| state.read(now, read as u64));
        Ok(read)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        let read = self.below.read_words_at(offset, out)?;
        self.device.serve(|state, now| state.read(now, read as u64));
        Ok(read)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, buf)?;
        self.charge_write(buf.len() as u64);
        Ok(())
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.below.write_at_sync(offset, buf)?;
        self.device.write(buf.len() as u64, true);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()?;
        let owed = self.owed.swap(0, Relaxed);
        if owed > 0 {
            self.device.write(owed, true);
        } else {
            self.device.serve(|state, now| state.flush(now));
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.below.next_data(offset)
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        self.below.disk_bytes()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.write_zeroes(offset, len)?;
        self.charge_write(len);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.allocate(offset, len) // charges nothing: the default would charge a write of zeroes
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.discard(offset, len)?;
        self.device.serve(|state, now| state.write(now, 0)); // a command without bytes
        Ok(())
    }

    fn alignment(&self) -> usize {
        self.below.alignment()
    }

    fn is_direct(&self) -> bool {
        self.below.is_direct()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemFs;

    fn open(model: DeviceModel, direct: bool) -> (DeviceFs, Arc<dyn File>) {
        let fs = DeviceFs::new(Arc::new(MemFs::new()), model);
        let file = fs.open("f".as_ref(), OpenOptions::new().create(true).direct(direct)).expect("opens");
        (fs, file)
    }

    #[test]
    fn each_call_is_charged_as_the_table_says() {
        let (fs, file) = open(DeviceModel::free(), true);
        let counts = || fs.device().counts();
        file.write_at(0, &[1; 10]).expect("writes");
        assert_eq!((counts().writes, counts().bytes_written, counts().flushes_asked), (1, 10, 0));
        file.write_at_sync(0, &[1; 5]).expect("writes");
        file.write_zeroes(0, 7).expect("writes");
        assert_eq!((counts().writes, counts().bytes_written, counts().flushes_asked), (3, 22, 1));
        file.sync().expect("syncs");
        fs.sync_dir("/".as_ref()).expect("syncs");
        assert_eq!((counts().writes, counts().flushes_asked), (3, 3));
        assert_eq!(file.read_at(0, &mut [0; 100]).expect("reads"), 10);
        assert_eq!((counts().reads, counts().bytes_read), (1, 10));
        file.allocate(0, 1 << 20).expect("allocates");
        assert_eq!((counts().writes, counts().bytes_written, counts().flushes_asked), (3, 22, 3));
    }

    #[test]
    fn a_buffered_file_pays_when_it_is_synced() {
        let (fs, file) = open(DeviceModel::free(), false);
        file.write_at(0, &[1; 10]).expect("writes");
        file.write_at(0, &[1; 10]).expect("writes");
        assert_eq!(fs.device().counts().writes, 0);
        file.sync().expect("syncs");
        let counts = fs.device().counts();
        assert_eq!((counts.writes, counts.bytes_written, counts.flushes_asked), (1, 20, 1));
    }

    #[test]
    fn a_failed_call_costs_nothing() {
        let (fs, _file) = open(DeviceModel::free(), true);
        let file = fs.open("f".as_ref(), OpenOptions::new().read_only(true)).expect("opens");
        file.write_at_sync(0, b"x").expect_err("read-only");
        assert_eq!(fs.device().counts(), DeviceCounts::default());
    }

    #[test]
    fn threads_are_all_served_and_none_returns_before_the_device_is_done() {
        let model = DeviceModel { channels: 8, flush_ns: 20_000_000, ..DeviceModel::free() };
        let (fs, file) = open(model, true);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| file.write_at_sync(0, b"x").expect("writes"));
            }
        });
        let counts = fs.device().counts();
        assert_eq!((counts.writes, counts.flushes_asked), (4, 4));
        assert!(fs.device().now() >= counts.flushes_done * 20_000_000, "{counts:?}");
    }

    #[test]
    fn a_wait_is_never_shorter_than_the_model_says() {
        let model = DeviceModel { write_ns: 300_000, ..DeviceModel::free() };
        let (_fs, file) = open(model, true);
        for _ in 0..5 {
            let before = Instant::now();
            file.write_at_sync(0, b"x").expect("writes");
            assert!(before.elapsed() >= Duration::from_micros(299));
        }
    }
}
