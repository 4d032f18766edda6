//! The goals with their limits, compared with the measured values.

use super::report::{Row, Standing};
use super::unmodified::{Part, Seen};
use super::{Measured, Program};

/// Quoted speeds of UMap 2.1.0 at its best page sizes, on a file in memory (see [the lab](super)): megabytes
/// per second of a read-write and of a read-only sweep, and microseconds of a random access with pages of 64
/// KiB.
const UMAP: (f64, f64, f64) = (1831.0, 1799.0, 91.0);

impl Measured {
    /// Returns a row for each goal or part of a goal.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = self.sweeps();
        rows.extend([self.latency(), self.threads(), self.fits_row(), self.huge_row()]);
        rows.extend(self.unmodified.seen.iter().map(Seen::fits));
        rows.push(self.no_tuning());
        rows.extend(self.programs.iter().flat_map(|program| [program.tracking(), program.slowdown()]));
        rows.push(self.random());
        rows.push(self.kills_row());
        rows.extend(self.unmodified.seen.iter().map(Seen::identical));
        rows.extend(self.unmodified_not_seen());
        rows.extend([self.link_bound(), self.room_row(), self.tier_row()]);
        if self.quick {
            rows.iter_mut().filter(|row| row.note.is_empty()).for_each(|row| {
                row.note = "quick: too small to be quoted".into();
            });
        }
        rows
    }

    fn sweeps(&self) -> Vec<Row> {
        let ours = self.swept;
        let row = |what: &str, ours: f64, swap: Result<f64, &String>, umap: f64| {
            let beside_swap = match swap {
                Ok(swap) => judged(
                    "M1",
                    format!("{what} sweep of twice the local memory at 8 times the speed of swap on zram"),
                    format!("{ours:.0} MB/s, {:.1} times", ours / swap),
                    format!("zram {swap:.0} MB/s"),
                    ours >= 8.0 * swap,
                    "one copy out of the socket, one page of the program at a time",
                ),
                Err(why) => not_here(
                    "M1",
                    &format!("{what} sweep beside swap on zram"),
                    format!("{ours:.0} MB/s"),
                    why,
                ),
            };
            let umap = judged(
                "M1",
                format!("{what} sweep as fast as UMap at its best page size on a file in memory"),
                format!("{ours:.0} MB/s"),
                format!("UMap {umap:.0} MB/s (quoted, other run, no network)"),
                ours >= umap,
                "the same bytes go through TCP twice here",
            );
            [beside_swap, umap]
        };
        let swap = self.swept_by_swap.as_ref();
        let mut rows = Vec::new();
        rows.extend(row("read-write", ours.read_write, swap.map(|swap| swap.read_write), UMAP.0));
        rows.extend(row("read-only", ours.read_only, swap.map(|swap| swap.read_only), UMAP.1));
        rows
    }

    fn latency(&self) -> Row {
        let (fault, bare) = (self.small.fault_us, self.link.round_trip_us);
        judged(
            "M2",
            "a touch of a page of 4 KiB that is away in 1.25 times a bare TCP round trip of as much".into(),
            format!("{fault:.0} us, {:.2} times", fault / bare),
            format!("TCP {bare:.0} us"),
            fault <= 1.25 * bare,
            "the fault wakes the pager's thread and its reader's, each over another processor if there is \
             one",
        )
    }

    fn threads(&self) -> Row {
        let (one, eight) = (self.small.one_thread, self.small.eight_threads);
        judged(
            "M2",
            "8 threads at 4 times the rate of one, random touches, pages of 4 KiB".into(),
            format!("{one:.0} and {eight:.0} touches/s, {:.2} times", eight / one),
            String::new(),
            eight >= 4.0 * one,
            "program, pager and server share this machine's processors",
        )
    }

    fn fits_row(&self) -> Row {
        let [heap, far] = self.fits;
        judged(
            "M3",
            "a program whose memory is all local within 3 % of the heap".into(),
            format!("{far:.3} s, {:.3} times", far / heap),
            format!("heap {heap:.3} s"),
            far <= 1.03 * heap,
            "first touches of pages: each is a fault that another thread answers",
        )
    }

    fn huge_row(&self) -> Row {
        let wanted =
            "dependent random reads, all local: 1.2 times as fast with pages moved as with pages copied";
        match &self.reads {
            Ok([moved, copied]) => judged(
                "M3",
                wanted.into(),
                format!("{moved:.0} ns, {:.2} times as fast", copied / moved),
                format!("copied {copied:.0} ns"),
                *copied >= 1.2 * moved,
                "huge pages count where the memory is many times what the processor's caches and address \
                 caches reach",
            ),
            Err(why) => not_here("M3", wanted, String::new(), why),
        }
    }

    fn unmodified_not_seen(&self) -> Vec<Row> {
        let missing = self.unmodified.missing.iter().map(|name| (*name, "not installed".to_owned()));
        let failed = self.unmodified.failed.iter().cloned();
        let row =
            |(name, why): (&str, String)| not_here("M8", &format!("{name}, unmodified"), String::new(), &why);
        missing.chain(failed).map(row).collect()
    }

    fn kills_row(&self) -> Row {
        let trials = &self.kills.trials;
        let well = trials.iter().filter(|trial| trial.is_well()).count();
        let mut row = judged(
            "M7",
            "a server killed, stopped or lying at any moment: no hang, no wrong byte, at most 2 s of pause, \
             5 s to stop"
                .into(),
            format!(
                "{well} of {} trials end as they must; longest pause {:.0} ms, to stop {:.0} ms",
                trials.len(),
                self.kills.longest_pause_ms(),
                self.kills.longest_stop_ms()
            ),
            "azekura-lab far-kills has 200".into(),
            well == trials.len()
                && self.kills.longest_pause_ms() <= 2000.0
                && self.kills.longest_stop_ms() <= 5000.0,
            "see the trials that went wrong: azekura-lab far-kills --seed N --trials 1",
        );
        if well == trials.len() && row.standing == Standing::Missed {
            row.note = "no byte was wrong and nobody hung; a server that only stalls is given 2 s, and a \
                busy machine adds its own"
                .into();
        }
        row
    }

    fn no_tuning(&self) -> Row {
        let count = |test: fn(&crate::lab::far_memory::report::Contest) -> bool| {
            self.contests.iter().filter(|contest| test(contest)).count()
        };
        let cases = self.contests.len();
        let near = count(|contest| contest.near_best());
        let simple = count(|contest| contest.not_above_simple());
        let optimal = count(|contest| contest.near_optimal());
        judged(
            "M4",
            "seven programs, three shares: swaps within 1.10 of the best of the eight, never above Simple"
                .into(),
            format!("{near} and {simple} of {cases} cases; within 1.3 of the least possible {optimal}"),
            "adaptive policy by replay, size S; azekura-lab far-memory has W".into(),
            near == cases && simple == cases,
            "cases with few swaps end before anything is learnt",
        )
    }

    fn random(&self) -> Row {
        let ours = self.swept.random_us;
        let swap = match &self.swept_by_swap {
            Ok(swap) => format!("; zram {:.0} us", swap.random_us),
            Err(why) => format!("; zram not available here: {why}"),
        };
        judged(
            "M6b",
            "a random touch of twice the local memory in half of UMap's time, with the page size of the \
             sweeps"
                .into(),
            format!("{ours:.0} us"),
            format!("UMap, 64 KiB {:.0} us (quoted){swap}", UMAP.2),
            ours <= 0.5 * UMAP.2,
            "the page that leaves for it is checked and sent, and program, pager and server share the \
             processors",
        )
    }

    fn link_bound(&self) -> Row {
        let (ours, bare) = (self.swept.read_only, self.link.stream);
        judged(
            "M9",
            "a read-only sweep at 90 % of what bare TCP carries".into(),
            format!("{ours:.0} MB/s, {:.0} %", 100.0 * ours / bare),
            format!("TCP {bare:.0} MB/s"),
            ours >= 0.9 * bare,
            "half of the swept pages are local, so that more than the link's is possible; checksums are \
             computed on both sides",
        )
    }

    fn room_row(&self) -> Row {
        judged(
            "M10",
            "90 % of what a server offers can be had by a client, and comes back right".into(),
            format!("{:.0} %", 100.0 * self.room),
            String::new(),
            self.room >= 0.9,
            "what a page takes there beside its bytes",
        )
    }

    fn tier_row(&self) -> Row {
        let [disk, far] = self.tier;
        judged(
            "tier",
            "point reads of a store ten times its page cache are faster with memory servers than from the \
             disk alone"
                .into(),
            format!(
                "{:.0} reads/s, {:.2} times; {} pages from servers, {} asked for in vain",
                far.per_second,
                far.per_second / disk.per_second,
                far.far_hits,
                far.far_misses
            ),
            format!("disk {:.0} reads/s, {} rows", disk.per_second, self.sizes.rows),
            far.per_second > disk.per_second,
            "a disk whose host keeps it in memory is as near as a server",
        )
    }
}

