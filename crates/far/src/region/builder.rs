//! The settings of far memory.

use super::FarMemory;
use crate::adopt;
use crate::client::{Connection, ConnectionOptions, Gone, Replica, Spill};
use crate::compression::Compression;
use crate::error::FarError;
use crate::fault::sigsegv::SigsegvBackend;
use crate::fault::userfault::UserfaultBackend;
use crate::fault::{Backend, Mechanism};
use crate::pager::{Pager, Plan, Server, least_slack};
use crate::replace::{Policy, Shape};
use crate::setters::setters;
use crate::signals_blocked::SignalsBlocked;
use crate::wire::auth::AuthKey;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Least number of local pages: one instruction can touch several at once.
const LEAST_PAGES: usize = 8;
/// Size of an aligned block of the region in bytes. A run is inside one block (`pager::core::runs`): larger
/// runs do not make sequential access faster.
const BLOCK: usize = 1 << 20;
/// Largest size of a cluster in bytes: the pages that one request fetches with a missed page. A transfer of
/// 16 KiB takes little longer than a transfer of 4 KiB.
const CLUSTER: usize = 16 << 10;
/// Divisor of the number of local pages: a run has at most this part of them.
const PARTS: usize = 8;
/// Frames for pages in transfer, in addition to those of local and leaving pages.
const SPARE_FRAMES: usize = 8;

/// Settings of a region.
#[derive(Clone, Debug)]
pub struct FarMemoryBuilder {
    bytes: usize,
    local: usize,
    page: usize,
    servers: Vec<String>,
    policy: Policy,
    mechanism: Mechanism,
    traced: bool,
    copies: usize,
    spill: Option<PathBuf>,
    reserve: Option<u64>,
    key: Option<AuthKey>,
    stall: Duration,
    prefetch: bool,
    compression: Compression,
    seed: u64,
    on_loss: fn(&str) -> !,
    adopted: Vec<Range<usize>>,
}

impl Default for FarMemoryBuilder {
    fn default() -> Self {
        Self {
            bytes: 0,
            local: 64 << 20,
            page: FarMemory::PAGE,
            servers: Vec::new(),
            policy: Policy::default(),
            mechanism: Mechanism::Auto,
            traced: false,
            copies: 1,
            spill: None,
            reserve: None,
            key: None,
            stall: Duration::from_secs(2),
            prefetch: true,
            compression: Compression::None,
            seed: 1,
            on_loss: abort,
            adopted: Vec::new(),
        }
    }
}

fn abort(message: &str) -> ! {
    crate::say(message);
    std::process::abort()
}

impl FarMemoryBuilder {
    setters! {
        /// Total size.
        bytes(bytes: usize) -> bytes = bytes;

        /// Largest size of the local part, including pages that are being paged out [default: 64 MiB].
        local(bytes: usize) -> local = bytes;

        /// Page size, a power of two from 4 KiB to 2 MiB [default: [`FarMemory::PAGE`]]. Sequential access
        /// transfers many pages at a time, so large pages do not make it faster. They make random access
        /// slower. Pages of 2 MiB are the system's huge pages.
        page(bytes: usize) -> page = bytes;
    }

    /// Memory servers, as `host:port`. With more than one copy or a spill file, a server that does not answer
    /// is lost from the start, and is used as soon as it answers.
    #[must_use]
    pub fn servers<S: Into<String>>(mut self, servers: impl IntoIterator<Item = S>) -> Self {
        self.servers = servers.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// Replacement policy [default: adaptive].
        policy(policy: Policy) -> policy = policy;

        /// Mechanism that pages in and out [default: the best available].
        mechanism(mechanism: Mechanism) -> mechanism = mechanism;

        /// Set if a process traces this one and its threads. Such a process may stop all threads and then
        /// read the memory, so no mechanism is used with which its system calls wait for a page [default:
        /// no].
        traced(traced: bool) -> traced = traced;

        /// Number of servers that hold each page that is paged out [default: 1].
        copies(copies: usize) -> copies = copies;

        /// A local file that also stores each page that is paged out. The file must not exist before. It is
        /// unlinked as soon as it is open.
        spill(path: impl Into<PathBuf>) -> spill = Some(path.into());

        /// Bytes that each server reserves from the start [default: its share of all pages]. If this is less
        /// than the share, a server may refuse a page later; the page then goes to another server.
        reserve(bytes: u64) -> reserve = Some(bytes);

        /// The authentication key of the servers.
        auth_key(key: AuthKey) -> key = Some(key);

        /// Time without a reply after which a server counts as lost [default: 2 s].
        stall(stall: Duration) -> stall = stall;

        /// Enables prefetching and transfers of many pages at a time [default: yes].
        prefetch(prefetch: bool) -> prefetch = prefetch;

        /// Compression of pages that leave the region but stay on this machine. They use at most half of the
        /// local memory [default: none].
        compression(compression: Compression) -> compression = compression;

        /// Seed of random policies.
        seed(seed: u64) -> seed = seed;
    }

