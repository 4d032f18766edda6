//! The state of all pages, and faults: the effect of a touch on a page in each state (see `state`).
//!
//! | module | content |
//! |---|---|
//! | `arrivals` | pages that are paged in: requested, lost, received, predicted |
//! | `calibration` | cost of a fault without its handler |
//! | `departures` | pages that are paged out: chosen, sent, discarded |
//! | `fork` | the state in a child process |
//! | `replicas` | lost and reconnected replicas, repeated copies |
//! | `meter` | measured costs |
//! | `miss_curve` | how many misses more local memory would avoid |
//! | `open` | pages that the system allocates without faults as long as memory is free |
//! | `runs` | pages that are paged in and out together |
//! | `tier` | pages that stay on this machine, compressed |
//! | `unmanaged` | pages that leave far memory permanently |

mod arrivals;
pub(super) mod calibration;
mod clusters;
mod departures;
mod fork;
mod meter;
mod miss_curve;
#[cfg(all(test, not(loom)))]
mod model;
mod open;
pub(super) mod replicas;
mod runs;
pub(crate) mod slack;
mod tier;
mod unmanaged;

use super::frames::Frames;
use super::prefetch::Prefetch;
use super::state::{Entry, Replicas, State, Then, Touch};
use crate::client::Replica;
use crate::compression::Compression;
use crate::digest::Digest;
use crate::error::Loss;
use crate::fault::{Allow, Backend, Fault, Frame, is_held};
use crate::replace::list::PageList;
use crate::replace::{Access, AccessBits, PageNo, Replacement, Spent};
use crate::sparse::Sparse;
use crate::stats::{FarStats, MoreMemory};
use arrivals::Staged;
use clusters::Clusters;
pub(super) use meter::Meter;
use miss_curve::MissCurve;
use open::Open;
use slack::Slack;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tier::Tier;

/// Settings of a pager.
pub(crate) struct Plan {
    pub(crate) pages: u32,
    pub(crate) page_bytes: usize,
    /// Least number of pages that may be local. Together with `slack`, the largest number of leaving pages,
    /// it is the budget, and its split adapts to the program (see the module `slack`).
    pub(crate) limit: usize,
    pub(crate) slack: usize,
    pub(crate) frames: u32,
    /// Largest number of pages of a run; 1 disables runs.
    pub(crate) run: usize,
    /// Number of pages of a cluster: a power of two, at most the pages of a run; 1 disables clusters.
    pub(crate) cluster: usize,
    pub(crate) policy: Box<dyn Replacement>,
    pub(crate) prefetch: bool,
    pub(crate) copies: usize,
    pub(crate) compression: Compression,
    pub(crate) on_loss: fn(&str) -> !,
}

/// State of all pages, with the transitions between the states.
pub(super) struct Core {
    backend: Arc<dyn Backend>,
    pages: Sparse<Entry>,
    page_bytes: usize,
    zero: Digest,
    policy: Option<Box<dyn Replacement>>,
    /// Number of pages that are resident or armed.
    resident: usize,
    local: usize,
    leaving: usize,
    limit: usize,
    /// Value of `limit` without unmanaged and compressed pages.
    full_limit: usize,
    unmanaged: usize,
    slack: usize,
    /// Adapts `slack`; see the module `slack`.
    split: Slack,
    /// Largest number of pages of a run; see the module `runs`.
    run: usize,
    /// See the module `clusters`.
    clusters: Clusters,
    /// See the module `open`.
    open: Open,
    meter: Meter,
    curve: MissCurve,
    /// See the module `tier`.
    tier: Tier,
    frames: Frames,
    frame_count: u32,
    staged: VecDeque<Staged>,
    /// Number of prefetched pages in flight.
    guessed: usize,
    waiting: VecDeque<(u32, Touch)>,
    prefetch: Option<Prefetch>,
    replicas: Vec<Arc<dyn Replica>>,
    servers: usize,
    live: Replicas,
    /// Replicas that reported their loss; the maintenance thread tries to reconnect them.
    down: Replicas,
    /// Replicas that refused a page recently.
    full: Replicas,
    copies: usize,
    last_refusal: String,
    /// Pages with too few copies.
    recopy: PageList,
    recopying: usize,
    closing: bool,
    on_loss: fn(&str) -> !,
    stats: FarStats,
}

/// Access bits for the policy: the core without the policy.
struct Bits<'a>(&'a mut Core);

