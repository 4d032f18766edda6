//! Model test of the pager's transitions in random orders. Threads touch pages; replicas reply, refuse, are
//! lost and reconnect; memory is discarded. Each step is drawn at random. After every step PAGER-1, PAGER-2,
//! PAGER-4 and PAGER-5 must hold, and at the end no thread may wait.
//!
//! The model has no real threads: the pager works under one mutex, so every run of real threads is one of
//! these orders of calls. [`Machine`] simulates the operating system, and [`Store`] simulates a memory
//! server. Both check the requests that they get.

mod closing;
pub(super) mod machine;
mod store;

use super::{Core, Plan};
use crate::client::{Replica, Sink};
use crate::compression::Compression;
use crate::digest::{Digest, is_zero};
use crate::fault::{Backend, Fault};
use crate::pager::Pager;
use crate::pager::state::{Entry, State};
use crate::replace::{Access, Policy, Shape};
use machine::Machine;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use store::Store;

pub(super) const PAGE: usize = 256;
const PAGES: u32 = 24;
const THREADS: usize = 3;
const STEPS: usize = 600;

/// Injected faults and the configured protection against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// One server is lost at a time, at any time after all pages had two copies (PAGER-5).
    Copies,
    /// Servers are lost at any time; the spill file is never lost.
    Spill,
    /// Servers are lost at any time, and pages are lost with them.
    None,
}

/// Next action of a thread of the program.
#[derive(Clone, Copy, Debug)]
struct Touch {
    page: u32,
    access: Access,
    /// State of a blocked thread: `true` after its fault was reported to the pager. `None` if the thread is
    /// not blocked.
    stopped: Option<bool>,
}

struct World {
    rng: Xoshiro256PlusPlus,
    care: Care,
    machine: Arc<Machine>,
    pager: Arc<Pager>,
    stores: Vec<Arc<Store>>,
    servers: usize,
    slack: usize,
    threads: [Option<Touch>; THREADS],
    writes: u64,
    /// Set if all servers were connected, no page had too few copies, and no server was lost since then.
    whole: bool,
    /// A server that accepts no more orders, of which the pager was not informed.
    shut: Option<usize>,
}

fn lost(message: &str) -> ! {
    panic!("LOST {message}")
}

