//! `DeviceState`: completion times of commands. Pure: its functions take and return times, and use no clock.
//!
//! A command waits for a channel and occupies it for the time of the command and of the transfer of its
//! bytes. The command ends no earlier than the transfer on the shared bus. A flush waits for a slot. If the
//! model merges flushes, others join a waiting flush.
//!
//! Times are nanoseconds since the device was switched on. Commands are served in the order of the calls.
//! Calls should have ascending times: a time before that of an earlier call is used unchanged, and that call
//! may find the device idle.

use super::model::{DeviceModel, transfer_ns};

/// Counters of requests to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of write commands.
    pub writes: u64,
    /// Bytes of the write commands.
    pub bytes_written: u64,
    /// Number of read commands.
    pub reads: u64,
    /// Bytes of the read commands.
    pub bytes_read: u64,
    /// Number of requested flushes.
    pub flushes_asked: u64,
    /// Number of executed flushes; fewer than requested if some were merged.
    pub flushes_done: u64,
}

/// The state of a device.
#[derive(Clone, Debug)]
pub struct DeviceState {
    model: DeviceModel,
    /// Time at which each channel becomes free.
    channels: Vec<u64>,
    bus_free: u64,
    /// The last flush of each slot: its begin and its end.
    flushes: Vec<(u64, u64)>,
    random: u64,
    counts: DeviceCounts,
}

impl DeviceState {
    /// Returns an idle device.
    #[must_use]
    pub fn new(model: DeviceModel) -> Self {
        Self {
            channels: vec![0; model.channels.max(1) as usize],
            bus_free: 0,
            flushes: vec![(0, 0); model.flush_slots.max(1) as usize],
            random: model.seed,
            counts: DeviceCounts::default(),
            model,
        }
    }

    /// Returns the current costs.
    #[must_use]
    pub const fn model(&self) -> &DeviceModel {
        &self.model
    }

    /// Returns the counters of requests.
    #[must_use]
    pub const fn counts(&self) -> DeviceCounts {
        self.counts
    }

    /// Changes the costs of later commands; commands in progress end at their original time.
    pub fn change(&mut self, model: DeviceModel) {
        let free = self.channels.iter().copied().min().unwrap_or(0);
        self.channels.resize(model.channels.max(1) as usize, free);
        let last = self.flushes.iter().copied().min_by_key(|f| f.1).unwrap_or((0, 0));
        self.flushes.resize(model.flush_slots.max(1) as usize, last);
        self.model = model;
    }

    /// Returns the time at which a write that arrives at `at` has ended. The bytes are durable then only if
    /// the device is power-safe.
    pub fn write(&mut self, at: u64, bytes: u64) -> u64 {
        self.counts.writes += 1;
        self.counts.bytes_written += bytes;
        let base = self.vary(self.model.write_ns);
        self.command(at, base, bytes)
    }

    /// Returns the time at which a read that arrives at `at` has its bytes.
    pub fn read(&mut self, at: u64, bytes: u64) -> u64 {
        self.counts.reads += 1;
        self.counts.bytes_read += bytes;
        let base = self.vary(self.model.read_ns);
        self.command(at, base, bytes)
    }

    /// Returns the time at which all bytes that were in the device at `at` are durable.
    pub fn flush(&mut self, at: u64) -> u64 {
        self.counts.flushes_asked += 1;
        if self.model.is_power_safe() {
            return at;
        }
        if self.model.merges_flushes {
            // A flush that has not begun includes these bytes too.
            let joined = self.flushes.iter().filter(|f| f.0 >= at && f.1 > f.0).map(|f| f.1).min();
            if let Some(ends) = joined {
                return ends;
            }
        }
        self.counts.flushes_done += 1;
        let cost = self.vary(self.model.flush_ns);
        let Some(slot) = self.flushes.iter_mut().min_by_key(|f| f.1) else { return at };
        let begins = slot.1.max(at);
        *slot = (begins, begins.saturating_add(cost));
        slot.1
    }

    /// Returns the time at which a command of `base` nanoseconds and `bytes` bytes is done.
    fn command(&mut self, at: u64, base: u64, bytes: u64) -> u64 {
        let own = transfer_ns(bytes, self.model.channel_bytes_per_s);
        let shared = transfer_ns(bytes, self.model.bytes_per_s);
        let Some(channel) = self.channels.iter_mut().min() else { return at };
        let begins = at.max(*channel);
        self.bus_free = self.bus_free.max(begins).saturating_add(shared);
        *channel = begins.saturating_add(base).saturating_add(own).max(self.bus_free);
        *channel
    }

