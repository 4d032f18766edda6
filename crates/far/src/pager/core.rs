//! Faults, arrivals, departures: how pages go from state to state (see `state`).

use super::frames::Frames;
use super::prefetch::{Guess, Prefetch};
use super::state::{Entry, Keepers, Out, State, Then, Touch};
use crate::client::{Keeper, Order, Verb};
use crate::digest::{Digest, is_zero};
use crate::error::Loss;
use crate::fault::{Allow, Backend, Fault, Frame};
use crate::replace::{Access, AccessBits, PageNo, Replacement};
use crate::stats::FarStats;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Copies that are made again at once.
const RECOPIES: usize = 4;

/// What a pager is made for.
pub(crate) struct Plan {
    pub(crate) pages: u32,
    pub(crate) page_bytes: usize,
    /// Pages that may be local, and pages that may be leaving.
    pub(crate) limit: usize,
    pub(crate) slack: usize,
    pub(crate) frames: u32,
    pub(crate) policy: Box<dyn Replacement>,
    /// Whether the policy looks at modified bits.
    pub(crate) wants_modified: bool,
    pub(crate) prefetch: bool,
    pub(crate) copies: usize,
    pub(crate) on_loss: fn(&str) -> !,
}

/// What is known of all pages, and what is done with them.
pub(super) struct Core {
    backend: Arc<dyn Backend>,
    pages: Vec<Entry>,
    page_bytes: usize,
    zero: Digest,
    policy: Option<Box<dyn Replacement>>,
    /// Pages that the policy knows.
    resident: usize,
    local: usize,
    leaving: usize,
    limit: usize,
    slack: usize,
    /// Kept free ahead of need.
    reserve: usize,
    tracks_writes: bool,
    frames: Frames,
    staged: VecDeque<u32>,
    /// Prefetched and on their way.
    guessed: usize,
    waiting: VecDeque<(u32, Access)>,
    prefetch: Option<Prefetch>,
    keepers: Vec<Arc<dyn Keeper>>,
    servers: usize,
    live: Keepers,
    /// Said themselves that they are lost; they may be asked anew.
    down: Keepers,
    /// Refused a page of late.
    full: Keepers,
    copies: usize,
    last_refusal: String,
    recopy: VecDeque<u32>,
    recopying: usize,
    closing: bool,
    on_loss: fn(&str) -> !,
    stats: FarStats,
}

/// The bits as a policy sees them: all but the policy itself.
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
}

