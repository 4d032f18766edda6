//! Cost of an access to a cache line, by the earlier accesses to it: caches, owners, sharers, and a queue of
//! writers.
//!
//! | line is | [`Protocol::Owned`]: load | store, atomic |
//! |---|---|---|
//! | owned by this core | hit | hit |
//! | owned by another core | transfer; then both share it | transfer; then owned here |
//! | shared, also here | hit | the farthest copy is invalidated; then owned here |
//! | shared, not here | from the last-level cache, or the nearest copy | the same as above |
//! | in no cache | memory | memory |
//!
//! [`Protocol::Shared`]: loads hit in the core's own cache until another core writes the line. All other
//! accesses go to the shared cache, where each access makes the line busy for a time.
//!
//! - **LINE-1** A line serves one request at a time, in the order of the requests. A request that moves the
//!   line waits until `free_at`, which may be before the line has arrived ([`Costs::transfer_occupancy`]).
//! - **LINE-2** At most one core owns a line, and then no other core has a copy.
//! - **LINE-3** A store delays its thread only at the next atomic instruction or full fence, which waits for
//!   all stores, or if the store would be done more than `STORE_BUFFER` later.

mod cache;
mod cores;

pub use cache::Cache;
pub use cores::Cores;

use crate::profile::{Costs, Profile, Protocol};
use azekura_base::sync::machine::Access;

/// A time on the simulated machine, in picoseconds.
pub type Time = u64;

/// Converts nanoseconds to picoseconds.
#[must_use]
pub fn picoseconds(nanoseconds: f64) -> Time {
    (nanoseconds * 1e3).round().max(0.0) as Time
}

/// Time by which a thread may be ahead of its stores.
const STORE_BUFFER: Time = 500_000;

/// A line of the simulated machine. Aligned to one cache line of the simulating machine.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    /// The core that owns the line, plus one; 0 if no core does.
    owner: u16,
    /// Cores that have a copy.
    sharers: Cores,
    free_at: Time,
    /// Number of writes.
    writes: u32,
}

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Time at which the thread continues.
    pub until: Time,
    /// Time at which the access is done in memory; later than `until` for a store.
    pub done: Time,
    /// Time that the thread spent beyond that of a hit.
    pub stall: Time,
    /// The part of `stall` in the queue for the line.
    pub queued: Time,
    /// Set if the line had to be transferred.
    pub is_miss: bool,
}

/// Costs in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    load_hit: Time,
    store: Time,
    swap: Time,
    shared_hit: Time,
    memory: Time,
    other_socket: Time,
    in_cluster: Time,
    in_socket: Time,
    /// Transfer occupancy in thousandths.
    transfer_occupancy: Time,
    read_occupancy: Time,
    write_occupancy: Time,
    swap_occupancy: Time,
    queued_occupancy: Time,
}

impl Ticks {
    fn of(costs: &Costs) -> Self {
        Self {
            load_hit: picoseconds(costs.load_hit.value),
            store: picoseconds(costs.store.value),
            swap: picoseconds(costs.swap.value),
            shared_hit: picoseconds(costs.shared_hit.value),
            memory: picoseconds(costs.memory.value),
            other_socket: picoseconds(costs.other_socket.value),
            in_cluster: picoseconds(costs.transfer_in_cluster.value),
            in_socket: picoseconds(costs.transfer_in_socket.value),
            transfer_occupancy: picoseconds(costs.transfer_occupancy.value),
            read_occupancy: picoseconds(costs.read_occupancy.value),
            write_occupancy: picoseconds(costs.write_occupancy.value),
            swap_occupancy: picoseconds(costs.swap_occupancy.value),
            queued_occupancy: picoseconds(costs.queued_occupancy.value),
        }
    }
}

impl Ticks {
    /// Returns the time for which a line is busy with a transfer of `time` and the access that follows it.
    const fn on_the_way(&self, time: Time) -> Time {
        time * self.transfer_occupancy / 1000
    }

    /// Returns the time for which a line of the shared cache is busy with an access; `was_queued` if the line
    /// was busy before.
    const fn occupancy(&self, access: Access, was_queued: bool) -> Time {
        let alone = match access {
            Access::Load => self.read_occupancy,
            Access::Store => self.write_occupancy,
            Access::Swap | Access::Add => return self.swap_occupancy,
        };
        if was_queued && self.queued_occupancy > alone { self.queued_occupancy } else { alone }
    }
}

