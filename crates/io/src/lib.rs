//! File systems for the store, with exact rules for the durability of each call.
//!
//! The crate has the few calls that a database makes, and states the effect of a power loss for each. The
//! crate is neither a portable file library nor a cache. The feature `test-fs` adds three file systems for
//! tests: one that simulates power losses and failures (`fault`), one that counts calls (`counting`), and one
//! with the speed of a modeled device (`device`).
//!
//! ```
//! use azekura_io::{FaultFs, Fs, OpenOptions};
//! use std::path::Path;
//!
//! let fs = FaultFs::new();
//! let log = fs.open(Path::new("log"), OpenOptions::new().create(true))?;
//! fs.sync_dir(Path::new("/"))?; // the name
//! log.write_at(0, b"promised")?;
//! log.sync()?; // the bytes
//! log.write_at(8, b" and hoped")?; // perhaps
//!
//! let after = fs.crash(42); // power loss; the seed decides what of the rest reached the disk
//! let log = after.open(Path::new("log"), OpenOptions::new())?;
//! let mut bytes = [0; 8];
//! log.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"promised");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`fs`] | the traits `Fs`, `File`, `FileLock`, and the durability of each call |
//! | [`error`] | the errors that callers distinguish, and the check of direct accesses |
//! | [`os`] | `OsFs`: the operating system's files, direct or buffered |
//! | [`memory`] | `MemFs`: files in memory, every write durable at once |
//! | [`overlay`] | `OverlayFs`: a layer that keeps changes in memory, above files that are only read |
//! | `counting` | `CountingFs`: a layer that counts calls and bytes |
//! | `device` | `DeviceFs`: a layer with the speed of a modeled device; the costs as a pure function |
//! | `fault` | `FaultFs`: files on a simulated disk with power losses, failures, and lost writes |
//! | `tree`, `image`, `locks` | names, contents and file locks of the two in-memory file systems |

// Only `os::scatter` needs unsafe code.
#![deny(unsafe_code)]

#[cfg(feature = "test-fs")]
pub mod counting;
#[cfg(feature = "test-fs")]
pub mod device;
pub mod error;
#[cfg(feature = "test-fs")]
pub mod fault;
pub mod fs;
mod image;
mod locks;
pub mod memory;
pub mod os;
pub mod overlay;
mod tree;

#[cfg(feature = "test-fs")]
pub use counting::{CountingFs, Counts};
#[cfg(feature = "test-fs")]
pub use device::{DeviceFs, DeviceModel};
pub use error::{PowerCut, is_power_cut};
#[cfg(feature = "test-fs")]
pub use fault::{FailKind, FaultFs, IoKind, IoRecord};
pub use fs::{
    File, FileLock, Fs, OpenOptions, create_dir_all_durable, create_dir_durable, file_exists, replace_file,
};
pub use memory::MemFs;
pub use os::OsFs;
pub use overlay::OverlayFs;