impl Core {
    pub(super) fn new(backend: Arc<dyn Backend>, plan: Plan) -> Self {
        let zero = Digest::of(&vec![0; plan.page_bytes]);
        let tracks_writes = backend.tells_every_write() || plan.wants_modified;
        let bytes = |pages: usize| (pages * plan.page_bytes) as u64;
        Self {
            backend,
            pages: vec![Entry { state: State::Empty, digest: zero, holders: 0 }; plan.pages as usize],
            page_bytes: plan.page_bytes,
            zero,
            policy: Some(plan.policy),
            resident: 0,
            local: 0,
            leaving: 0,
            limit: plan.limit,
            slack: plan.slack,
            reserve: if plan.limit >= 32 { 2 } else { 0 },
            tracks_writes,
            frames: Frames::new(plan.frames),
            staged: VecDeque::new(),
            guessed: 0,
            waiting: VecDeque::new(),
            prefetch: plan.prefetch.then(Prefetch::new),
            keepers: Vec::new(),
            servers: 0,
            live: 0,
            down: 0,
            full: 0,
            copies: plan.copies,
            last_refusal: "all are lost".into(),
            recopy: VecDeque::new(),
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

    /// The keepers: servers first, then perhaps a spill file.
    pub(super) fn begin(&mut self, keepers: Vec<Arc<dyn Keeper>>, servers: usize) {
        self.live = keepers.iter().enumerate().fold(0, |set, (index, _)| set | 1 << index);
        self.keepers = keepers;
        self.servers = servers;
    }

    pub(super) fn end(&mut self) -> Vec<Arc<dyn Keeper>> {
        self.closing = true;
        std::mem::take(&mut self.keepers)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Says why, and ends the process: going on would mean wrong bytes.
    pub(super) fn stop_program(&self, loss: &Loss) -> ! {
        let message = format!("azekura far memory: {loss}\n");
        (self.on_loss)(&message)
    }

    // ---- faults

    pub(super) fn answer(&mut self, fault: Fault) {
        self.stats.faults += 1;
        self.touched(fault.page, fault.access);
        self.work_ahead();
    }

    fn touched(&mut self, page: u32, access: Access) {
        match self.pages[page as usize].state {
            State::Resident { writable, dirty } => self.touched_resident(page, access, writable, dirty),
            State::Armed { frame, dirty } => self.touched_armed(page, access, frame, dirty),
            State::Staged { frame } => self.touched_staged(page, access, frame),
            State::Empty => self.touched_empty(page, access),
            State::Away => self.touched_away(page, access),
            State::Coming { frame, touch, then } => {
                if touch.is_none() && then == Then::Use {
                    self.guessed -= 1;
                    self.stats.prefetch_hits += 1;
                }
                let touch = Some(Touch::join(touch, access));
                self.pages[page as usize].state = State::Coming { frame, touch, then };
                if then == Then::Use {
                    self.look_ahead(page);
                }
            }
            State::Leaving { frame, touch, out, discard } => {
                let touch = Some(Touch::join(touch, access));
                self.pages[page as usize].state = State::Leaving { frame, touch, out, discard };
            }
            State::Lost => self.stop_program(&self.loss_of(page)),
        }
    }

    /// A first write, or a fault that another thread's fault has already answered.
    fn touched_resident(&mut self, page: u32, access: Access, writable: bool, dirty: bool) {
        if access == Access::Write && !(writable && dirty) {
            let since = Instant::now();
            if !writable {
                self.check(page, "writable", self.backend.open(page, Allow::ReadWrite));
                self.stats.bits_set += 1;
            }
            self.pages[page as usize].state = State::Resident { writable: true, dirty: true };
            self.stats.set_ns += nanos(since);
        }
        self.backend.wake(page);
    }

    fn touched_armed(&mut self, page: u32, access: Access, frame: Option<u32>, dirty: bool) {
        let since = Instant::now();
        let dirty = dirty || access == Access::Write;
        let allow = self.allow(dirty);
        match frame {
            Some(frame) => self.show(page, frame, allow),
            None => self.check(page, "again", self.backend.open(page, allow)),
        }
        self.pages[page as usize].state = State::Resident { writable: allow == Allow::ReadWrite, dirty };
        self.backend.wake(page);
        self.with_policy(|policy, bits| policy.referenced(PageNo(page), access, bits));
        self.stats.bits_set += 1;
        self.stats.set_ns += nanos(since);
    }

    fn touched_staged(&mut self, page: u32, access: Access, frame: u32) {
        self.staged.retain(|&other| other != page);
        self.stats.prefetch_hits += 1;
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.was_right();
        }
        self.make_resident(page, access, frame);
        self.look_ahead(page);
    }

    fn touched_empty(&mut self, page: u32, access: Access) {
        if !self.make_room(Some(page)) {
            return self.waiting.push_back((page, access));
        }
        let frame = self.frames.take();
        // SAFETY: a free frame is ours, and as long as a page.
        unsafe { self.backend.frame(frame).write_bytes(0, self.page_bytes) };
        self.local += 1;
        self.stats.zero_fills += 1;
        self.make_resident(page, access, frame);
    }

    fn touched_away(&mut self, page: u32, access: Access) {
        if !self.make_room(Some(page)) {
            return self.waiting.push_back((page, access));
        }
        self.stats.swap_ins += 1;
        self.fetch(page, Some(Touch::now(access)), Then::Use);
        self.look_ahead(page);
    }

    /// Faults that found no room.
    pub(super) fn serve_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            if let Some((page, access)) = self.waiting.pop_front() {
                self.touched(page, access);
            }
        }
    }