impl Program {
    fn tracking(&self) -> Row {
        let share = 100.0 * self.bits_s / self.far_s;
        judged(
            "M5",
            format!("{}, half local: access bits at most 2 % of the time", self.kernel),
            format!("{share:.2} % of {:.3} s", self.far_s),
            String::new(),
            share <= 2.0,
            "each cleared bit is a fault at the next touch",
        )
    }

    fn slowdown(&self) -> Row {
        let wanted = format!("{}, half local: a quarter of the time that swap on zram adds", self.kernel);
        let added = self.far_s - self.heap_s;
        let ours = format!(
            "{:.3} s, {:.2} times the heap's {:.3} s",
            self.far_s,
            self.far_s / self.heap_s,
            self.heap_s
        );
        match &self.swap_s {
            Ok(swap) => judged(
                "M6",
                wanted,
                ours,
                format!("zram {swap:.3} s, {:.2} times", swap / self.heap_s),
                added <= 0.25 * (swap - self.heap_s),
                "pages of many arrays side by side are fetched one after the other",
            ),
            Err(why) => not_here("M6", &wanted, ours, why),
        }
    }
}

impl Seen {
    fn fits(&self) -> Row {
        let Self { name, plain_s, fits_s, .. } = self;
        judged(
            "M3",
            format!("{name}, unmodified, all local: within 3 % of its plain time"),
            format!("{fits_s:.3} s, {:.3} times", fits_s / plain_s),
            format!("plain {plain_s:.3} s"),
            *fits_s <= 1.03 * plain_s,
            "what is to be set up before it begins, and blocks that move when they grow",
        )
    }

