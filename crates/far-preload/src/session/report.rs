//! The report at the end: events of far memory, how much memory of the process was far, and why other memory
//! was not.
//!
//! | memory | counted | not far because |
//! |---|---|---|
//! | far pages | the peak | – |
//! | ranges that left far memory | at the end, and the peak | a call for the kernel (`hooks::kernel`) |
//! | small blocks, memory of `brk` | at the end | below `--block`: in the C library's heap |
//! | other mappings | at the end | below `--block`, executable, with flags for the kernel; arenas |
//! | | | and blocks of `__libc_malloc`, which the C library maps by calls inside the library |
//! | stacks, files, shared memory | at the end | always the kernel's |

use super::thrash::{Remedy, Waiting};
use super::{HEAP, OVERFLOW, REFUSAL, REFUSED, Session, Size, say};
use azekura_far::FarStats;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

/// Set once the report was printed: at the end, or before a call that forbids system calls that the report
/// needs.
static REPORTED: AtomicBool = AtomicBool::new(false);
/// Bytes of large private mappings with flags or protection that far memory does not support.
static EXCLUDED: AtomicUsize = AtomicUsize::new(0);

/// Counts a large private mapping that cannot be far: it is executable or read-only, it has flags that only
/// the kernel implements, or it is reserved and too large for `--max-far`.
#[cold]
pub(crate) fn excluded(bytes: usize) {
    EXCLUDED.fetch_add(bytes, Relaxed); // Relaxed: a counter
}

/// Memory of the process by kind, in bytes.
#[derive(Debug, Default)]
struct Resident {
    small_blocks: u64,
    mappings: u64,
    stacks: u64,
    files: u64,
    shared: u64,
}

impl Resident {
    /// Reads the memory map of the process, except for these ranges.
    fn read(without: &[Range<usize>]) -> Self {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let mut all = Self::default();
        let mut kind = None;
        for line in maps.lines() {
            if let Some(kib) = line.strip_prefix("Rss:").and_then(|rest| rest.strip_suffix("kB")) {
                if let Some(kind) = kind {
                    *all.of(kind) += kib.trim().parse::<u64>().unwrap_or(0) << 10;
                }
            } else if let Some((addresses, rest)) = line.split_once(' ')
                && let Some((start, end)) = addresses.split_once('-')
                && let Ok(start) = usize::from_str_radix(start, 16)
                && let Ok(end) = usize::from_str_radix(end, 16)
            {
                let is_own = without.iter().any(|range| range.start < end && start < range.end);
                kind = (!is_own).then(|| Kind::of(rest)).flatten();
            }
        }
        all
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::SmallBlocks => &mut self.small_blocks,
            Kind::Mappings => &mut self.mappings,
            Kind::Stacks => &mut self.stacks,
            Kind::Files => &mut self.files,
            Kind::Shared => &mut self.shared,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SmallBlocks,
    Mappings,
    Stacks,
    Files,
    Shared,
}

impl Kind {
    /// Returns the kind of a mapping from the text after its addresses; `None` for the memory file of the
    /// layer.
    fn of(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace();
        let is_shared = fields.next().is_some_and(|rights| rights.ends_with('s'));
        let name = fields.nth(3).unwrap_or_default();
        match name {
            _ if name.starts_with("/memfd:azekura-far") => None,
            _ if is_shared => Some(Self::Shared),
            "[heap]" => Some(Self::SmallBlocks),
            "[stack]" => Some(Self::Stacks),
            "" => Some(Self::Mappings),
            _ if name.starts_with("[anon") => Some(Self::Mappings),
            _ => Some(Self::Files),
        }
    }
}

pub(crate) extern "C" fn at_end() {
    // Relaxed: only one thread ends the process.
    if REPORTED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the pointer is null, or the session is never dropped. Acquire: pairs with Release in
    // `session::install`.
    let Some(session) = (unsafe { HEAP.load(Acquire).as_ref() }) else { return };
    session.heap.memory().count_unmanaged();
    let stats = session.heap.memory().stats();
    let peak = peak_resident();
    // Relaxed: the threads of the program have finished counting.
    let (overflow, refused) = (OVERFLOW.load(Relaxed) as u64, REFUSED.load(Relaxed) as u64);
    let report = Report { session, stats, peak, overflow, refused };
    // A process that used no far memory prints nothing, for example a shell that only starts the program,
    // unless its ordinary memory exceeds the budget.
    let used = stats.faults > 0 || overflow + refused > 0 || report.excluded() > 0;
    if !session.launch.quiet && (used || report.exceeds_budget()) {
        report.say();
    }
    report.append_json();
}

struct Report<'a> {
    session: &'a Session,
    stats: FarStats,
    peak: u64,
    overflow: u64,
    refused: u64,
}

