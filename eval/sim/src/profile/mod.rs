//! The parts of a machine, and their costs.

mod shipped;

use serde::{Deserialize, Serialize};

/// Origin of a constant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A document.
    Document(String),
    /// Measured, by this program, on the machine that it describes.
    Measured,
    /// Nobody says: reasoned from what is known, and how.
    Reasoned(String),
}

/// A constant of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Nanoseconds, unless the field says otherwise.
    pub value: f64,
    /// Its origin.
    pub source: Source,
}

/// The place at which stores and atomic instructions are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// In the processor's own cache, which must own the line first (MESI and its kin).
    Owned,
    /// In the cache that all cores share; the cores' own caches are written through, and lose what others
    /// write.
    Shared,
}

/// Processors, and what they share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Sockets; lines of memory are dealt out to them in turn.
    pub sockets: usize,
    /// Groups of cores in a socket that share their last cache.
    pub clusters_per_socket: usize,
    /// Cores of a cluster.
    pub cores_per_cluster: usize,
    /// Hardware threads of a core; each is a processor.
    pub threads_per_core: usize,
    /// Instructions of how many of a core's threads can be under way at once.
    pub pipes_per_core: usize,
    /// Lines of a core's own cache, and its ways.
    pub private_lines: (usize, usize),
    /// Lines of a cluster's last cache, and its ways.
    pub shared_lines: (usize, usize),
}

/// Costs of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A load that finds its line in the core's own cache.
    pub load_hit: Constant,
    /// A store, to the thread: it does not wait for the line.
    pub store: Constant,
    /// An atomic instruction on a line that need not move.
    pub swap: Constant,
    /// A line from the cluster's last cache.
    pub shared_hit: Constant,
    /// A line from memory of the own socket.
    pub memory: Constant,
    /// Additional time of an access to another socket, for memory and everything else.
    pub other_socket: Constant,
    /// A line from the own cache of another core of the cluster.
    pub transfer_in_cluster: Constant,
    /// The same, of another cluster of the socket.
    pub transfer_in_socket: Constant,
    /// Not a time: the part of a line's transfer, and of the atomic instruction that follows it, for which
    /// the line is busy, from 0 to 1 ([`Protocol::Owned`] only). The next access waits for no more than that:
    /// its request travels while the answer to the one before is under way.
    pub transfer_occupancy: Constant,
    /// Time for which a shared line is busy when it is read.
    pub read_occupancy: Constant,
    /// Time for which the line is busy with a store ([`Protocol::Shared`] only).
    pub write_occupancy: Constant,
    /// Time for which the line is busy with an atomic instruction, also one that fails ([`Protocol::Shared`]
    /// only).
    pub swap_occupancy: Constant,
    /// Time for which the line is busy with a load or a store that found it busy: waiting accesses are served
    /// one by one ([`Protocol::Shared`] only).
    pub queued_occupancy: Constant,
    /// Not a time: how often another thread of a core wants the pipe at the same moment, from 0 to 1.
    pub pipe_share: Constant,
    /// One turn of a spin.
    pub pause: Constant,
    /// In and out of the kernel.
    pub system_call: Constant,
    /// From one thread to another on a processor.
    pub context_switch: Constant,
    /// Time of a thread to wake another that sleeps.
    pub wake_call: Constant,
    /// From the end of that call to the sleeper's first instruction, when a processor is idle.
    pub wake: Constant,
    /// From the end of a sleep's time to the sleeper's first instruction, when a processor is idle.
    pub alarm: Constant,
    /// Time of a thread, before it sleeps, to set an alarm that comes before all others of its processor; the
    /// same again if it is woken before.
    pub alarm_set: Constant,
    /// Time for which it computes instead of sleeping if such an alarm is already over when it is set.
    pub alarm_missed: Constant,
    /// Time from the end of a wake-up call until the thread on the sleeper's processor gives way to it, if no
    /// processor is idle.
    pub wake_busy: Constant,
    /// The same from the end of a sleep's time.
    pub alarm_busy: Constant,
    /// Time that a computing thread loses, besides the two switches, when it gives way to a sleeper that
    /// wakes up.
    pub interrupt: Constant,
    /// Time for which a thread keeps a processor that it was just given, even if another wakes up for it.
    pub undisturbed: Constant,
    /// Time for which a thread may run when others want its processor.
    pub slice: Constant,
    /// A byte copied.
    pub copy_byte: Constant,
    /// Plain computation between two accesses that the simulation sees; a workload that was calibrated has
    /// its own.
    pub between_accesses: Constant,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Name for commands.
    pub name: String,
    /// One line.
    pub describes: String,
    /// Processors, and what they share.
    pub topology: Topology,
    /// The place at which stores and atomic instructions are done.
    pub protocol: Protocol,
    /// The machine has an instruction that adds in one step and cannot fail; otherwise a compare-and-swap is
    /// tried until it succeeds.
    pub adds_in_one_step: bool,
    /// Costs.
    pub costs: Costs,
}

impl Topology {
    /// Cores.
    #[must_use]
    pub const fn cores(&self) -> usize {
        self.sockets * self.clusters_per_socket * self.cores_per_cluster
    }

    /// Processors.
    #[must_use]
    pub const fn processors(&self) -> usize {
        self.cores() * self.threads_per_core
    }

    /// The core of a processor: processors are numbered so that each core has one before any has two.
    #[must_use]
    pub const fn core_of(&self, processor: usize) -> usize {
        processor % self.cores()
    }

    /// The cluster of a core.
    #[must_use]
    pub const fn cluster_of(&self, core: usize) -> usize {
        core / self.cores_per_cluster
    }

    /// The socket of a core.
    #[must_use]
    pub const fn socket_of(&self, core: usize) -> usize {
        self.cluster_of(core) / self.clusters_per_socket
    }
}