impl World {
    fn new(seed: u64, care: Care) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let servers = if care == Care::Copies { 3 } else { rng.random_range(1..=3) };
        let limit: usize = rng.random_range(3..=12);
        let slack = rng.random_range(1..=3);
        let frames = limit + slack + 8;
        // The default policy is chosen more often, because it is the most complex.
        let policies = [Policy::default(), *Policy::ALL.choose(&mut rng).expect("there are policies")];
        let policy = *policies.choose(&mut rng).expect("two");
        let copies = if care == Care::Copies { 2 } else { 1 };
        let machine = Arc::new(Machine::new(rng.random(), PAGES as usize, frames, rng.random()));
        let shape = Shape { pages: PAGES, frames: (limit + slack - 1) as u32 };
        let run = *[1, 2, 4, 8].choose(&mut rng).expect("there are some");
        let plan = Plan {
            pages: PAGES,
            page_bytes: PAGE,
            limit,
            slack,
            frames: frames as u32,
            run,
            cluster: 1 << rng.random_range(0..=run.ilog2()),
            policy: policy.build(shape, seed),
            prefetch: rng.random(),
            copies,
            compression: *[Compression::None, Compression::Lz4].choose(&mut rng).expect("two"),
            on_loss: lost,
        };
        let backend: Arc<dyn Backend> = machine.clone();
        let pager = Pager::new(backend, plan);
        let stores: Vec<_> = (0..servers + usize::from(care == Care::Spill)).map(|_| Store::new()).collect();
        pager.lock().begin(stores.iter().map(|store| store.clone() as Arc<dyn Replica>).collect(), servers);
        Self {
            rng,
            care,
            machine,
            pager,
            stores,
            servers,
            slack,
            threads: [None; THREADS],
            writes: 0,
            whole: false,
            shut: None,
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..45 => self.run_thread(),
            45..60 => self.tell_fault(),
            60..92 => self.answer_order(),
            92..95 if self.rng.random_ratio(1, 50) => self.unmanage(),
            92..95 => self.give_back(),
            95..97 => self.look_after(),
            97 => self.lose_server(),
            98 => self.regain_server(),
            _ => self.pager.lock().on_timer(),
        }
        self.check();
    }

    /// Continues a thread: it touches its page, or blocks at it.
    fn run_thread(&mut self) {
        let number = self.rng.random_range(0..THREADS);
        let touch = self.threads[number].unwrap_or_else(|| {
            let page = if self.rng.random_ratio(1, 3) {
                (self.writes as u32 + 1) % PAGES
            } else {
                self.rng.random_range(0..PAGES)
            };
            let access = if self.rng.random() { Access::Write } else { Access::Read };
            Touch { page, access, stopped: None }
        });
        let woken = self.machine.was_woken(number);
        if touch.stopped.is_some() && !woken {
            return;
        }
        self.writes += 1;
        let done = self.machine.touch(touch.page, touch.access, self.writes);
        self.threads[number] = if done {
            None
        } else {
            self.machine.waits(number, touch.page);
            Some(Touch { stopped: Some(false), ..touch })
        };
    }

    /// Reports a fault to the pager.
    fn tell_fault(&mut self) {
        let unreported = |touch: &&mut Touch| touch.stopped == Some(false);
        let mut unreported: Vec<&mut Touch> = self.threads.iter_mut().flatten().filter(unreported).collect();
        if unreported.is_empty() {
            return;
        }
        let number = self.rng.random_range(0..unreported.len());
        let touch = &mut *unreported[number];
        touch.stopped = Some(true);
        let fault = Fault { page: touch.page, access: touch.access };
        self.pager.lock().answer(fault);
    }

    /// Executes one run of orders of a replica.
    fn answer_order(&mut self) {
        let index = self.rng.random_range(0..self.stores.len());
        if self.shut == Some(index) {
            return;
        }
        // With two copies only the first server ever refuses. The other two always have memory; one of them
        // may be lost.
        let may_refuse = match self.care {
            Care::Copies => index == 0,
            Care::Spill => index < self.servers,
            Care::None => false,
        } && self.rng.random_ratio(1, 30);
        let takes = if may_refuse { self.rng.random_range(0..4) } else { usize::MAX };
        for (part, refused) in self.stores[index].answer(self.rng.random(), takes) {
            self.pager.finished(index, part, refused);
        }
    }

    /// Discards a page that no thread of the program is touching.
    fn give_back(&mut self) {
        let page = self.rng.random_range(0..PAGES);
        let is_unmanaged = self.machine.unmanaged().has(page);
        if is_unmanaged || self.threads.iter().flatten().any(|touch| touch.page == page) {
            return;
        }
        self.machine.given_back(page);
        self.pager.discard(page, 1);
    }

    /// Unmanages pages, as for a call that only the kernel can execute. Pages that are paged out stay,
    /// because the thread would touch them first.
    fn unmanage(&mut self) {
        let page = self.rng.random_range(0..PAGES - 2);
        let mut core = self.pager.lock();
        if core.stats().unmanaged_bytes < u64::from(PAGES / 8) * PAGE as u64 {
            let _ = core.unmanage(page..page + 3);
        }
    }

    /// Does the periodic work of the maintenance thread.
    fn look_after(&mut self) {
        self.pager.count_unmanaged();
        let mut core = self.pager.lock();
        core.recopy();
        core.serve_waiting();
        let bytes = self.machine.unmanaged_bytes(PAGE);
        assert_eq!(core.unmanaged * PAGE, bytes, "UNMANAGED-3");
    }

    /// Loses a server in two steps: first it accepts no more orders, later the pager is informed.
    fn lose_server(&mut self) {
        if self.shut.is_some() {
            return self.tell_loss();
        }
        let index = self.rng.random_range(0..self.servers);
        if self.stores[index].is_closed() || self.care == Care::Copies && !self.whole {
            return;
        }
        self.whole = false;
        self.stores[index].shut();
        self.shut = Some(index);
        if self.rng.random() {
            self.tell_loss();
        }
    }

    fn tell_loss(&mut self) {
        let Some(index) = self.shut.take() else { return };
        let orders = self.stores[index].lose();
        self.pager.lost(index, "a random loss".into(), orders);
    }

    fn regain_server(&mut self) {
        let lost = self.pager.lock().lost_servers();
        for index in lost {
            self.stores[index] = Store::new();
            let store: Arc<dyn Replica> = self.stores[index].clone();
            assert!(self.pager.lock().regained(index, store));
        }
    }

    fn check(&mut self) {
        let is_whole = self.is_whole() && self.shut.is_none();
        assert!(
            is_whole || !self.whole || self.care != Care::Copies,
            "PAGER-5: no server was lost, and a page has too few copies again"
        );
        self.whole = is_whole;
        let core = self.pager.lock();
        check_counts(&core, self.slack);
        core.check_tier();
        self.check_frames(&core);
        for page in 0..PAGES {
            self.check_bytes(&core, page);
            check_run(&core, page);
        }
        let moves = core.leaving > 0 || core.pages.iter().any(|e| matches!(e.state, State::Coming { .. }));
        assert!(core.waiting.is_empty() || moves, "PAGER-4: {:?} wait for nothing", core.waiting);
    }

    /// Returns `true` if, according to the reported counters, any one server could be lost.
    fn is_whole(&self) -> bool {
        let core = self.pager.lock();
        core.down == 0 && core.stats().thin_pages == 0
    }

    /// Checks that a frame belongs to at most one page or is free.
    fn check_frames(&self, core: &Core) {
        let mut used = vec![0; self.machine.frames()];
        for Entry { state, .. } in core.pages.iter() {
            if let State::Coming { frame, .. }
            | State::Staged { frame }
            | State::Armed { frame: Some(frame), .. }
            | State::Leaving { frame, .. } = state
            {
                used[*frame as usize] += 1;
            }
        }
        core.frames.free().for_each(|frame| used[frame as usize] += 1);
        assert!(used.iter().all(|&uses| uses == 1), "frames are used so often: {used:?}");
    }

    /// Checks PAGER-2: the bytes that the program wrote last are where the page's state says.
    fn check_bytes(&self, core: &Core, page: u32) {
        let truth = self.machine.truth(page);
        let Entry { state, holders, digest, .. } = core.pages[page as usize];
        let is_there = match state {
            _ if self.machine.unmanaged().has(page) => self.machine.region_has(page, &truth),
            State::Unmanaged => false,
            State::Open | State::Resident { .. } | State::Armed { frame: None, .. } => {
                self.machine.region_has(page, &truth)
            }
            State::Armed { frame: Some(frame), .. } | State::Staged { frame } => {
                self.machine.frame_has(frame, &truth)
            }
            State::Leaving { discard: true, .. } => is_zero(&truth),
            State::Leaving { frame, .. } => self.machine.frame_has(frame, &truth),
            State::Empty => is_zero(&truth),
            State::Coming { then: crate::pager::state::Then::Discard, .. } => is_zero(&truth),
            State::Away | State::Coming { .. } => {
                let of_holder = |index: usize| self.stores[index].has(page, &truth);
                let shut = self.shut.map_or(0, |index| 1 << index);
                holders & (core.live | shut) == holders
                    && digest == Digest::of(&truth)
                    && (0..self.stores.len()).filter(|i| holders & 1 << i != 0).all(of_holder)
            }
            State::Compressed => digest == Digest::of(&truth) && core.is_compressed_as(page, &truth),
            State::Lost => self.care == Care::None,
        };
        assert!(is_there, "PAGER-2: page {page} is {state:?} at {holders:#b}, but {truth:?} is not there");
    }

    /// Completes all work in flight, and checks that no thread is blocked.
    fn complete_all(&mut self) {
        self.tell_loss();
        for _ in 0..100_000 {
            let open = self.stores.iter().any(|store| store.has_orders());
            let stopped = self.threads.iter().flatten().count();
            if !open && stopped == 0 {
                return self.check_nothing_is_kept_for_nobody();
            }
            match self.rng.random_range(0..4) {
                0 => self.tell_fault(),
                1 => self.look_after(),
                2 if stopped > 0 => {
                    let number = self.rng.random_range(0..THREADS);
                    if self.threads[number].is_some() {
                        self.run_thread_to_its_end(number);
                    }
                }
                _ => self.answer_order(),
            }
            self.check();
        }
        panic!("after 100,000 steps these threads still wait: {:?}", self.threads);
    }

    /// Checks that servers store only pages of which they are holders.
    fn check_nothing_is_kept_for_nobody(&self) {
        let core = self.pager.lock();
        for (index, store) in self.stores.iter().enumerate().take(self.servers) {
            for page in store.pages() {
                let holders = core.pages[page as usize].holders;
                assert!(
                    holders & 1 << index != 0,
                    "server {index} still has page {page}, whose holders are {holders:#b}"
                );
            }
        }
    }

    fn run_thread_to_its_end(&mut self, number: usize) {
        let Some(touch) = self.threads[number] else { return };
        if touch.stopped.is_some() && !self.machine.was_woken(number) {
            return;
        }
        self.writes += 1;
        if self.machine.touch(touch.page, touch.access, self.writes) {
            self.threads[number] = None;
        } else {
            self.machine.waits(number, touch.page);
            self.threads[number] = Some(Touch { stopped: Some(false), ..touch });
        }
    }
}