    fn allow(&self, dirty: bool) -> Allow {
        if dirty || !self.tracks_writes { Allow::ReadWrite } else { Allow::Read }
    }

    /// The frame's bytes come to the program.
    fn make_resident(&mut self, page: u32, access: Access, frame: u32) {
        let dirty = access == Access::Write;
        let allow = self.allow(dirty);
        self.show(page, frame, allow);
        self.pages[page as usize].state = State::Resident { writable: allow == Allow::ReadWrite, dirty };
        self.backend.wake(page);
        self.resident += 1;
        self.with_policy(|policy, bits| policy.page_in(PageNo(page), access, bits));
    }

    fn show(&mut self, page: u32, frame: u32, allow: Allow) {
        match self.backend.map_in(page, frame, allow) {
            Ok(Frame::Full) => self.free(frame),
            Ok(Frame::Empty) => self.frames.give_empty(frame),
            Err(source) => self.stop_program(&Loss::Map { page, how: "in", source }),
        }
    }

    fn check(&self, page: u32, how: &'static str, done: std::io::Result<()>) {
        if let Err(source) = done {
            self.stop_program(&Loss::Map { page, how, source });
        }
    }

    /// A frame with memory in it is free; more of them than the budget has room for go back to the system.
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

    /// Clears a reference bit. If the system does not let us, the bit stays set.
    fn arm(&mut self, page: u32) {
        let State::Resident { dirty, .. } = self.pages[page as usize].state else { return };
        let since = Instant::now();
        let backend = Arc::clone(&self.backend);
        let frame = self.frames.take_empty(|frame| backend.empty(frame));
        let armed = match backend.arm_access(page, frame) {
            Ok(true) => Some(frame),
            Ok(false) => {
                self.frames.give_empty(frame);
                None
            }
            Err(source) => self.stop_program(&Loss::Map { page, how: "out", source }),
        };
        self.pages[page as usize].state = State::Armed { frame: armed, dirty };
        self.stats.bits_cleared += 1;
        self.stats.clear_ns += nanos(since);
    }

    pub(super) fn timer(&self) -> Option<Duration> {
        self.policy.as_ref().and_then(|policy| policy.timer())
    }

    pub(super) fn on_timer(&mut self) {
        self.with_policy(|policy, bits| policy.on_timer(bits));
    }

    // ---- coming

    /// Asks a holder for the page, for which there is room.
    fn fetch(&mut self, page: u32, touch: Option<Touch>, then: Then) {
        let frame = self.frames.take();
        self.local += 1;
        self.pages[page as usize].state = State::Coming { frame, touch, then };
        self.ask_for(page, frame);
    }

    fn ask_for(&mut self, page: u32, frame: u32) {
        loop {
            let Entry { holders, digest, .. } = self.pages[page as usize];
            if holders & self.live == 0 {
                return self.is_lost(page);
            }
            // Servers come before the spill file.
            let keeper = (holders & self.live).trailing_zeros() as usize;
            let order = Order {
                verb: Verb::Get,
                page,
                at: self.backend.frame(frame),
                bytes: self.page_bytes,
                digest,
            };
            match self.keepers[keeper].submit(order) {
                Ok(()) => return,
                // It is being lost; what it held is marked when it says so itself.
                Err(_) => self.live &= !(1 << keeper),
            }
        }
    }

    /// Nobody has a page that was to come.
    fn is_lost(&mut self, page: u32) {
        let State::Coming { frame, touch, then } = self.pages[page as usize].state else { return };
        if then != Then::Discard && touch.is_some() {
            self.stop_program(&self.loss_of(page));
        }
        self.local -= 1;
        self.forget_guess(then, touch);
        self.pages[page as usize].state = if then == Then::Discard { State::Empty } else { State::Lost };
        self.free(frame);
    }