/// All lines of a machine.
#[derive(Debug)]
pub struct Directory {
    /// For each core: the cores that share its last-level cache, and the cores of its socket.
    near: Vec<(Cores, Cores)>,
    /// The cluster and the socket of each core.
    places: Vec<(usize, usize)>,
    sockets: usize,
    protocol: Protocol,
    ticks: Ticks,
    lines: Vec<Line>,
    private: Vec<Cache>,
    shared: Vec<Cache>,
}

impl Directory {
    /// Returns the directory of a machine with empty caches.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let topology = &profile.topology;
        let all = || 0..topology.cores();
        let near = |core| {
            let (cluster, socket) = (topology.cluster_of(core), topology.socket_of(core));
            (
                all().filter(|&other| topology.cluster_of(other) == cluster).collect(),
                all().filter(|&other| topology.socket_of(other) == socket).collect(),
            )
        };
        let cache = |(lines, ways)| Cache::new(lines, ways);
        Self {
            private: vec![cache(topology.private_lines); topology.cores()],
            shared: vec![cache(topology.shared_lines); topology.sockets * topology.clusters_per_socket],
            protocol: profile.protocol,
            ticks: Ticks::of(&profile.costs),
            lines: Vec::new(),
            near: all().map(near).collect(),
            places: all().map(|core| (topology.cluster_of(core), topology.socket_of(core))).collect(),
            sockets: topology.sockets,
        }
    }

    /// Returns the number of writes of a line.
    #[must_use]
    pub fn writes(&self, line: u32) -> u32 {
        self.lines.get(line as usize).map_or(0, |line| line.writes)
    }

    /// Counts a write of the line. (An atomic instruction that fails also moves the line, but writes
    /// nothing.)
    pub fn wrote(&mut self, line: u32) {
        self.lines[line as usize].writes += 1;
    }

    /// Serves an access to a line as if only this thread used it, regardless of its real owner.
    pub fn alone(&mut self, line: u32, access: Access, now: Time, drained: Time) -> Served {
        self.make_room_for(line);
        match access {
            Access::Load => self.hit(now, self.ticks.load_hit),
            Access::Store => self.hit(now, self.ticks.store),
            Access::Swap | Access::Add => self.hit(now, now.max(drained) - now + self.ticks.swap),
        }
    }

    fn make_room_for(&mut self, line: u32) {
        if self.lines.len() <= line as usize {
            self.lines.resize(line as usize + 1, Line::default());
        }
    }

    /// Performs an access of core `core` to `line` at `now`. The core's earlier stores are done at `drained`.
    pub fn access(&mut self, core: usize, line: u32, access: Access, now: Time, drained: Time) -> Served {
        self.make_room_for(line);
        match self.protocol {
            Protocol::Owned => self.owned(core, line, access, now, drained),
            Protocol::Shared => self.shared(core, line, access, now, drained),
        }
    }

    fn owned(&mut self, core: usize, number: u32, access: Access, now: Time, drained: Time) -> Served {
        let is_near = self.private[core].touch(number);
        let before = self.lines[number as usize];
        let owner = usize::from(before.owner);
        if access == Access::Load {
            if is_near && before.sharers.has(core) {
                return self.hit(now, self.ticks.load_hit);
            }
            let latency = self.fetch(core, number, &before);
            let line = &mut self.lines[number as usize];
            if owner != core + 1 {
                line.owner = 0;
            }
            line.sharers.add(core);
            let start = now.max(line.free_at);
            let moves = owner != 0 && owner != core + 1;
            line.free_at =
                start + if moves { self.ticks.on_the_way(latency) } else { self.ticks.read_occupancy };
            let until = start + latency + self.ticks.load_hit;
            return self.miss(now, until, start - now, self.ticks.load_hit);
        }
        let is_owned = is_near && owner == core + 1;
        let latency = if is_owned { 0 } else { self.take(core, number, &before) };
        let line = &mut self.lines[number as usize];
        line.owner = core as u16 + 1;
        line.sharers = Cores::default();
        line.sharers.add(core);
        if access == Access::Store {
            let start = if is_owned { now } else { now.max(line.free_at) };
            let done = start + latency + self.ticks.store;
            line.free_at = line.free_at.max(start + self.ticks.on_the_way(latency) + self.ticks.store);
            return self.stored(now, done, start - now, !is_owned);
        }
        let ready = now.max(drained);
        let start = ready.max(line.free_at);
        let until = start + latency + self.ticks.swap;
        line.free_at = if is_owned { until } else { start + self.ticks.on_the_way(until - start) };
        Served { is_miss: !is_owned, ..self.miss(now, until, start - ready, self.ticks.swap) }
    }

    fn shared(&mut self, core: usize, number: u32, access: Access, now: Time, drained: Time) -> Served {
        let is_near = self.private[core].touch(number) && self.lines[number as usize].sharers.has(core);
        if access == Access::Load && is_near {
            return self.hit(now, self.ticks.load_hit);
        }
        let cluster = self.places[core].0;
        let latency =
            if self.shared[cluster].touch(number) { self.ticks.shared_hit } else { self.ticks.memory };
        let line = &mut self.lines[number as usize];
        if access == Access::Load {
            line.sharers.add(core);
            let start = now.max(line.free_at);
            line.free_at = start + self.ticks.occupancy(access, start > now);
            return self.miss(now, start + latency, start - now, self.ticks.load_hit);
        }
        // the store is written through to the shared cache
        let kept = line.sharers.has(core) && access == Access::Store;
        line.sharers = Cores::default();
        if kept {
            line.sharers.add(core);
        }
        let ready = if access == Access::Store { now } else { now.max(drained) };
        let start = ready.max(line.free_at);
        line.free_at = start + self.ticks.occupancy(access, start > ready);
        if access == Access::Store {
            return self.stored(now, start + latency, start - now, !is_near);
        }
        self.miss(now, start + latency.max(self.ticks.swap), start - ready, self.ticks.swap)
    }

    const fn hit(&self, now: Time, cost: Time) -> Served {
        Served { until: now + cost, done: now + cost, stall: 0, queued: 0, is_miss: false }
    }

    const fn miss(&self, now: Time, until: Time, queued: Time, hit: Time) -> Served {
        Served { until, done: until, stall: (until - now).saturating_sub(hit), queued, is_miss: true }
    }

    fn stored(&self, now: Time, done: Time, queued: Time, is_miss: bool) -> Served {
        let until = (now + self.ticks.store).max(done.saturating_sub(STORE_BUFFER));
        Served {
            until,
            done,
            stall: until - now - self.ticks.store,
            queued: queued.min(until - now),
            is_miss,
        }
    }

    /// Returns the time to fetch a copy, from the nearest source.
    fn fetch(&mut self, core: usize, number: u32, line: &Line) -> Time {
        let is_in_last = self.shared[self.places[core].0].touch(number);
        let owner = usize::from(line.owner);
        if owner != 0 && owner != core + 1 {
            return self.distance(core, owner - 1);
        }
        if is_in_last {
            return self.ticks.shared_hit;
        }
        match self.nearest(core, &line.sharers.without(core)) {
            Some(nearest) => nearest,
            None => self.memory(core, number),
        }
    }

    /// Returns the time until no other core has a copy, and this core has one.
    fn take(&mut self, core: usize, number: u32, line: &Line) -> Time {
        let own = if line.sharers.has(core) { 0 } else { self.fetch(core, number, line) };
        self.farthest(core, &line.sharers.without(core)).max(own)
    }

    fn memory(&self, core: usize, number: u32) -> Time {
        let is_far = number as usize % self.sockets != self.places[core].1;
        self.ticks.memory + if is_far { self.ticks.other_socket } else { 0 }
    }

    fn distance(&self, from: usize, to: usize) -> Time {
        let (cluster, socket) = &self.near[from];
        if cluster.has(to) {
            self.ticks.in_cluster
        } else if socket.has(to) {
            self.ticks.in_socket
        } else {
            self.ticks.in_socket + self.ticks.other_socket
        }
    }

    /// Returns the distance to each kind of neighbors that `others` contains: in the cluster, in the socket,
    /// in another socket.
    fn distances(&self, core: usize, others: &Cores) -> impl Iterator<Item = Time> + use<> {
        let ((cluster, socket), ticks) = (&self.near[core], self.ticks);
        let [in_cluster, in_socket, far] =
            [others.meets(cluster), others.meets_between(cluster, socket), others.exceeds(socket)];
        let in_cluster = in_cluster.then_some(ticks.in_cluster);
        let in_socket = in_socket.then_some(ticks.in_socket);
        in_cluster.into_iter().chain(in_socket).chain(far.then_some(ticks.in_socket + ticks.other_socket))
    }

    fn nearest(&self, core: usize, others: &Cores) -> Option<Time> {
        self.distances(core, others).min()
    }

    fn farthest(&self, core: usize, others: &Cores) -> Time {
        self.distances(core, others).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