    /// Function that ends the process when bytes are lost [default: prints the message to standard error and
    /// calls `abort`].
    #[must_use]
    pub fn on_loss(mut self, on_loss: fn(&str) -> !) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Adopts existing memory of the program, such as static arrays: the whole pages of this range of
    /// addresses become far memory in place and keep their bytes. Requires userfaultfd; other mechanisms
    /// leave the memory unchanged (see [`FarMemory::adopted`]).
    ///
    /// # Safety
    ///
    /// The range is private anonymous memory that can be read and written. No other thread uses it during
    /// [`build`](Self::build). It is not unmapped while the far memory exists, and not used afterward.
    #[must_use]
    pub unsafe fn adopt(mut self, addresses: Range<usize>) -> Self {
        self.adopted.push(addresses);
        self
    }

    /// Returns the number of pages of a run for `limit` local pages; 1 without prefetching.
    fn run(&self, limit: usize) -> usize {
        let most = (BLOCK / self.page).min(limit / PARTS).max(1);
        if self.prefetch { 1 << most.ilog2() } else { 1 }
    }

    /// Creates the region: connects to the servers, reserves memory there, and starts the threads.
    ///
    /// # Errors
    ///
    /// [`FarError`]: nothing stays allocated.
    pub fn build(self) -> Result<FarMemory, FarError> {
        let (pages, local) = self.check()?;
        let ranges = self.whole_pages();
        let kept = adopt::Kept::of(&ranges).map_err(FarError::Adopt)?;
        let made = self.build_over(pages, local, &ranges);
        if let Ok(memory) = &made
            && self.policy == Policy::Adaptive
        {
            memory.pager.calibrate();
        }
        // The adopted bytes are written back to their addresses, also if the memory did not become far
        // memory.
        // SAFETY: the caller of `adopt` guarantees that no thread uses the memory now.
        unsafe { kept.put_back() };
        made
    }

    /// Returns the address ranges of the whole pages in the memory to adopt.
    fn whole_pages(&self) -> Vec<Range<usize>> {
        let whole = |range: &Range<usize>| {
            let start = range.start.next_multiple_of(self.page);
            let bytes = range.end.saturating_sub(start) / self.page * self.page;
            start..start + bytes
        };
        self.adopted.iter().map(whole).filter(|range| !range.is_empty()).collect()
    }

