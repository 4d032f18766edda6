//! The parts of a simulated machine, and their costs.

mod shipped;

use serde::{Deserialize, Serialize};

/// The origin of a constant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A document that states it.
    Document(String),
    /// Measured by this program on the machine that the profile describes.
    Measured,
    /// Not published: derived from known values, with the reason.
    Reasoned(String),
}

/// A constant of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The value, in nanoseconds unless the field says otherwise.
    pub value: f64,
    /// The origin of the value.
    pub source: Source,
}

/// The place at which stores and atomic instructions are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// In the core's own cache, which must own the line first (MESI and similar protocols).
    Owned,
    /// In the cache that all cores share. The cores' own caches are write-through, and lose a line when
    /// another core writes it.
    Shared,
}

/// The processors of a machine, and the caches that they share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Number of sockets. Lines of memory are assigned to sockets in turn.
    pub sockets: usize,
    /// Number of clusters in a socket; the cores of a cluster share their last-level cache.
    pub clusters_per_socket: usize,
    /// Number of cores in a cluster.
    pub cores_per_cluster: usize,
    /// Number of hardware threads of a core; each is a processor.
    pub threads_per_core: usize,
    /// Number of threads of a core that can execute instructions at the same time.
    pub pipes_per_core: usize,
    /// Lines and ways of a core's own cache.
    pub private_lines: (usize, usize),
    /// Lines and ways of a cluster's last-level cache.
    pub shared_lines: (usize, usize),
}

/// Costs of a machine: times, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A load that finds its line in the core's own cache.
    pub load_hit: Constant,
    /// A store, for the thread: the thread does not wait for the line.
    pub store: Constant,
    /// An atomic instruction on a line that need not be transferred.
    pub swap: Constant,
    /// A line from the cluster's last-level cache.
    pub shared_hit: Constant,
    /// A line from memory of the same socket.
    pub memory: Constant,
    /// Additional time of an access to another socket, for memory and for caches.
    pub other_socket: Constant,
    /// A line from the own cache of another core of the cluster.
    pub transfer_in_cluster: Constant,
    /// A line from the own cache of a core in another cluster of the socket.
    pub transfer_in_socket: Constant,
    /// Not a time: the part of a line's transfer and of the following atomic instruction for which the line
    /// is busy, from 0 to 1 ([`Protocol::Owned`] only). The next access waits only for this part, because its
    /// request travels while the previous one is served.
    pub transfer_occupancy: Constant,
    /// Time for which a shared line is busy when it is read.
    pub read_occupancy: Constant,
    /// Time for which the line is busy with a store ([`Protocol::Shared`] only).
    pub write_occupancy: Constant,
    /// Time for which the line is busy with an atomic instruction, also one that fails ([`Protocol::Shared`]
    /// only).
    pub swap_occupancy: Constant,
    /// Time for which the line is busy with a load or a store that found it busy. Waiting accesses are served
    /// one by one ([`Protocol::Shared`] only).
    pub queued_occupancy: Constant,
    /// Not a time: how often another thread of a core uses the pipe at the same moment, from 0 to 1.
    pub pipe_share: Constant,
    /// One iteration of a spin loop.
    pub pause: Constant,
    /// A system call: entering and leaving the kernel.
    pub system_call: Constant,
    /// A switch from one thread to another on a processor.
    pub context_switch: Constant,
    /// Time of a thread for waking another one.
    pub wake_call: Constant,
    /// From the end of the wake-up call to the sleeper's first instruction, if a processor is idle.
    pub wake: Constant,
    /// From the end of a sleep's time to the sleeper's first instruction, if a processor is idle.
    pub alarm: Constant,
    /// Time of a thread, before it sleeps, for setting an alarm that is earlier than all others of its
    /// processor. The thread loses the same time again if it is woken before the alarm.
    pub alarm_set: Constant,
    /// Time that the thread computes instead of sleeping, if such an alarm has passed when it is set.
    pub alarm_missed: Constant,
    /// Time from the end of a wake-up call until the thread on the sleeper's processor gives way, if no
    /// processor is idle.
    pub wake_busy: Constant,
    /// Time from the end of a sleep's time until the thread on the sleeper's processor gives way, if no
    /// processor is idle.
    pub alarm_busy: Constant,
    /// Time that a computing thread loses, in addition to the two switches, when it gives way to a woken
    /// sleeper.
    pub interrupt: Constant,
    /// Time for which a thread keeps a processor that it just received, even if a sleeper of this processor
    /// wakes up.
    pub undisturbed: Constant,
    /// Time for which a thread may run while others wait for its processor.
    pub slice: Constant,
    /// Copying one byte.
    pub copy_byte: Constant,
    /// Computation between two accesses that the simulation records. A calibrated workload has its own value.
    pub between_accesses: Constant,
}

/// A simulated machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The name in commands.
    pub name: String,
    /// A description in one line.
    pub describes: String,
    /// The processors, and the caches that they share.
    pub topology: Topology,
    /// The place at which stores and atomic instructions are done.
    pub protocol: Protocol,
    /// Set if the machine has an add instruction that cannot fail. Otherwise, an addition repeats a
    /// compare-and-swap until it succeeds.
    pub adds_in_one_step: bool,
    /// The costs.
    pub costs: Costs,
}

impl Topology {
    /// Returns the number of cores.
    #[must_use]
    pub const fn cores(&self) -> usize {
        self.sockets * self.clusters_per_socket * self.cores_per_cluster
    }

    /// Returns the number of processors.
    #[must_use]
    pub const fn processors(&self) -> usize {
        self.cores() * self.threads_per_core
    }

    /// Returns the core of a processor. Processors are numbered so that each core has one before any core has
    /// two.
    #[must_use]
    pub const fn core_of(&self, processor: usize) -> usize {
        processor % self.cores()
    }

    /// Returns the cluster of a core.
    #[must_use]
    pub const fn cluster_of(&self, core: usize) -> usize {
        core / self.cores_per_cluster
    }

    /// Returns the socket of a core.
    #[must_use]
    pub const fn socket_of(&self, core: usize) -> usize {
        self.cluster_of(core) / self.clusters_per_socket
    }
}