impl AccessBits for Bits<'_> {
    fn is_referenced(&self, page: PageNo) -> bool {
        matches!(self.0.pages[page.index()].state, State::Resident { .. })
    }

    fn is_modified(&self, page: PageNo) -> bool {
        matches!(
            self.0.pages[page.index()].state,
            State::Resident { dirty: true, .. } | State::Armed { dirty: true, .. }
        )
    }

    fn clear_referenced(&mut self, page: PageNo) {
        self.0.arm(page.0);
    }

    fn spent(&self) -> Spent {
        self.0.meter.spent()
    }
}

impl Core {
    pub(super) fn new(backend: Arc<dyn Backend>, plan: Plan) -> Self {
        let zero = Digest::of(&vec![0; plan.page_bytes]);
        let ahead = arrivals::most_ahead(plan.limit, plan.run);
        #[expect(clippy::cast_possible_truncation, reason = "a run is at most some hundred pages")]
        let prefetch = plan.prefetch.then(|| Prefetch::new(plan.run as u32, ahead as u32));
        let bytes = |pages: usize| (pages * plan.page_bytes) as u64;
        let split = Slack::new(plan.limit + plan.slack, plan.slack);
        let limit = plan.limit + plan.slack - split.least();
        Self {
            backend,
            pages: Sparse::new(
                Entry { state: State::Empty, digest: zero, holders: 0, lead: 0 },
                plan.pages as usize,
            ),
            page_bytes: plan.page_bytes,
            zero,
            policy: Some(plan.policy),
            resident: 0,
            local: 0,
            leaving: 0,
            limit,
            full_limit: limit,
            unmanaged: 0,
            slack: split.least(),
            split,
            run: plan.run,
            clusters: Clusters::new(plan.cluster, plan.run, plan.pages as usize, limit),
            open: Open::new(limit, plan.run),
            meter: Meter::new(),
            curve: MissCurve::new(limit),
            tier: Tier::new(plan.compression, plan.page_bytes),
            frames: Frames::new(plan.frames),
            frame_count: plan.frames,
            staged: VecDeque::new(),
            guessed: 0,
            waiting: VecDeque::new(),
            prefetch,
            replicas: Vec::new(),
            servers: 0,
            live: 0,
            down: 0,
            full: 0,
            copies: plan.copies,
            last_refusal: "all are lost".into(),
            recopy: PageList::new(plan.pages),
            recopying: 0,
            closing: false,
            on_loss: plan.on_loss,
            stats: FarStats {
                region_bytes: bytes(plan.pages as usize),
                local_bytes: bytes(plan.limit + plan.slack),
                page_bytes: plan.page_bytes as u64,
                ..FarStats::default()
            },
        }
    }

    /// Sets the replicas: the servers, followed by the spill file if there is one.
    pub(super) fn begin(&mut self, replicas: Vec<Arc<dyn Replica>>, servers: usize) {
        for (index, replica) in replicas.iter().enumerate() {
            // A replica that was lost after it connected reports that itself. The maintenance thread tries to
            // reconnect it.
            *if replica.is_closed() { &mut self.down } else { &mut self.live } |= 1 << index;
        }
        self.replicas = replicas;
        self.servers = servers;
    }

    pub(super) fn replicas(&self) -> Vec<Arc<dyn Replica>> {
        self.replicas.clone()
    }

    pub(super) fn end(&mut self) -> Vec<Arc<dyn Replica>> {
        self.closing = true;
        std::mem::take(&mut self.replicas)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns the counters, with the current number of pages with too few copies.
    pub(super) fn stats(&self) -> FarStats {
        // The bytes of pages in these two states are only at the holders. In all other states the bytes are
        // local.
        let is_there = |state| matches!(state, State::Away | State::Coming { .. });
        let is_thin = |entry: &&Entry| is_there(entry.state) && self.is_thin(entry.holders);
        FarStats {
            thin_pages: self.pages.iter().filter(is_thin).count() as u64,
            compressed_bytes: self.tier.bytes() as u64,
            ..self.stats
        }
    }

    /// Returns the additional local memory that would have avoided misses.
    pub(super) fn more_memory(&self) -> MoreMemory {
        let bytes = |pages: usize| (pages * self.page_bytes) as u64;
        MoreMemory { half: self.curve.more_for(50).map(bytes), most: self.curve.more_for(90).map(bytes) }
    }

    /// Returns the size of all frames in bytes.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_count as usize * self.page_bytes
    }

    /// Reports a loss and ends the process, because the program would otherwise read wrong bytes.
    pub(super) fn stop_program(&self, loss: &Loss) -> ! {
        let range = loss.pages().map(|(page, count)| {
            let from = self.backend.address(page) as usize;
            format!(" (addresses {from:#x}..{:#x})", from + count * self.page_bytes)
        });
        (self.on_loss)(&format!("azekura far memory: {loss}{}\n", range.unwrap_or_default()))
    }