/// Checks PAGER-1, and that all counters are correct.
fn check_counts(core: &Core, slack: usize) {
    let count = |is: fn(&State) -> bool| core.pages.iter().filter(|entry| is(&entry.state)).count();
    let resident = count(|s| matches!(s, State::Resident { .. } | State::Armed { .. }));
    let staged = count(|s| matches!(s, State::Staged { .. }));
    let coming = count(|s| matches!(s, State::Coming { .. }));
    let leaving = count(|s| matches!(s, State::Leaving { .. }));
    assert_eq!(core.resident, resident, "resident");
    assert_eq!(core.staged.len(), staged, "staged");
    let open = count(|s| matches!(s, State::Open));
    assert_eq!(core.open_pages().count(), open, "open");
    assert_eq!(core.local, resident + staged + coming + open, "local");
    assert_eq!(core.leaving, leaving, "leaving");
    // UNMANAGED-2: after the limit shrank, excess local pages are paged out one after the other.
    let (local, limit) = (core.local, if core.unmanaged > 0 { core.full_limit } else { core.limit });
    assert!(
        local <= limit && leaving <= slack,
        "PAGER-1: {local} of {limit} local, {leaving} of {slack} leaving"
    );
    assert!(leaving <= core.slack, "SLACK-2: {leaving} of {} leaving", core.slack);
}