    fn forget_guess(&mut self, then: Then, touch: Option<Touch>) {
        match then {
            Then::Use if touch.is_none() => self.guessed -= 1,
            Then::Recopy => self.recopying -= 1,
            _ => {}
        }
    }

    fn loss_of(&self, page: u32) -> Loss {
        let from = page as usize * self.page_bytes;
        Loss::Page { page, from, to: from + self.page_bytes }
    }

    /// The page is in its frame, and is what it was.
    pub(super) fn arrived(&mut self, page: u32) {
        let State::Coming { frame, touch, then } = self.pages[page as usize].state else { return };
        self.forget_guess(then, touch);
        match (then, touch) {
            (Then::Discard, _) => {
                self.local -= 1;
                self.make_empty(page);
                self.free(frame);
                if let Some(touch) = touch {
                    self.touched(page, touch.access);
                }
            }
            (_, Some(touch)) => {
                self.stats.swap_ns += nanos(touch.since);
                self.make_resident(page, touch.access, frame);
            }
            (Then::Use, None) => {
                self.pages[page as usize].state = State::Staged { frame };
                self.staged.push_back(page);
            }
            (Then::Recopy, None) => {
                self.local -= 1;
                self.stats.recopied += 1;
                let got = self.pages[page as usize].holders;
                self.send(page, frame, got);
            }
        }
    }