    fn identical(&self) -> Row {
        let Self { name, plain_s, parts, .. } = self;
        let of_part = |part: &Part| match &part.wrong {
            None => format!("{} {:.2} s, {} pages out", part.user, part.seconds, part.pages_out),
            Some(why) => format!("{}: {why}", part.user),
        };
        judged(
            "M8",
            format!("{name}, unmodified, three quarters of its large blocks local: prints the same"),
            parts.iter().map(of_part).collect::<Vec<_>>().join("; "),
            format!("plain {plain_s:.2} s; scripts/far-programs.py has more programs, and every mechanism"),
            parts.iter().all(|part| part.wrong.is_none()),
            "see above; scripts/far-programs.py prints all that it said",
        )
    }
}

fn judged(goal: &str, wanted: String, ours: String, rival: String, reached: bool, between: &str) -> Row {
    let standing = if reached { Standing::Reached } else { Standing::Missed };
    let note = if reached { String::new() } else { between.into() };
    Row { goal: goal.into(), wanted, ours, rival, standing, note }
}

fn not_here(goal: &str, wanted: &str, ours: String, why: &str) -> Row {
    Row {
        goal: goal.into(),
        wanted: wanted.into(),
        ours,
        rival: String::new(),
        standing: Standing::NotHere,
        note: format!("not available here: {why}"),
    }
}