/// Checks RUN-1 and RUN-2.
fn check_run(core: &Core, page: u32) {
    let kind = |page: u32| match core.pages[page as usize].state {
        State::Resident { .. } => Some("resident"),
        State::Armed { .. } => Some("armed"),
        _ => None,
    };
    let lead = core.pages[page as usize].lead;
    if kind(page).is_some() {
        let run = core.members(lead);
        assert!(run.contains(&page) && run.contains(&lead), "RUN-2: {page} came with {lead}, of {run:?}");
        assert!(run.len() <= core.run && core.is_of_same_block(run.start, run.end - 1), "RUN-1: {run:?}");
        assert!(
            run.clone().all(|other| kind(other) == kind(page)),
            "RUN-2: {run:?} are not all {:?}",
            kind(page)
        );
        assert_eq!(core.pages[lead as usize].lead, lead, "RUN-2: of {run:?}");
    }
}

fn run(seed: u64, care: Care) {
    let mut world = World::new(seed, care);
    for _ in 0..STEPS {
        world.step();
    }
    world.complete_all();
}

/// Runs 400 seeds, or the number in `AZEKURA_FAR_SEEDS`. Returns the number of runs that ended with a loss.
fn run_all(care: Care) -> u32 {
    let seeds = std::env::var("AZEKURA_FAR_SEEDS").map_or(400, |seeds| seeds.parse().expect("a number"));
    let mut stopped = 0;
    for seed in 0..seeds {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed, care))) else { continue };
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        if care == Care::None && message.starts_with("LOST ") {
            stopped += 1;
            continue;
        }
        println!("seed {seed}, {care:?}");
        resume_unwind(panic);
    }
    stopped
}

#[test]
fn with_two_copies_no_order_of_events_loses_or_changes_a_byte_or_leaves_a_thread_waiting() {
    run_all(Care::Copies);
}

#[test]
fn with_a_spill_file_no_order_of_events_loses_or_changes_a_byte_or_leaves_a_thread_waiting() {
    run_all(Care::Spill);
}

#[test]
fn without_a_second_copy_the_program_is_stopped_before_it_reads_a_wrong_byte() {
    let stopped = run_all(Care::None);
    assert!(stopped > 100, "only {stopped} lost a page that they touched");
}

#[test]
fn a_prefetched_page_is_sent_again_before_a_drop_if_its_copy_was_lost() {
    let mut seen = 0;
    for seed in 0..6000 {
        let mut world = World::new(seed, Care::Copies);
        for _ in 0..STEPS {
            world.step();
            let mut core = world.pager.lock();
            let Some(page) = core.staged.front().map(|staged| staged.page as usize) else { continue };
            let is_alone = core.pages[page].holders.count_ones() == 1;
            if core.down == 0 && is_alone && core.drop_oldest_staged() {
                let state = core.pages[page].state;
                assert!(
                    matches!(state, State::Leaving { .. }),
                    "PAGER-5: seed {seed}, page {page} is {state:?}"
                );
                seen += 1;
                break;
            }
        }
        if seen == 5 {
            return;
        }
    }
    panic!("it came to that {seen} times only");
}

/// A region with one thread, and one server that replies at once.
struct Alone {
    machine: Arc<Machine>,
    pager: Arc<Pager>,
    store: Arc<Store>,
}