    /// What will be touched next is fetched now.
    fn look_ahead(&mut self, page: u32) {
        let Some(guess) = self.prefetch.as_mut().and_then(|prefetch| prefetch.touched(page)) else { return };
        let most = (self.limit / 4).min(16);
        for next in pages_of(guess) {
            let Some(entry) = u32::try_from(next).ok().and_then(|next| self.pages.get(next as usize)) else {
                return;
            };
            if !matches!(entry.state, State::Away) || entry.holders & self.live == 0 {
                continue;
            }
            if self.guessed + self.staged.len() >= most && !self.drop_oldest_staged() {
                return;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just looked up")]
            let next = next as u32;
            if !self.make_room(Some(next)) || !matches!(self.pages[next as usize].state, State::Away) {
                return;
            }
            self.guessed += 1;
            self.stats.prefetches += 1;
            self.fetch(next, None, Then::Use);
        }
    }

    // ---- leaving

    /// Room for one more local page; false if one must leave first that cannot yet.
    fn make_room(&mut self, incoming: Option<u32>) -> bool {
        while self.local >= self.limit {
            if !self.evict(incoming) {
                return false;
            }
        }
        true
    }

    /// Keeps some room ahead of need, so that a fault does not pay for the page that leaves.
    fn work_ahead(&mut self) {
        while self.reserve > 0 && self.local + self.reserve > self.limit && self.leaving < self.slack / 2 {
            if self.resident < self.limit / 2 || !self.evict(None) {
                return;
            }
        }
    }

    /// One page less is local.
    fn evict(&mut self, incoming: Option<u32>) -> bool {
        if self.leaving >= self.slack {
            return false;
        }
        if self.resident == 0 {
            return self.drop_oldest_staged();
        }
        let victim = self.with_policy(|policy, bits| policy.victim(incoming.map(PageNo), bits)).0;
        let (frame, dirty) = match self.pages[victim as usize].state {
            State::Armed { frame: Some(frame), dirty } => (frame, dirty),
            State::Armed { frame: None, dirty } | State::Resident { dirty, .. } => {
                let backend = Arc::clone(&self.backend);
                let frame = self.frames.take_empty(|frame| backend.empty(frame));
                self.check(victim, "out", backend.map_out(victim, frame));
                (frame, dirty)
            }
            _ => unreachable!("REPLACE-1: a victim is resident"),
        };
        self.with_policy(|policy, _| policy.page_out(PageNo(victim)));
        self.resident -= 1;
        self.local -= 1;
        self.left(victim, frame, dirty);
        true
    }

    /// A page has left the region for the frame: is there anything to send?
    fn left(&mut self, page: u32, frame: u32, dirty: bool) {
        let Entry { digest, holders, .. } = self.pages[page as usize];
        let held = holders != 0 || digest == self.zero;
        if held && !dirty && self.backend.tells_every_write() {
            self.stats.clean_drops += 1;
            return self.drop_unchanged(page, frame);
        }
        // SAFETY: FAULT-1: the frame has the page's last bytes, and nobody else knows it.
        let bytes = unsafe { std::slice::from_raw_parts(self.backend.frame(frame), self.page_bytes) };
        if is_zero(bytes) {
            self.stats.zero_drops += 1;
            self.make_empty(page);
            return self.free(frame);
        }
        let now = Digest::of(bytes);
        if holders != 0 && now == digest {
            self.stats.clean_drops += 1;
            return self.drop_unchanged(page, frame);
        }
        self.pages[page as usize].digest = now;
        self.stats.swap_outs += 1;
        self.send(page, frame, 0);
    }

    fn drop_unchanged(&mut self, page: u32, frame: u32) {
        self.goes_back(page);
        self.free(frame);
    }

    /// What is at its holders is all there is to know of the page.
    fn goes_back(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.pages[page as usize].state = if holders == 0 { State::Empty } else { State::Away };
        if holders != 0 && self.is_thin(holders) {
            self.recopy.push_back(page);
        }
    }

    /// Whether fewer servers have a page than should.
    fn is_thin(&self, holders: Keepers) -> bool {
        let servers: Keepers = (1 << self.servers) - 1;
        ((holders & servers & self.live).count_ones() as usize) < self.copies
    }

    /// What was done until now, and how many pages have too few copies.
    pub(super) fn stats(&self) -> FarStats {
        let is_thin = |entry: &&Entry| matches!(entry.state, State::Away) && self.is_thin(entry.holders);
        FarStats { thin_pages: self.pages.iter().filter(is_thin).count() as u64, ..self.stats }
    }

    /// The page is zeros, and nobody need keep it.
    fn make_empty(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.forget_at(page, holders);
        self.pages[page as usize] = Entry { state: State::Empty, digest: self.zero, holders: 0 };
    }

    fn forget_at(&mut self, page: u32, holders: Keepers) {
        for (index, keeper) in self.keepers.iter().enumerate() {
            if holders & self.live & 1 << index != 0 {
                keeper.forget(page);
                self.full &= !(1 << index);
            }
        }
    }

    fn drop_oldest_staged(&mut self) -> bool {
        let Some(page) = self.staged.pop_front() else { return false };
        let State::Staged { frame } = self.pages[page as usize].state else {
            unreachable!("the list has the pages in this state")
        };
        self.stats.prefetch_wasted += 1;
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.was_wrong();
        }
        self.local -= 1;
        self.unstage(page, frame);
        true
    }

    /// A page that was fetched and never touched goes back: its holders have it, unless they were lost meanwhile.
    fn unstage(&mut self, page: u32, frame: u32) {
        if self.pages[page as usize].holders == 0 {
            return self.send(page, frame, 0);
        }
        self.goes_back(page);
        self.free(frame);
    }

    /// Sends a page to keepers until enough have it; `got` have it already.
    fn send(&mut self, page: u32, frame: u32, got: Keepers) {
        self.leaving += 1;
        let out = Out { open: 0, got, tried: got };
        self.pages[page as usize].state = State::Leaving { frame, touch: None, out, discard: false };
        self.send_on(page);
    }