impl Report<'_> {
    fn excluded(&self) -> u64 {
        EXCLUDED.load(Relaxed) as u64 // Relaxed: the program's threads have finished counting
    }

    fn ordinary(&self) -> u64 {
        self.peak.saturating_sub(self.stats.peak_local_bytes + self.stats.unmanaged_bytes)
    }

    /// Returns `true` if small blocks and other mappings take more than the local budget.
    fn exceeds_budget(&self) -> bool {
        let local = self.session.launch.local as u64;
        // The memory map is read only if the peak allows it.
        let takes = || {
            let Resident { small_blocks, mappings, .. } = self.resident();
            small_blocks + mappings
        };
        self.peak > local && takes() > local
    }

    fn managed(&self) -> u64 {
        self.stats.peak_local_bytes.min(self.peak)
    }

    /// Returns the resident memory at the end, without far memory.
    fn resident(&self) -> Resident {
        let memory = self.session.heap.memory();
        let statics = memory.adopted().iter().cloned();
        let own: Vec<Range<usize>> =
            [self.session.heap.range().clone(), memory.frames()].into_iter().chain(statics).collect();
        Resident::read(&own)
    }

    fn say(&self) {
        let Self { session, stats, peak, overflow, refused } = self;
        let launch = session.launch;
        say(format_args!(
            "azekura far: {stats}, at most {} MiB resident: {} MiB of far pages, {} MiB that left far memory \
             for calls that only the kernel can do, {} MiB that far memory does not cover\n",
            peak >> 20,
            self.managed() >> 20,
            stats.unmanaged_bytes >> 20,
            self.ordinary() >> 20,
        ));
        let Resident { small_blocks, mappings, stacks, files, shared } = self.resident();
        say(format_args!(
            "azekura far: not covered at the end: {} MiB of small blocks (below --block {}) and of brk, {} \
             MiB of other mappings (smaller, or made inside the C library), {} MiB of stacks, {} MiB of \
             files and code, {} MiB of shared memory\n",
            small_blocks >> 20,
            Size(launch.block),
            mappings >> 20,
            stacks >> 20,
            files >> 20,
            shared >> 20,
        ));
        if self.excluded() > 0 {
            say(format_args!(
                "azekura far: mappings of {} MiB were executable, read only, made with flags that only the \
                 kernel can honor, or reserved without access in more than half of --max-far; they are not \
                 far memory\n",
                self.excluded() >> 20
            ));
        }
        let waiting = self.waiting();
        if waiting.thrashes() {
            say(format_args!(
                "azekura far: warning: {} % of the program's time was spent waiting for pages; {}\n",
                waiting.share(),
                Remedy(session.heap.memory().more_memory())
            ));
        }
        if *overflow > 0 {
            say(format_args!(
                "azekura far: warning: large blocks of {} KiB in all did not fit --max-far {} and were \
                 ordinary memory; raise --max-far\n",
                overflow >> 10,
                Size(launch.space)
            ));
        }
        if let Some(refusal) = REFUSAL.get() {
            say(format_args!(
                "azekura far: warning: large blocks of {} KiB in all were ordinary memory: {refusal}\n",
                refused >> 10
            ));
        }
        if stats.unmanaged_bytes > launch.local as u64 {
            say(format_args!(
                "azekura far: warning: memory that left far memory exceeds --local {}; raise --local\n",
                Size(launch.local)
            ));
        } else if small_blocks + mappings > launch.local as u64 {
            say(format_args!(
                "azekura far: warning: small blocks and other mappings take more than --local {}; a lower \
                 --block makes blocks of malloc far memory; memory that the program takes from brk or from \
                 __libc_malloc is never far: raise --local for it\n",
                Size(launch.local)
            ));
        }
    }

    fn waiting(&self) -> Waiting {
        Waiting::until_now(self.stats.swap_ins, self.stats.swap_ns)
    }

    fn append_json(&self) {
        let Some(path) = &self.session.launch.stats_json else { return };
        let json = self.stats.to_json();
        let mut line = json.strip_suffix('}').unwrap_or(&json).to_owned();
        let more = self.session.heap.memory().more_memory();
        for (name, bytes) in [("more_for_half_bytes", more.half), ("more_for_most_bytes", more.most)] {
            line += &format!(",\"{name}\":{}", bytes.map_or("null".into(), |bytes| bytes.to_string()));
        }
        let Resident { small_blocks, mappings, stacks, files, shared } = self.resident();
        let fields = [
            ("waited_percent", self.waiting().share()),
            ("managed_bytes", self.managed()),
            ("overflow_bytes", self.overflow),
            ("refused_bytes", self.refused),
            ("excluded_mapping_bytes", self.excluded()),
            ("ordinary_bytes", self.ordinary()),
            ("small_block_bytes", small_blocks),
            ("other_mapping_bytes", mappings),
            ("stack_bytes", stacks),
            ("file_bytes", files),
            ("shared_bytes", shared),
            ("peak_resident_bytes", self.peak),
        ];
        fields.iter().for_each(|(name, bytes)| line += &format!(",\"{name}\":{bytes}"));
        line += "}\n";
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let write = |mut file: std::fs::File| azekura_far::without_signal(|| file.write_all(line.as_bytes()));
        if let Err(error) = file.and_then(write) {
            say(format_args!("azekura far: write {}: {error}\n", path.display()));
        }
    }
}

/// Returns the largest resident memory of this process since its program began, in bytes, far or not; 0 if
/// the system does not report it.
fn peak_resident() -> u64 {
    // `getrusage` is not used, because its result includes memory from before `exec`.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