    pub(super) fn answer(&mut self, fault: Fault) {
        self.stats.faults += 1;
        self.touched(fault.page, Touch::now(fault.access));
        self.work_ahead();
        let local = ((self.local + self.leaving) * self.page_bytes + self.tier.bytes()) as u64;
        self.stats.peak_local_bytes = self.stats.peak_local_bytes.max(local);
    }

    fn touched(&mut self, page: u32, now: Touch) {
        match self.pages[page as usize].state {
            State::Resident { writable, dirty } => self.touched_resident(page, now, writable, dirty),
            State::Armed { frame, dirty } => self.touched_armed(page, now, frame, dirty),
            State::Staged { .. } => self.touched_staged(page, now),
            State::Empty if self.is_empty(page) => self.touched_empty(page, now),
            // The fault happened before the span of the page was opened.
            State::Open => self.backend.wake(page..page + 1),
            State::Away => self.touched_away(page, now),
            State::Compressed => self.touched_compressed(page, now),
            State::Coming { frame, touch, then } => {
                if touch.is_none() && then == Then::Use {
                    self.guessed -= 1;
                    self.stats.prefetch_hits += 1;
                }
                let touch = Some(Touch::join(touch, now));
                self.pages[page as usize].state = State::Coming { frame, touch, then };
                if then == Then::Use {
                    let guess = self.follow(page);
                    self.look_ahead(guess);
                }
            }
            State::Leaving { frame, touch, out, discard } => {
                let touch = Some(Touch::join(touch, now));
                self.pages[page as usize].state = State::Leaving { frame, touch, out, discard };
            }
            State::Empty | State::Unmanaged => self.touched_unmanaged(page),
            State::Lost => self.stop_program(&Loss::Page { page }),
        }
    }

    /// Handles a fault on a resident page: a first write, a page with holes, or a fault that was already
    /// handled for another thread.
    fn touched_resident(&mut self, page: u32, touch: Touch, writable: bool, dirty: bool) {
        if touch.access == Access::Write && !(writable && dirty) {
            let mut pages = page..page + 1;
            if !writable {
                pages = self.members(page);
                self.check(page, "writable", self.backend.open(pages.clone(), Allow::ReadWrite));
                self.stats.bits_set += 1;
            }
            for page in pages.clone() {
                self.pages[page as usize].state = State::Resident { writable: true, dirty: true };
            }
            self.stats.set_ns += self.meter.set(touch.since);
            self.backend.wake(pages);
        } else {
            match self.backend.mend(page) {
                Ok(false) => {}
                Ok(true) => self.pages[page as usize].state = State::Resident { writable, dirty: true },
                Err(source) => self.stop_program(&Loss::Map { page, how: "whole", source }),
            }
            self.backend.wake(page..page + 1);
        }
    }

    fn touched_armed(&mut self, page: u32, touch: Touch, frame: Option<u32>, dirty: bool) {
        let run = self.members(page);
        let dirty = dirty || touch.access == Access::Write;
        let allow = self.allow(dirty);
        match frame {
            Some(_) => self.show(&self.with_frames(run.clone()), allow),
            None => self.check(page, "again", self.backend.open(run.clone(), allow)),
        }
        for page in run.clone() {
            // Another page of the run may have been written before the run was armed.
            let State::Armed { dirty: before, .. } = self.pages[page as usize].state else {
                unreachable!("RUN-2: what came together is armed together")
            };
            let writable = allow == Allow::ReadWrite;
            self.pages[page as usize].state = State::Resident { writable, dirty: dirty || before };
        }
        self.backend.wake(run);
        let lead = PageNo(self.pages[page as usize].lead);
        self.with_policy(|policy, bits| policy.referenced(lead, touch.access, bits));
        self.stats.bits_set += 1;
        self.stats.set_ns += self.meter.set(touch.since);
    }