    /// Returns `ns`, varied by the model's jitter.
    fn vary(&mut self, ns: u64) -> u64 {
        let jitter = u64::from(self.model.jitter_permille.min(1000));
        if jitter == 0 || ns == 0 {
            return ns;
        }
        let permille = 1000 - jitter + self.draw() % (2 * jitter + 1);
        let varied = u128::from(ns) * u128::from(permille) / 1000;
        u64::try_from(varied).unwrap_or(u64::MAX)
    }

    /// Returns the next number of SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: DeviceModel = DeviceModel {
        name: "plain",
        channels: 2,
        write_ns: 100,
        read_ns: 50,
        channel_bytes_per_s: 1_000_000_000, // one byte per nanosecond
        bytes_per_s: 2_000_000_000,
        flush_ns: 1000,
        flush_slots: 1,
        merges_flushes: true,
        jitter_permille: 0,
        seed: 1,
    };

    #[test]
    fn commands_run_in_parallel_up_to_the_number_of_channels() {
        let mut device = DeviceState::new(PLAIN);
        assert_eq!([device.write(0, 10), device.write(0, 10), device.write(0, 10)], [110, 110, 220]);
        assert_eq!(device.read(500, 10), 560);
    }

    #[test]
    fn many_large_writes_are_bound_by_the_bus() {
        let mut device = DeviceState::new(DeviceModel { channels: 16, ..PLAIN });
        let done: Vec<u64> = (0..16).map(|_| device.write(0, 1000)).collect();
        assert_eq!(done[0], 1100, "alone it is bound by its channel");
        assert_eq!(done[15], 8000, "16,000 bytes at two per nanosecond");
    }

    #[test]
    fn flushes_that_wait_become_one_which_covers_them_all() {
        let mut device = DeviceState::new(PLAIN);
        assert_eq!(device.flush(0), 1000);
        // The first flush has begun: these wait for the next one.
        assert_eq!([device.flush(1), device.flush(500), device.flush(1000)], [2000, 2000, 2000]);
        assert_eq!(device.flush(1001), 3000);
        assert_eq!((device.counts().flushes_asked, device.counts().flushes_done), (5, 3));
    }

    #[test]
    fn without_merging_each_flush_waits_its_turn_and_slots_overlap() {
        let plain = DeviceModel { merges_flushes: false, ..PLAIN };
        let mut device = DeviceState::new(plain);
        assert_eq!([device.flush(0), device.flush(1), device.flush(1)], [1000, 2000, 3000]);
        let mut device = DeviceState::new(DeviceModel { flush_slots: 2, ..plain });
        assert_eq!([device.flush(0), device.flush(1), device.flush(2)], [1000, 1001, 2000]);
    }

    #[test]
    fn a_power_safe_device_has_nothing_to_flush() {
        let mut device = DeviceState::new(DeviceModel { flush_ns: 0, ..PLAIN });
        assert_eq!(device.flush(77), 77);
        assert_eq!((device.counts().flushes_asked, device.counts().flushes_done), (1, 0));
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_repeats_with_its_seed() {
        let model = DeviceModel { jitter_permille: 200, channels: 1, ..PLAIN };
        let times = |seed| {
            let mut device = DeviceState::new(model.with_seed(seed));
            (0..1000).map(|i| device.write(i * 1_000, 0) - i * 1_000).collect::<Vec<_>>()
        };
        let one = times(1);
        assert_eq!(one, times(1));
        assert_ne!(one, times(2));
        assert_eq!((one.iter().min(), one.iter().max()), (Some(&80), Some(&120)));
    }

    #[test]
    fn a_device_that_drifts_keeps_what_is_under_way() {
        let mut device = DeviceState::new(PLAIN);
        device.write(0, 10);
        device.flush(110);
        device.change(DeviceModel { channels: 1, write_ns: 1, flush_ns: 10, ..PLAIN });
        assert_eq!(device.write(0, 9), 120, "behind the first");
        assert_eq!(device.flush(111), 1120, "behind the first flush");
        device.change(DeviceModel { flush_slots: 2, ..PLAIN });
        assert_eq!(device.counts().writes, 2);
    }

    #[test]
    fn numbers_at_their_limits_are_served() {
        let mut device = DeviceState::new(DeviceModel { bytes_per_s: 1, ..PLAIN });
        assert!(device.write(u64::MAX - 5, u64::MAX) > u64::MAX - 6);
        let mut device =
            DeviceState::new(DeviceModel { channels: 0, flush_slots: 0, bytes_per_s: 0, ..PLAIN });
        assert!(device.write(0, 1) >= 101 && device.flush(5) == 1005);
    }
}
