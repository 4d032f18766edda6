//! `DeviceModel`: the costs of a storage device's commands, and models of known devices.
//!
//! | field | meaning |
//! |---|---|
//! | `channels`, `write_ns`, `read_ns` | number of concurrent commands; time of a command without its bytes |
//! | `channel_bytes_per_s`, `bytes_per_s` | transfer rate of one command, and of all commands together |
//! | `flush_ns`, `flush_slots`, `merges_flushes` | flush of the cache: time, concurrency, merging |
//! | `jitter_permille`, `seed` | uniform variation of `write_ns`, `read_ns` and `flush_ns`, up and down |

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
    /// Largest number of concurrent commands, at least 1; further commands wait.
    pub channels: u32,
    /// Nanoseconds of a write command, without the transfer of its bytes.
    pub write_ns: u64,
    /// Nanoseconds of a read command, without the transfer of its bytes.
    pub read_ns: u64,
    /// Transfer rate of one command, in bytes per second.
    pub channel_bytes_per_s: u64,
    /// Transfer rate of all commands together, in bytes per second.
    pub bytes_per_s: u64,
    /// Nanoseconds of a flush of the cache. 0 if written bytes are durable and a flush costs nothing.
    pub flush_ns: u64,
    /// Largest number of concurrent flushes, at least 1; further flushes wait.
    pub flush_slots: u32,
    /// `true` if waiting flushes are merged into one.
    pub merges_flushes: bool,
    /// Variation of the times of commands and flushes, up and down, in thousandths; at most 1000.
    pub jitter_permille: u32,
    /// Seed of the variation.
    pub seed: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl DeviceModel {
    /// All named models.
    pub const ALL: [Self; 5] = [Self::iodrive(), Self::iodrive_2x(), Self::cloud(), Self::ssd(), Self::plp()];

    /// Returns the ioDrive of the P-WAL paper (160 GB, SLC, PCI Express 2.0, 2017), with the values that its
    /// text states.
    ///
    /// - `bytes_per_s`: 806 MiB/s, the maximum of Fig. 3 (§5.3.3, 64 KiB by 16 writers; 801 MiB/s with 8
    ///   KiB).
    /// - `write_ns`: a write of 8 KiB takes about 80 µs alone. The text does not state the values of Fig. 3,
    ///   so this follows from §5.3.1: the serial log did a tenth of 1.82 M transactions per second in groups
    ///   of 16, that is, 11,400 sequential writes per second.
    /// - `channels`: 16, because the curve rises up to 16 writers (§2.2, R1).
    /// - `flush_ns`: 0, because the driver bypasses volatile caches. A jitter of 10 % is assumed.
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

    /// Returns the ioDrive with twice the bandwidth. Not a real drive: it tests if the device limits a log at
    /// the ioDrive's limit.
    #[must_use]
    pub const fn iodrive_2x() -> Self {
        let bytes_per_s = 2 * Self::iodrive().bytes_per_s;
        Self { name: "iodrive-2x", channel_bytes_per_s: bytes_per_s, bytes_per_s, ..Self::iodrive() }
    }

    /// Returns a cloud volume behind virtio-blk: FLUSH instead of FUA, and concurrent FLUSHes are merged.
    ///
    /// Fitted to measurements (medians) of such a volume on 2026-11-20. A direct write of 4 KiB took 47 µs,
    /// and a FLUSH about 60 µs more. Eight writers without flush made 67,000 writes per second (so three are
    /// concurrent). One write of 1 MiB with flush took 534 µs, and the largest rate was 1.75 GiB/s.
    /// Synchronous writes of 4 KiB took 111 µs with 1 writer, 151 with 2, 203 with 4, 234 with 8, and 334
    /// with 16. A jitter of 20 % is assumed.
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

    /// Returns a consumer NVMe drive with a volatile cache: fast writes, slow flushes.
    ///
    /// `fsync` after 16 KiB on a Samsung 990 Pro takes about 890 µs (M. Callaghan, "SSDs, power loss
    /// protection and fsync latency", January 2026). The other values are assumed, in the order of the data
    /// sheets of such drives: 20 µs, 8 concurrent commands, 3 GiB/s.
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

    /// Returns a data-center NVMe drive with capacitors (power-loss protection): the cache is durable, and a
    /// flush is free.
    ///
    /// A synced write of 16 KiB on such a drive (Samsung PM9A3) takes at least 12 µs (Callaghan, see
    /// [`ssd`](Self::ssd)). 8 concurrent commands and 4 GiB/s are assumed, in the order of its data sheet.
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

    /// Returns a device with commands that take no time.
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

    /// Returns the model with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name == name)
    }

    /// Returns the same device without variation of its times.
    #[must_use]
    pub const fn without_jitter(self) -> Self {
        Self { jitter_permille: 0, ..self }
    }

    /// Returns the same device with another seed of the variation.
    #[must_use]
    pub const fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns `true` if written bytes are durable without a flush.
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
