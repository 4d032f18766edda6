//! Place of a log in this lab: this machine's disk, or memory behind a modeled device.

use azekura_cli::shared::Scratch;
use azekura_io::device::{Device, DeviceFs, DeviceModel};
use azekura_io::submit::{SubmitReport, Way};
use azekura_io::{Fs, MemFs, OsFs, SubmitFs};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The one that the directory is on.
    Real,
    /// A model, over memory.
    Model(DeviceModel),
}

impl Choice {
    /// Its name: `real`, or the model's.
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

/// A device to build on.
#[derive(Debug)]
pub struct Ground {
    choice: Choice,
    device: Option<Arc<Device>>,
    dir: PathBuf,
}

/// An empty directory for one measurement; its content is removed with it.
#[derive(Debug)]
pub struct Site {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// An existing directory in it.
    pub dir: PathBuf,
    submit: Option<SubmitFs>,
    _scratch: Option<Scratch>,
}

impl Site {
    /// Method of the writes, if another than the usual was requested.
    #[must_use]
    pub fn submit_report(&self) -> Option<SubmitReport> {
        self.submit.as_ref().map(SubmitFs::report)
    }
}

impl Ground {
    /// The device chosen; `dir` is where the real one's files go.
    #[must_use]
    pub fn new(choice: Choice, dir: &Path) -> Self {
        let device = match choice {
            Choice::Real => None,
            Choice::Model(model) => Some(Device::new(model)),
        };
        Self { choice, device, dir: dir.into() }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.choice.name()
    }

    /// The modeled device, if it is one.
    #[must_use]
    pub const fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// An empty place.
    ///
    /// # Errors
    ///
    /// If no directory can be made.
    pub fn site(&self) -> io::Result<Site> {
        self.site_by(Way::Pwrite)
    }

    /// The same; a real device's synchronous writes go this way, atomic where that can be had.
    ///
    /// # Errors
    ///
    /// As [`Ground::site`].
    pub fn site_by(&self, way: Way) -> io::Result<Site> {
        match &self.device {
            None => {
                let scratch = Scratch::new_in("azekura-p-wal-", &self.dir)?;
                let dir = scratch.path().to_owned();
                let submit = (way != Way::Pwrite).then(|| SubmitFs::new(way).atomic(true));
                let fs: Arc<dyn Fs> = match &submit {
                    Some(submit) => Arc::new(submit.clone()),
                    None => Arc::new(OsFs::new()),
                };
                Ok(Site { fs, dir, submit, _scratch: Some(scratch) })
            }
            Some(device) => {
                let fs = DeviceFs::on(Arc::new(MemFs::new()), Arc::clone(device));
                Ok(Site { fs: Arc::new(fs), dir: PathBuf::from("/"), submit: None, _scratch: None })
            }
        }
    }

    /// Does something that is not measured without waiting for a modeled device.
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
