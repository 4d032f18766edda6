//! Device of a log in this lab: this machine's disk, or memory behind a modeled device.

use azekura_baselines::ring_fs::{RingFs, RingReport};
use azekura_cli::shared::Scratch;
use azekura_io::device::{Device, DeviceFs, DeviceModel};
use azekura_io::{Fs, MemFs, OsFs};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A choice of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The device of the lab's directory.
    Real,
    /// A modeled device over memory.
    Model(DeviceModel),
}

impl Choice {
    /// Returns `real`, or the model's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Model(model) => model.name,
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "real" {
            return Ok(Self::Real);
        }
        DeviceModel::named(name).map(Self::Model).ok_or_else(|| {
            let names: Vec<&str> = DeviceModel::ALL.iter().map(|model| model.name).collect();
            format!("no device is called {name}; there are real, {}", names.join(", "))
        })
    }
}

/// A device for measurements.
#[derive(Debug)]
pub struct Ground {
    choice: Choice,
    device: Option<Arc<Device>>,
    dir: PathBuf,
}

/// An empty directory for one measurement; dropping it removes its content.
#[derive(Debug)]
pub struct Site {
    /// File system of the directory.
    pub fs: Arc<dyn Fs>,
    /// Path of the directory.
    pub dir: PathBuf,
    ring: Option<RingFs>,
    _scratch: Option<Scratch>,
}

impl Site {
    /// Returns counts of the methods of writing, if io_uring was requested.
    #[must_use]
    pub fn ring_report(&self) -> Option<RingReport> {
        self.ring.as_ref().map(RingFs::report)
    }
}

impl Ground {
    /// Returns the chosen device; the files of the real one are below `dir`.
    #[must_use]
    pub fn new(choice: Choice, dir: &Path) -> Self {
        let device = match choice {
            Choice::Real => None,
            Choice::Model(model) => Some(Device::new(model)),
        };
        Self { choice, device, dir: dir.into() }
    }

    /// Returns the device's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.choice.name()
    }

    /// Returns the modeled device; `None` for the real one.
    #[must_use]
    pub const fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Returns an empty directory on the device.
    ///
    /// # Errors
    ///
    /// If no directory can be created.
    pub fn site(&self) -> io::Result<Site> {
        self.site_by(false)
    }

    /// Returns an empty directory as [`Ground::site`] does. On the real device, synchronous writes use
    /// io_uring if `by_ring`, with atomic writes if the device supports them.
    ///
    /// # Errors
    ///
    /// The same as those of [`Ground::site`].
    pub fn site_by(&self, by_ring: bool) -> io::Result<Site> {
        match &self.device {
            None => {
                let scratch = Scratch::new_in("azekura-p-wal-", &self.dir)?;
                let dir = scratch.path().to_owned();
                let ring = by_ring.then(RingFs::new);
                let fs: Arc<dyn Fs> = match &ring {
                    Some(ring) => Arc::new(ring.clone()),
                    None => Arc::new(OsFs::new()),
                };
                Ok(Site { fs, dir, ring, _scratch: Some(scratch) })
            }
            Some(device) => {
                let fs = DeviceFs::on(Arc::new(MemFs::new()), Arc::clone(device));
                Ok(Site { fs: Arc::new(fs), dir: PathBuf::from("/"), ring: None, _scratch: None })
            }
        }
    }

    /// Runs `work`, which is not measured, while the modeled device takes no time.
    pub fn at_no_cost<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(device) = &self.device else { return work() };
        let model = device.model();
        device.change(DeviceModel::free());
        let done = work();
        device.change(model);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_chosen_by_name() {
        assert_eq!("real".parse(), Ok(Choice::Real));
        assert_eq!("iodrive".parse(), Ok(Choice::Model(DeviceModel::iodrive())));
        let error = "tape".parse::<Choice>().unwrap_err();
        assert!(error.contains("tape") && error.contains("cloud"), "{error}");
    }

    #[test]
    fn sites_are_apart_and_leave_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        for choice in [Choice::Real, Choice::Model(DeviceModel::plp())] {
            let ground = Ground::new(choice, dir.path());
            let (one, two) = (ground.site().unwrap(), ground.site().unwrap());
            let options = azekura_io::OpenOptions::new().create_new(true);
            for site in [&one, &two] {
                ground.at_no_cost(|| site.fs.open(&site.dir.join("f"), options)).unwrap();
            }
            assert_eq!(ground.device().map(|d| d.model().name), (choice != Choice::Real).then_some("plp"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
