//! Launch of an unmodified program with its large blocks in far memory: the launcher passes settings through
//! environment variables to the library that it preloads.

use crate::compression::Compression;
use crate::fault::Mechanism;
use crate::region::FarMemory;
use crate::replace::Policy;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File name of the preloaded library.
const LIBRARY: &str = "libazekura_far_preload.so";
/// Environment variable with another library to load instead.
const OTHER: &str = "AZEKURA_FAR_PRELOAD";
/// Environment variables, one per setting of [`Launch`].
const SERVERS: &str = "AZEKURA_FAR_SERVERS";
const LOCAL: &str = "AZEKURA_FAR_LOCAL";
const SPACE: &str = "AZEKURA_FAR_SPACE";
const PAGE: &str = "AZEKURA_FAR_PAGE";
const BLOCK: &str = "AZEKURA_FAR_BLOCK";
const COPIES: &str = "AZEKURA_FAR_COPIES";
const STALL: &str = "AZEKURA_FAR_STALL";
const SPILL: &str = "AZEKURA_FAR_SPILL";
const KEY: &str = "AZEKURA_FAR_AUTH_KEY";
const POLICY: &str = "AZEKURA_FAR_POLICY";
const MECHANISM: &str = "AZEKURA_FAR_MECHANISM";
const STATS: &str = "AZEKURA_FAR_STATS_JSON";
const COMPRESS: &str = "AZEKURA_FAR_COMPRESS";
const QUIET: &str = "AZEKURA_FAR_QUIET";
const STRICT: &str = "AZEKURA_FAR_STRICT";
const PROGRESS: &str = "AZEKURA_FAR_PROGRESS";

/// Far-memory settings of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Memory servers, as `host:port`.
    pub servers: Vec<String>,
    /// Bytes of large blocks that may be local at once.
    pub local: usize,
    /// Largest total size of large blocks.
    pub space: usize,
    /// Bytes of a page.
    pub page: usize,
    /// Least size in bytes of a block that becomes far memory.
    pub block: usize,
    /// Number of servers that hold each page.
    pub copies: usize,
    /// Time without an answer after which a server counts as lost, in milliseconds.
    pub stall_ms: u64,
    /// A spill file, or a directory for spill files. Each process creates its own file; see
    /// [`spill_path`](Self::spill_path).
    pub spill: Option<PathBuf>,
    /// File with the authentication key of the servers.
    pub auth_key: Option<PathBuf>,
    /// Replacement policy.
    pub policy: Policy,
    /// Mechanism that pages in and out.
    pub mechanism: Mechanism,
    /// Compression of pages that leave far memory but stay on this machine.
    pub compression: Compression,
    /// File for the statistics at the end of each process: one line of JSON per process.
    pub stats_json: Option<PathBuf>,
    /// Suppresses the messages at the start and at the end.
    pub quiet: bool,
    /// Ends a program that needs more local memory than [`local`](Self::local) for its large blocks.
    pub strict: bool,
    /// Interval between reports of misses while the program runs, in milliseconds; 0 for none.
    pub progress_ms: u64,
}

/// Error of launching a program with far memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A setting is missing or wrong.
    #[error("{name}: {value:?} is not valid; start the program by `azekura far`")]
    Setting {
        /// Name of the environment variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
    },
    /// `AZEKURA_FAR_PRELOAD` is set and names no existing file. Without this error the program would silently
    /// run without far memory.
    #[error(
        "{OTHER} is {value:?}, and there is no such library; unset it to use the built-in one, or give the \
         path of one"
    )]
    Other {
        /// Value of the variable.
        value: String,
    },
    /// The library was not found beside this program.
    #[error("no {LIBRARY} beside this program ({}); build it with `cargo build --release \
        -p azekura-far-preload-cdylib`, or give its path in AZEKURA_FAR_PRELOAD",
        looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoLibrary {
        /// Paths that were searched.
        looked: Vec<PathBuf>,
    },
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            local: 1 << 30,
            space: 64 << 30,
            page: FarMemory::PAGE,
            block: 1 << 20,
            copies: 1,
            stall_ms: 2000,
            spill: None,
            auth_key: None,
            policy: Policy::default(),
            mechanism: Mechanism::Auto,
            compression: Compression::None,
            stats_json: None,
            quiet: false,
            strict: false,
            progress_ms: 0,
        }
    }
}

impl Launch {
    /// Prepares a command: preloads the library that is found beside this program, and passes the settings.
    ///
    /// # Errors
    ///
    /// [`LaunchError::NoLibrary`], [`LaunchError::Other`].
    pub fn prepare(&self, command: &mut Command) -> Result<(), LaunchError> {
        self.prepare_with(command, &find_library()?);
        Ok(())
    }

    /// Prepares a command as [`prepare`](Self::prepare) does, with a given path of the library.
    pub fn prepare_with(&self, command: &mut Command, library: &Path) {
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload).envs(self.environment());
    }

    /// Returns the path of this process's spill file. The file is unlinked as soon as it is open. Child
    /// processes inherit the setting, so the process number is part of the path.
    #[must_use]
    pub fn spill_path(&self) -> Option<PathBuf> {
        let path = self.spill.as_ref()?;
        let process = std::process::id();
        if path.is_dir() {
            return Some(path.join(format!("azekura-far-{process}.spill")));
        }
        let mut name = path.clone().into_os_string();
        name.push(format!(".{process}"));
        Some(name.into())
    }

    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut settings: Vec<(&'static str, OsString)> = vec![
            (SERVERS, self.servers.join(",").into()),
            (LOCAL, self.local.to_string().into()),
            (SPACE, self.space.to_string().into()),
            (PAGE, self.page.to_string().into()),
            (BLOCK, self.block.to_string().into()),
            (COPIES, self.copies.to_string().into()),
            (STALL, self.stall_ms.to_string().into()),
            (POLICY, self.policy.to_string().into()),
            (MECHANISM, self.mechanism.to_string().into()),
            (COMPRESS, self.compression.to_string().into()),
            (QUIET, if self.quiet { "1" } else { "0" }.into()),
            (STRICT, if self.strict { "1" } else { "0" }.into()),
            (PROGRESS, self.progress_ms.to_string().into()),
        ];
        let paths = [(SPILL, &self.spill), (KEY, &self.auth_key), (STATS, &self.stats_json)];
        settings.extend(paths.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?.into()))));
        settings
    }

    /// Returns the settings that a launcher put into this process's environment; `None` if there are none.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Setting`].
    pub fn from_environment() -> Result<Option<Self>, LaunchError> {
        Self::from_settings(&|name| std::env::var_os(name))
    }

    fn from_settings(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Self>, LaunchError> {
        let Some(servers) = get(SERVERS) else { return Ok(None) };
        let servers =
            servers.to_string_lossy().split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        Ok(Some(Self {
            servers,
            local: parsed(get, LOCAL)?,
            space: parsed(get, SPACE)?,
            page: parsed(get, PAGE)?,
            block: parsed(get, BLOCK)?,
            copies: parsed(get, COPIES)?,
            stall_ms: parsed(get, STALL)?,
            spill: get(SPILL).map(Into::into),
            auth_key: get(KEY).map(Into::into),
            policy: parsed(get, POLICY)?,
            mechanism: parsed(get, MECHANISM)?,
            compression: parsed(get, COMPRESS)?,
            stats_json: get(STATS).map(Into::into),
            quiet: parsed::<u8>(get, QUIET)? != 0,
            strict: parsed::<u8>(get, STRICT)? != 0,
            progress_ms: parsed(get, PROGRESS)?,
        }))
    }
}