impl Alone {
    const REGION: u32 = 2048;
    const BUDGET: usize = 1024;

    fn new(run: usize, cluster: usize) -> Self {
        let frames = Self::BUDGET + 8;
        let machine = Arc::new(Machine::new(true, Self::REGION as usize, frames, 1));
        let shape = Shape { pages: Self::REGION, frames: Self::BUDGET as u32 };
        let plan = Plan {
            pages: Self::REGION,
            page_bytes: PAGE,
            limit: Self::BUDGET * 7 / 8,
            slack: Self::BUDGET / 8,
            frames: frames as u32,
            run,
            cluster,
            policy: Policy::Simple.build(shape, 1),
            prefetch: true,
            copies: 1,
            compression: Compression::None,
            on_loss: lost,
        };
        let (pager, store) = (Pager::new(machine.clone(), plan), Store::new());
        pager.lock().begin(vec![store.clone() as Arc<dyn Replica>], 1);
        Self { machine, pager, store }
    }

    fn write(&self, page: u32, value: u64) {
        while !self.machine.touch(page, Access::Write, value) {
            self.pager.lock().answer(Fault { page, access: Access::Write });
            while self.store.has_orders() {
                for (part, refused) in self.store.answer(true, usize::MAX) {
                    self.pager.finished(0, part, refused);
                }
            }
        }
    }
}

/// Prefetched pages of a stream that stops are not touched, and must leave when random misses need frames.
#[test]
fn pages_that_were_fetched_ahead_leave_before_resident_ones_when_nothing_touches_them() {
    let alone = Alone::new(64, 4);
    (0..Alone::REGION).for_each(|page| alone.write(page, 1));
    let waiting = || alone.pager.lock().staged.len();
    assert!((0..512).any(|page| {
        alone.write(page, 2);
        waiting() > 32
    }));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let before = alone.pager.lock().stats().swap_ins;
    while alone.pager.lock().stats().swap_ins < before + 200 {
        // Every other page, so that no stream begins.
        alone.write(rng.random_range(400..Alone::REGION / 2) * 2, 3);
    }
    assert!(waiting() < 16, "{} pages still wait", waiting());
}

/// Returns the numbers of page requests, fetched pages, and misses during `work`.
fn requests(alone: &Alone, work: impl FnOnce(&Alone)) -> (u64, u64, u64) {
    let before = alone.pager.lock().stats();
    work(alone);
    let after = alone.pager.lock().stats();
    let came = after.swap_ins + after.prefetches - before.swap_ins - before.prefetches;
    (after.fetch_requests - before.fetch_requests, came, after.swap_ins - before.swap_ins)
}

/// Half of the pages are local.
#[test]
fn the_unit_of_transfer_follows_the_pattern() {
    let alone = Alone::new(64, 4);
    (0..Alone::REGION).for_each(|page| alone.write(page, 1));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut random = |alone: &Alone| {
        (0..4000).for_each(|_| alone.write(rng.random_range(0..Alone::REGION), 2));
    };
    let (messages, pages, misses) = requests(&alone, &mut random);
    assert!(misses > 1000 && messages * 10 < misses * 12, "random: {messages} messages, {misses} misses");
    assert!(pages * 10 < misses * 15, "random: {pages} pages for {misses} misses");
    let sweep = |alone: &Alone| (0..3 * Alone::REGION).for_each(|at| alone.write(at % Alone::REGION, 3));
    let (messages, pages, _) = requests(&alone, sweep);
    assert!(pages > 1000 && pages >= 8 * messages, "sequential: {pages} pages in {messages} messages");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(4);
    let mut clustered = |alone: &Alone| {
        for _ in 0..2000 {
            let first = rng.random_range(0..Alone::REGION / 4) * 4;
            [2, 0, 3, 1].iter().for_each(|more| alone.write(first + more, 4));
        }
    };
    requests(&alone, &mut clustered);
    let (messages, pages, misses) = requests(&alone, &mut clustered);
    assert!(pages > 2000 && pages >= 3 * misses, "clustered: {pages} pages for {misses} misses");
    assert!(messages * 10 < misses * 13, "clustered: {messages} messages for {misses} misses");
    // The probes of each block detect that the pattern has changed.
    (0..4).for_each(|_| random(&alone));
    let (messages, pages, misses) = requests(&alone, &mut random);
    assert!(messages * 10 < misses * 12, "random again: {messages} messages, {misses} misses");
    assert!(pages * 10 < misses * 15, "random again: {pages} pages for {misses} misses");
}