    /// Asks as many keepers as are still wanted; if none is, or none is left, the page is away.
    fn send_on(&mut self, page: u32) {
        let State::Leaving { frame, touch, mut out, discard } = self.pages[page as usize].state else {
            return;
        };
        while let Some(keeper) = self.next_keeper(page, out) {
            out.tried |= 1 << keeper;
            let digest = self.pages[page as usize].digest;
            let order = Order {
                verb: Verb::Put,
                page,
                at: self.backend.frame(frame),
                bytes: self.page_bytes,
                digest,
            };
            match self.keepers[keeper].submit(order) {
                Ok(()) => out.open |= 1 << keeper,
                Err(_) => self.live &= !(1 << keeper),
            }
        }
        self.pages[page as usize].state = State::Leaving { frame, touch, out, discard };
        if out.open == 0 {
            self.has_left(page);
        }
    }

    /// Who is asked next: those that hold an older version, then by page number, so that pages spread; the spill file always.
    fn next_keeper(&self, page: u32, out: Out) -> Option<usize> {
        let usable = self.live & !self.full & !out.tried;
        let servers: Keepers = (1 << self.servers) - 1;
        let spill = usable & !servers;
        let has = ((out.got | out.open) & servers).count_ones() as usize;
        if has < self.copies && usable & servers != 0 {
            let old = usable & servers & self.pages[page as usize].holders;
            if old != 0 {
                return Some(old.trailing_zeros() as usize);
            }
            return (0..self.servers)
                .map(|i| (page as usize + i) % self.servers)
                .find(|i| usable & 1 << i != 0);
        }
        (spill != 0).then(|| spill.trailing_zeros() as usize)
    }

    pub(super) fn put_answered(&mut self, page: u32, keeper: usize, refused: Option<String>) {
        let State::Leaving { out, .. } = &mut self.pages[page as usize].state else { return };
        out.open &= !(1 << keeper);
        match refused {
            None => out.got |= 1 << keeper,
            Some(why) => {
                self.full |= 1 << keeper;
                self.last_refusal = format!("{}: {why}", self.keepers[keeper].name());
            }
        }
        self.send_on(page);
    }

    /// All keepers that were asked have answered, and no more are wanted.
    fn has_left(&mut self, page: u32) {
        let State::Leaving { frame, touch, out, discard } = self.pages[page as usize].state else { return };
        if out.got == 0 && !discard {
            if self.closing {
                return;
            }
            self.stop_program(&Loss::NoTaker { page, why: self.last_refusal.clone() });
        }
        let old = self.pages[page as usize].holders & !out.got;
        self.forget_at(page, old);
        self.pages[page as usize].holders = out.got;
        self.leaving -= 1;
        if discard {
            self.make_empty(page);
        } else if let Some(touch) = touch
            && self.local < self.limit
        {
            self.local += 1;
            self.stats.swap_ns += nanos(touch.since);
            return self.make_resident(page, touch.access, frame);
        } else {
            self.goes_back(page);
        }
        self.free(frame);
        if let Some(touch) = touch {
            self.waiting.push_back((page, touch.access));
        }
    }

    /// Memory is given back: these pages are zeros.
    pub(super) fn discard(&mut self, first: u32, count: u32) {
        for page in first..first + count {
            self.discard_one(page);
        }
        self.serve_waiting();
    }

    fn discard_one(&mut self, page: u32) {
        match self.pages[page as usize].state {
            State::Resident { .. } => {
                self.check(page, "out", self.backend.discard(page));
                self.forget_resident(page);
            }
            State::Armed { frame, .. } => {
                match frame {
                    Some(frame) => self.free(frame),
                    None => self.check(page, "out", self.backend.discard(page)),
                }
                self.forget_resident(page);
            }
            State::Staged { frame } => {
                self.staged.retain(|&other| other != page);
                self.local -= 1;
                self.free(frame);
            }
            State::Coming { frame, touch, then } => {
                self.forget_guess(then, touch);
                self.pages[page as usize].state = State::Coming { frame, touch, then: Then::Discard };
                return;
            }
            State::Leaving { frame, touch, out, .. } => {
                self.pages[page as usize].state = State::Leaving { frame, touch, out, discard: true };
                return;
            }
            State::Empty | State::Away | State::Lost => {}
        }
        self.make_empty(page);
    }