    fn build_over(
        &self,
        region_pages: u32,
        local: usize,
        ranges: &[Range<usize>],
    ) -> Result<FarMemory, FarError> {
        let with = |adopted: &[Range<usize>]| {
            let more = adopted.iter().map(|range| range.len() / self.page).sum::<usize>();
            let pages = u32::try_from(more).ok().and_then(|more| region_pages.checked_add(more));
            pages.ok_or(FarError::Size { bytes: self.bytes, page_bytes: self.page })
        };
        // If the mechanism adopts less memory, the region is smaller, and the frames for the larger region
        // suffice.
        let frames = Budget::of(local, with(ranges)?, self.page).pages() + SPARE_FRAMES;
        let backend = self.choose(region_pages as usize * self.page, frames, ranges)?;
        let adopted = if backend.mechanism() == Mechanism::Sigsegv { Vec::new() } else { ranges.to_vec() };
        let pages = with(&adopted)?;
        let Budget { limit, slack } = Budget::of(local, pages, self.page);
        #[expect(clippy::cast_possible_truncation, reason = "at most the number of pages")]
        let shape = Shape { pages, frames: (limit + slack - least_slack(limit + slack, slack)) as u32 };
        let run = self.run(limit);
        let plan = Plan {
            pages,
            page_bytes: self.page,
            limit,
            slack,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the number of pages, which is at most 2^31, plus a few"
            )]
            frames: frames as u32,
            policy: self.policy.build(shape, self.seed),
            run,
            cluster: (CLUSTER / self.page).clamp(1, run),
            prefetch: self.prefetch,
            copies: self.copies,
            compression: self.compression,
            on_loss: self.on_loss,
        };
        let pager = Pager::new(Arc::clone(&backend), plan);
        // The new threads inherit the blocked signals: a signal handler of the program that touched far
        // memory in one of them would wait for itself.
        let _quiet = SignalsBlocked::new();
        let (replicas, servers) = self.replicas(&pager, pages)?;
        pager.start(replicas, servers).map_err(FarError::Threads)?;
        Ok(FarMemory { pager, backend, bytes: self.bytes, page: self.page, adopted })
    }

    /// Checks the settings, and returns the number of pages of the region and of local pages.
    fn check(&self) -> Result<(u32, usize), FarError> {
        if !self.page.is_power_of_two() || !(4 << 10..=2 << 20).contains(&self.page) {
            return Err(FarError::Page(self.page));
        }
        let size = || FarError::Size { bytes: self.bytes, page_bytes: self.page };
        let pages = u32::try_from(self.bytes.div_ceil(self.page)).map_err(|_| size())?;
        if pages == 0 || pages > 1 << 31 {
            return Err(size());
        }
        let local = self.local / self.page;
        if local < LEAST_PAGES {
            return Err(FarError::Local { local: self.local, least: LEAST_PAGES * self.page });
        }
        let servers = self.servers.len();
        if servers == 0 && self.spill.is_none() {
            return Err(FarError::Nowhere);
        }
        if servers > 15 || self.copies == 0 || servers > 0 && self.copies > servers {
            return Err(FarError::Copies { copies: self.copies, servers });
        }
        Ok((pages, local))
    }

    fn choose(
        &self,
        bytes: usize,
        frames: usize,
        adopted: &[Range<usize>],
    ) -> Result<Arc<dyn Backend>, FarError> {
        let one = [self.mechanism];
        let tried = if self.mechanism == Mechanism::Auto { &Mechanism::LADDER[..] } else { &one };
        let mut last = None;
        for &mechanism in tried {
            let made: io::Result<Arc<dyn Backend>> = match mechanism {
                _ if self.traced && mechanism.serves_system_calls() => Err(io::Error::other(
                    "a process traces this one, and its system calls would wait for pages while it stops the \
                     threads that fetch them",
                )),
                Mechanism::Sigsegv => SigsegvBackend::new(bytes, self.page, frames).map(|b| Arc::new(b) as _),
                _ => UserfaultBackend::new(mechanism, bytes, self.page, frames, adopted)
                    .map(|b| Arc::new(b) as _),
            };
            match made {
                Ok(backend) => return Ok(backend),
                Err(source) => last = Some(FarError::Mechanism { mechanism, source }),
            }
        }
        Err(last.expect("at least one was tried"))
    }

    fn replicas(
        &self,
        pager: &Arc<Pager>,
        pages: u32,
    ) -> Result<(Vec<Arc<dyn Replica>>, Vec<Server>), FarError> {
        let share = (u64::from(pages) * self.copies as u64).div_ceil(self.servers.len().max(1) as u64);
        #[expect(clippy::cast_possible_truncation, reason = "checked: at most 2 MiB")]
        let options = ConnectionOptions {
            page_bytes: self.page as u32,
            reserve_bytes: self.reserve.unwrap_or(share * self.page as u64),
            stall: self.stall,
            key: self.key.clone(),
            like: 0,
            alone: self.copies == 1 && self.spill.is_none(),
        };
        let mut replicas: Vec<Arc<dyn Replica>> = Vec::new();
        let mut servers = Vec::new();
        let closing = |replicas: &[Arc<dyn Replica>]| replicas.iter().for_each(|replica| replica.close());
        let mut missing = None;
        for (index, address) in self.servers.iter().enumerate() {
            match Connection::connect(address, index, &options, pager.sink()) {
                Ok(connection) => replicas.push(Arc::new(connection)),
                // Otherwise no program could start another one after the loss of a server.
                Err(error) if !options.alone && error.is_unanswered() => {
                    replicas.push(Arc::new(Gone(address.clone())));
                    missing = Some(error);
                }
                Err(error) => {
                    closing(&replicas);
                    return Err(error.into());
                }
            }
            servers.push(Server { address: address.clone(), options: options.clone() });
        }
        if let Some(error) = missing {
            if self.spill.is_none() && replicas.iter().all(|replica| replica.is_closed()) {
                return Err(error.into());
            }
            let reason = std::error::Error::source(&error).map_or(String::new(), |why| format!(": {why}"));
            crate::say(&format!("azekura far memory: begins without a server: {error}{reason}\n"));
        }
        if let Some(path) = &self.spill {
            match Spill::create(path, replicas.len(), pager.sink()) {
                Ok(spill) => replicas.push(Arc::new(spill)),
                Err(source) => {
                    closing(&replicas);
                    return Err(FarError::Spill { path: path.clone(), source });
                }
            }
        }
        Ok((replicas, servers))
    }
}

/// Largest number of bytes that are being paged out at once.
const LEAVING: usize = 32 << 20;

/// Split of local memory, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    /// Least number of pages for the program.
    limit: usize,
    /// Largest number of pages that are being paged out.
    slack: usize,
}

impl Budget {
    /// Splits `local` pages. If all pages fit, no page is ever paged out, and nothing is reserved for that.
    fn of(local: usize, pages: u32, page_bytes: usize) -> Self {
        let pages = pages as usize;
        if local >= pages {
            return Self { limit: pages, slack: 0 };
        }
        let slack = (local / 8).clamp(1, LEAVING / page_bytes);
        Self { limit: local - slack, slack }
    }

    fn pages(self) -> usize {
        self.limit + self.slack
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn if_all_pages_are_local_no_slack_is_reserved() {
        let of = |local, pages| Budget::of(local, pages, 1 << 20);
        assert_eq!(of(256, 256), Budget { limit: 256, slack: 0 });
        assert_eq!(of(1 << 30, 3), Budget { limit: 3, slack: 0 });
        assert_eq!(of(255, 256), Budget { limit: 255 - 31, slack: 31 });
        assert_eq!(of(8, 1000), Budget { limit: 7, slack: 1 });
        for local in 8..600 {
            assert!(of(local, 300).pages() <= local);
        }
    }
}