fn parsed<T: std::str::FromStr>(
    get: &dyn Fn(&str) -> Option<OsString>,
    name: &'static str,
) -> Result<T, LaunchError> {
    let value = get(name).unwrap_or_default().to_string_lossy().into_owned();
    value.parse().map_err(|_| LaunchError::Setting { name, value })
}

/// Returns the library that `AZEKURA_FAR_PRELOAD` names to be loaded instead of the built-in library; `None`
/// if the variable is not set.
///
/// # Errors
///
/// [`LaunchError::Other`]: the variable is set, and names no existing file.
pub fn other_library() -> Result<Option<PathBuf>, LaunchError> {
    std::env::var_os(OTHER).map(existing_library).transpose()
}

fn existing_library(value: OsString) -> Result<PathBuf, LaunchError> {
    // The dynamic loader would search a name without a directory in other places, and the program may change
    // its directory.
    let path = std::path::absolute(&value).ok().filter(|path| path.is_file());
    path.ok_or_else(|| LaunchError::Other { value: value.to_string_lossy().into_owned() })
}

/// Searches for the library beside this program and in the directory of its tests. Takes the newest file,
/// because cargo leaves an older one behind when it rebuilds only the program.
fn find_library() -> Result<PathBuf, LaunchError> {
    if let Some(other) = other_library()? {
        return Ok(other);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let here = program.parent().unwrap_or(Path::new("."));
    let looked = ["", "deps", "..", "../lib", "../lib/azekura"].map(|place| here.join(place).join(LIBRARY));
    let newest = |path: &&PathBuf| path.metadata().and_then(|m| m.modified()).ok();
    let found = looked.iter().filter(|path| path.is_file()).max_by_key(newest);
    let found = found.and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| LaunchError::NoLibrary { looked: looked.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_library_decodes_the_settings_of_the_launcher() {
        let launch = Launch {
            servers: vec!["a:1".into(), "b:2".into()],
            copies: 2,
            stall_ms: 60_000,
            spill: Some("/spill dir".into()),
            policy: Policy::UClock,
            mechanism: Mechanism::Sigsegv,
            compression: Compression::Lz4,
            strict: true,
            progress_ms: 250,
            ..Launch::default()
        };
        let mut said: HashMap<_, _> = launch.environment().into_iter().collect();
        assert_eq!(Launch::from_settings(&|name| said.get(name).cloned()).unwrap(), Some(launch));
        said.insert(PAGE, "much".into());
        let refused = Launch::from_settings(&|name| said.get(name).cloned()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "AZEKURA_FAR_PAGE: \"much\" is not valid; start the program by `azekura far`"
        );
        assert_eq!(Launch::from_settings(&|_| None).unwrap(), None);
    }

    #[test]
    fn another_library_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("other.so");
        let refused = existing_library(library.clone().into()).unwrap_err().to_string();
        assert!(refused.contains("other.so") && refused.contains("no such library"), "{refused}");
        std::fs::write(&library, "").unwrap();
        assert_eq!(existing_library(library.clone().into()).unwrap(), library);
        for nothing in ["".into(), OsString::from(folder.path())] {
            assert!(matches!(existing_library(nothing), Err(LaunchError::Other { .. })));
        }
    }

    #[test]
    fn each_process_has_a_spill_file_of_its_own() {
        let at = |path: &Path| Launch { spill: Some(path.into()), ..Launch::default() }.spill_path().unwrap();
        let process = std::process::id();
        let directory = std::env::temp_dir();
        assert_eq!(at(&directory), directory.join(format!("azekura-far-{process}.spill")));
        assert_eq!(at(&directory.join("no/file")), directory.join(format!("no/file.{process}")));
    }
}