    fn forget_resident(&mut self, page: u32) {
        self.with_policy(|policy, _| policy.page_out(PageNo(page)));
        self.resident -= 1;
        self.local -= 1;
    }

    // ---- keepers that are lost, and come back

    pub(super) fn keeper_lost(&mut self, keeper: usize, why: &str, orders: Vec<Order>) {
        if self.closing {
            return;
        }
        self.live &= !(1 << keeper);
        self.down |= 1 << keeper;
        self.stats.keepers_lost += 1;
        self.last_refusal = format!("{}: {why}", self.keepers[keeper].name());
        let alone = self.mark_lost(keeper);
        crate::say(&format!(
            "azekura far memory: {} is lost: {why}; {alone} pages had no other copy\n",
            self.keepers[keeper].name()
        ));
        for order in orders {
            match (order.verb, self.pages[order.page as usize].state) {
                (Verb::Get, State::Coming { frame, .. }) => self.ask_for(order.page, frame),
                (Verb::Put, State::Leaving { .. }) => self.put_failed(order.page, keeper),
                _ => {}
            }
        }
        self.serve_waiting();
    }

    fn put_failed(&mut self, page: u32, keeper: usize) {
        if let State::Leaving { out, .. } = &mut self.pages[page as usize].state {
            out.open &= !(1 << keeper);
        }
        self.send_on(page);
    }

    /// Nothing is at this keeper any more. Returns how many pages are nowhere else.
    fn mark_lost(&mut self, keeper: usize) -> usize {
        let bit = 1 << keeper;
        let mut alone = 0;
        for (page, entry) in self.pages.iter_mut().enumerate() {
            if let State::Leaving { out, .. } = &mut entry.state {
                out.got &= !bit;
            }
            if entry.holders & bit == 0 {
                continue;
            }
            entry.holders &= !bit;
            match entry.state {
                State::Away if entry.holders == 0 => {
                    alone += 1;
                    entry.state = State::Lost;
                }
                #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
                State::Away => self.recopy.push_back(page as u32),
                _ => {}
            }
        }
        alone
    }

    pub(super) fn lost_servers(&self) -> Vec<usize> {
        (0..self.servers).filter(|&index| self.down & 1 << index != 0).collect()
    }

    /// A server is there again, empty. False if the region is going away.
    pub(super) fn regained(&mut self, index: usize, keeper: Arc<dyn Keeper>) -> bool {
        if self.closing {
            return false;
        }
        crate::say(&format!("azekura far memory: {} is back\n", keeper.name()));
        self.keepers[index] = keeper;
        self.live |= 1 << index;
        self.down &= !(1 << index);
        self.full &= !(1 << index);
        self.stats.keepers_regained += 1;
        true
    }

    /// Gives pages with too few copies another, a few at a time; those that cannot have one yet wait for a server.
    pub(super) fn recopy(&mut self) {
        let possible = (self.live & ((1 << self.servers) - 1)).count_ones() as usize;
        while self.recopying < RECOPIES && self.copies.min(possible) > 1 {
            let Some(page) = self.recopy.pop_front() else { return };
            let Entry { state, holders, .. } = self.pages[page as usize];
            if !matches!(state, State::Away) || !self.is_thin(holders) || holders & self.live == 0 {
                continue;
            }
            if self.leaving >= self.slack || !self.make_room(None) {
                return self.recopy.push_front(page);
            }
            self.recopying += 1;
            self.fetch(page, None, Then::Recopy);
        }
    }
}

fn pages_of(guess: Guess) -> impl Iterator<Item = i64> {
    (1..=i64::from(guess.depth)).map(move |step| guess.from + guess.stride * step)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
