//! `DeviceModel`: the costs of a storage device's commands, and the devices that the labs use.
//!
//! | number | meaning |
//! |---|---|
//! | `channels`, `write_ns`, `read_ns` | concurrent commands, and the time of one without its bytes |
//! | `channel_bytes_per_s`, `bytes_per_s` | transfer rate of one command, and of all together |
//! | `flush_ns`, `flush_slots`, `merges_flushes` | flush of the cache: time, concurrency, merging |
//! | `jitter_permille`, `seed` | uniform variation of `write_ns`, `read_ns` and `flush_ns`, to both sides |

/// The costs of a device.
///
/// ```
/// use azekura_io::device::{DeviceModel, DeviceState};
/// let mut cloud = DeviceState::new(DeviceModel::cloud().without_jitter());
/// let written = cloud.write(0, 4096);
/// assert_eq!(cloud.flush(written) - written, 60_000); // a synchronous write there is mostly the flush
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// Name in reports.
    pub name: &'static str,
    /// Largest number of concurrent commands, at least 1; more wait.
    pub channels: u32,
    /// Nanoseconds for a write command, besides those for its bytes.
    pub write_ns: u64,
    /// Nanoseconds for a read command, besides those for its bytes.
    pub read_ns: u64,
    /// Bytes per second of one command.
    pub channel_bytes_per_s: u64,
    /// Bytes per second of all commands together.
    pub bytes_per_s: u64,
    /// Nanoseconds to empty the cache; 0: written bytes are durable, and a flush costs nothing.
    pub flush_ns: u64,
    /// Largest number of concurrent flushes, at least 1; more wait.
    pub flush_slots: u32,
    /// `true` if waiting flushes are merged into one.
    pub merges_flushes: bool,
    /// Times of commands and flushes vary by up to this many thousandths, to both sides; at most 1000.
    pub jitter_permille: u32,
    /// Seed of the variation.
    pub seed: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl DeviceModel {
    /// Every model that has a name.
    pub const ALL: [Self; 5] = [Self::iodrive(), Self::iodrive_2x(), Self::cloud(), Self::ssd(), Self::plp()];

    /// The ioDrive of the P-WAL paper (160 GB, SLC, PCI Express 2.0, 2017), with the values that its text
    /// states.
    ///
    /// - All together 806 MiB/s: the most that Fig. 3 reached (§5.3.3, 64 KiB by 16 writers; 801 with 8 KiB).
    /// - A write of 8 KiB takes some 80 µs alone. Fig. 3's curve is not in the text; this follows from
    ///   §5.3.1: the serial log did a tenth of 1.82 M transactions per second in groups of 16, that is 11,400
    ///   writes per second one after the other.
    /// - 16 at once: the curve rises up to 16 writers (§2.2, R1).
    /// - No flush: the driver writes past volatile caches. Jitter of 10 % is assumed.
    #[must_use]
    pub const fn iodrive() -> Self {
        Self {
            name: "iodrive",
            channels: 16,
            write_ns: 70_000,
            read_ns: 70_000,
            channel_bytes_per_s: 806 * MIB,
            bytes_per_s: 806 * MIB,
            flush_ns: 0,
            flush_slots: 1,
            merges_flushes: false,
            jitter_permille: 100,
            seed: 1,
        }
    }

    /// The same with twice the bandwidth: not a measured drive, but a test whether a log at the ioDrive's
    /// limit is limited by the device.
    #[must_use]
    pub const fn iodrive_2x() -> Self {
        let bytes_per_s = 2 * Self::iodrive().bytes_per_s;
        Self { name: "iodrive-2x", channel_bytes_per_s: bytes_per_s, bytes_per_s, ..Self::iodrive() }
    }

    /// A cloud volume behind virtio-blk: FLUSH instead of FUA, and concurrent FLUSHes merged.
    ///
    /// Fitted to measurements (medians) of such a volume on 2026-11-20: a direct write of 4 KiB 47 µs, FLUSH
    /// some 60 µs more, eight writers without flush 67 k/s (so three at once), one write of 1 MiB with flush
    /// 534 µs, at most 1.75 GiB/s. Synchronous 4-KiB writers, measured: 1: 111 µs, 2: 151, 4: 203, 8: 234,
    /// 16: 334. Jitter of 20 % is assumed.
    #[must_use]
    pub const fn cloud() -> Self {
        Self {
            name: "cloud",
            channels: 3,
            write_ns: 47_000,
            read_ns: 76_000,
            channel_bytes_per_s: 2458 * MIB,
            bytes_per_s: 1792 * MIB,
            flush_ns: 60_000,
            flush_slots: 1,
            merges_flushes: true,
            jitter_permille: 200,
            seed: 1,
        }
    }

    /// A consumer's NVMe drive with a volatile cache: fast to take bytes, slow to make them safe.
    ///
    /// `fsync` after 16 KiB on a Samsung 990 Pro: some 890 µs (M. Callaghan, "SSDs, power loss protection and
    /// fsync latency", January 2026). The rest is of the order that such drives' data sheets give, and
    /// assumed: 20 µs, 8 at once, 3 GiB/s.
    #[must_use]
    pub const fn ssd() -> Self {
        Self {
            name: "ssd",
            channels: 8,
            write_ns: 20_000,
            read_ns: 60_000,
            channel_bytes_per_s: 2 * GIB,
            bytes_per_s: 3 * GIB,
            flush_ns: 870_000,
            flush_slots: 1,
            merges_flushes: true,
            jitter_permille: 200,
            seed: 1,
        }
    }

    /// A data-center NVMe drive with capacitors: its cache is safe, a flush is free.
    ///
    /// A synced write of 16 KiB on such drives (Samsung PM9A3): from 12 µs up (Callaghan, as above); 8 at
    /// once and 4 GiB/s are of the order of its data sheet, and assumed.
    #[must_use]
    pub const fn plp() -> Self {
        Self {
            name: "plp",
            channels: 8,
            write_ns: 12_000,
            read_ns: 80_000,
            channel_bytes_per_s: 3 * GIB,
            bytes_per_s: 4 * GIB,
            flush_ns: 0,
            flush_slots: 1,
            merges_flushes: false,
            jitter_permille: 100,
            seed: 1,
        }
    }

    /// A device with commands that take no time.
    #[must_use]
    pub const fn free() -> Self {
        Self {
            name: "free",
            channels: 1,
            write_ns: 0,
            read_ns: 0,
            channel_bytes_per_s: u64::MAX,
            bytes_per_s: u64::MAX,
            flush_ns: 0,
            flush_slots: 1,
            merges_flushes: true,
            jitter_permille: 0,
            seed: 1,
        }
    }

    /// The model of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name == name)
    }

    /// The same, with times that do not vary.
    #[must_use]
    pub const fn without_jitter(self) -> Self {
        Self { jitter_permille: 0, ..self }
    }

    /// The same device with another seed of the variation.
    #[must_use]
    pub const fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns `true` if written bytes are safe without a flush.
    #[must_use]
    pub const fn is_power_safe(&self) -> bool {
        self.flush_ns == 0
    }

    /// Returns the nanoseconds of a synchronous write of `bytes` on an idle device, without variation.
    #[must_use]
    pub fn lone_write_ns(&self, bytes: u64) -> u64 {
        let slower = self.channel_bytes_per_s.min(self.bytes_per_s);
        self.write_ns + transfer_ns(bytes, slower) + self.flush_ns
    }
}

/// Returns the nanoseconds of a transfer of `bytes`, rounded up.
pub(super) fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_their_names_and_differ() {
        for model in DeviceModel::ALL {
            assert_eq!(DeviceModel::named(model.name), Some(model));
            assert!(model.channels > 0 && model.flush_slots > 0 && model.jitter_permille <= 1000);
        }
        assert_eq!(DeviceModel::named("floppy"), None);
    }

    #[test]
    fn a_lone_write_takes_what_was_measured() {
        let us = |model: DeviceModel, bytes| model.lone_write_ns(bytes) as f64 / 1000.0;
        assert!((us(DeviceModel::cloud(), 4096) - 111.0).abs() < 5.0);
        assert!((us(DeviceModel::cloud(), 1 << 20) - 534.0).abs() < 150.0);
        assert!((us(DeviceModel::iodrive(), 8192) - 80.0).abs() < 2.0);
        assert!((us(DeviceModel::ssd(), 16 << 10) - 890.0).abs() < 10.0);
    }
}
