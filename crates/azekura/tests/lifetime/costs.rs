//! Counts of the threads of this process.

/// The kernel's counts for this process, without the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) threads: usize,
    switches: u64,
    cpu_ticks: u64,
}

impl Costs {
    pub(crate) fn now() -> Self {
        let own = std::fs::read_link("/proc/thread-self").unwrap();
        let mut costs = Self { threads: 0, switches: 0, cpu_ticks: 0 };
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            if Some(task.file_name().as_os_str()) == own.file_name() {
                continue;
            }
            let read = |name| std::fs::read_to_string(task.path().join(name));
            // A thread may have ended meanwhile.
            let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else { continue };
            let count = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
            let is_count = |line: &&str| line.contains("voluntary_ctxt_switches");
            // The name may contain blanks; utime and stime are the 12th and 13th field after it.
            let (_, fields) = stat.rsplit_once(')').unwrap();
            let times = fields.split_whitespace().skip(11).take(2);
            costs.threads += 1;
            costs.switches += status.lines().filter(is_count).map(count).sum::<u64>();
            costs.cpu_ticks += times.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>();
        }
        costs
    }

    /// Returns the counts after all threads have become idle.
    pub(crate) fn at_rest() -> Self {
        let mut before = Self::now();
        for _ in 0..200 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            let now = Self::now();
            if now == before {
                return now;
            }
            before = now;
        }
        panic!("the threads never come to rest: {before:?}");
    }

    /// Waits until the process has `threads` besides the calling one, because an ended thread is there until
    /// the kernel has removed it.
    pub(crate) fn wait_for_threads(threads: usize, what: &str) {
        for _ in 0..6_000 {
            if Self::now().threads == threads {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{what}: {:?} in place of {threads} threads", Self::now());
    }
}