    fn touched_staged(&mut self, page: u32, touch: Touch) {
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.was_right();
        }
        self.meter.came(touch.since);
        let guess = self.follow(page);
        let came = self.come(page, touch.access);
        self.look_ahead(guess.map(|guess| guess.behind(came)));
    }

    fn touched_away(&mut self, page: u32, touch: Touch) {
        if !self.make_frame_free(Some(page)) {
            return self.waiting.push_back((page, touch));
        }
        self.stats.swap_ins += 1;
        let more = self.curve.missed(page);
        self.tier.missed(more, false);
        let pages = self.cluster(page);
        self.guessed += pages.len() - 1;
        self.stats.prefetches += pages.len() as u64 - 1;
        self.fetch(&pages, Some((page, touch)), Then::Use);
        let guess = self.follow(page);
        self.look_ahead(guess);
    }

    /// Retries the faults that found no free frame.
    pub(super) fn serve_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            if let Some((page, touch)) = self.waiting.pop_front() {
                self.touched(page, touch);
            }
        }
    }

    fn allow(&self, dirty: bool) -> Allow {
        let asked = || self.policy.as_ref().is_some_and(|policy| policy.wants_modified());
        let tells = self.backend.tells_every_write() || asked();
        if dirty || !tells { Allow::ReadWrite } else { Allow::Read }
    }

    /// Makes pages resident from their frames. The pages are adjacent, and `touched` is one of them.
    fn make_resident(&mut self, pages: &[(u32, u32)], touched: u32, access: Access) {
        let dirty = access == Access::Write;
        let allow = self.allow(dirty);
        self.show(pages, allow);
        for &(page, _) in pages {
            let entry = &mut self.pages[page as usize];
            entry.state = State::Resident { writable: allow == Allow::ReadWrite, dirty };
            entry.lead = touched;
            self.curve.forget(page);
        }
        self.backend.wake(pages[0].0..pages[pages.len() - 1].0 + 1);
        self.resident += pages.len();
        self.with_policy(|policy, bits| policy.page_in(PageNo(touched), access, bits));
    }

    fn show(&mut self, pages: &[(u32, u32)], allow: Allow) {
        for run in runs::side_by_side(pages) {
            let frames = run.frame..run.frame + run.len;
            match self.backend.map_in(run, allow) {
                Ok(Frame::Full) => frames.for_each(|frame| self.free(frame)),
                Ok(Frame::Empty) => frames.for_each(|frame| self.frames.give_empty(frame)),
                Err(source) => self.stop_program(&Loss::Map { page: run.page, how: "in", source }),
            }
        }
    }

    fn check(&self, page: u32, how: &'static str, done: std::io::Result<()>) {
        if let Err(source) = done {
            self.stop_program(&Loss::Map { page, how, source });
        }
    }

    /// Frees a frame that has memory. Memory of free frames beyond the budget is returned to the system.
    fn free(&mut self, frame: u32) {
        self.frames.give_full(frame);
        while self.frames.full() + self.local + self.leaving > self.limit + self.slack {
            let Some(frame) = self.frames.surplus() else { return };
            self.backend.empty(frame);
            self.frames.give_empty(frame);
        }
    }

    fn with_policy<R>(&mut self, ask: impl FnOnce(&mut dyn Replacement, &mut dyn AccessBits) -> R) -> R {
        let mut policy = self.policy.take().expect("a policy does not call the pager");
        let answer = ask(&mut *policy, &mut Bits(self));
        self.policy = Some(policy);
        answer
    }

    /// Clears the reference bit of a page and of the pages that came with it.
    fn arm(&mut self, page: u32) {
        let State::Resident { .. } = self.pages[page as usize].state else { return };
        let since = Instant::now();
        let run = self.members(page);
        let backend = Arc::clone(&self.backend);
        let frames = self.frames.take_empty_run(run.len(), |frame| backend.empty(frame));
        let pages: Vec<(u32, u32)> = run.clone().zip(frames).collect();
        let all = run;
        for run in runs::side_by_side(&pages) {
            let moved = match backend.arm_access(run) {
                Ok(moved) => moved,
                Err(error) if is_held(&error) => {
                    self.put_back(&pages, run.page);
                    // Its accesses are not reported, so it is a victim as if it were not accessed.
                    for page in all.clone() {
                        self.pages[page as usize].state = State::Armed { frame: None, dirty: true };
                    }
                    self.backend.wake(all);
                    break;
                }
                Err(source) => self.stop_program(&Loss::Map { page, how: "out", source }),
            };
            for (page, frame) in (run.page..).zip(run.frame..run.frame + run.len) {
                let State::Resident { dirty, .. } = self.pages[page as usize].state else {
                    unreachable!("RUN-2: what came together is armed together")
                };
                if !moved {
                    self.frames.give_empty(frame);
                }
                self.pages[page as usize].state = State::Armed { frame: moved.then_some(frame), dirty };
            }
        }
        self.stats.bits_cleared += 1;
        self.stats.clear_ns += self.meter.cleared(since);
    }

    pub(super) fn timer(&self) -> Option<Duration> {
        self.policy.as_ref().and_then(|policy| policy.timer())
    }

    pub(super) fn on_timer(&mut self) {
        self.with_policy(|policy, bits| policy.on_timer(bits));
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
