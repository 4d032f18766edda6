//! The alternative of a user: the kernel's swap, on compressed memory (zram), under a limit of a memory
//! cgroup.
//!
//! Needs root, an unused `/dev/zram0` and a memory cgroup; if one is missing, the reason is reported and
//! nothing is changed. Never on a loop device, NBD or FUSE: those can deadlock the kernel under a limit. The
//! drop of the value removes the setup; after a `kill -9` of the lab, `swapoff /dev/zram0 && echo 1 >
//! /sys/block/zram0/reset` does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::server_process::Killed;

/// The compressed memory's device.
const DEVICE: &str = "/dev/zram0";
const BLOCK: &str = "/sys/block/zram0";
/// The places of memory limits in the two versions of cgroups: the folder, the limit's file, and the file
/// that must exist.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";
/// For the program itself, beside its data.
const OWN: usize = 8 << 20;
/// So often it is looked whether a program has ended; its own clock measures.
const LOOK: Duration = Duration::from_millis(20);

/// Swap that is on.
#[derive(Debug)]
pub struct Swap {
    group: Group,
}

impl Swap {
    /// Turns swap on: `bytes` of compressed memory, for programs of at most `limit` bytes of data.
    ///
    /// # Errors
    ///
    /// Why there is none here, as text for the report.
    pub fn on(bytes: usize, limit: usize) -> Result<Self, String> {
        let known = fs::read_to_string(format!("{BLOCK}/disksize"));
        let size = known.map_err(|_| format!("no {DEVICE}"))?;
        if size.trim() != "0" {
            return Err(format!("{DEVICE} is in use"));
        }
        let group = Group::new(limit + OWN).map_err(|why| format!("no memory cgroup: {why}"))?;
        let swap = Self { group };
        fs::write(format!("{BLOCK}/disksize"), bytes.to_string())
            .map_err(|why| format!("size of {DEVICE}: {why}"))?;
        call(Command::new("mkswap").arg(DEVICE))?;
        call(Command::new("swapon").args(["-p", "1", DEVICE]))?;
        Ok(swap)
    }

    /// Runs a program of ours, as a process in the group, and returns its standard output, a line or two. It
    /// is ended after `within`.
    ///
    /// # Errors
    ///
    /// As text for the report.
    pub fn run(&self, program: &Path, task: &str, within: Duration) -> Result<String, String> {
        let failed = |why: io::Error| format!("run the program: {why}");
        let mut process = Command::new(program)
            .args(["far-goals", "--worker", task, "--group"])
            .arg(self.group.members())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Killed)
            .map_err(failed)?;
        let began = Instant::now();
        // Its output fits into a pipe.
        let status = loop {
            match process.0.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if began.elapsed() > within => {
                    return Err(format!("the program was not done after {} s", within.as_secs()));
                }
                None => thread::sleep(LOOK),
            }
        };
        let text = |from: Option<&mut dyn io::Read>| {
            let mut said = String::new();
            from.map_or(Ok(0), |from| from.read_to_string(&mut said)).map(|_| said)
        };
        let said = text(process.0.stdout.as_mut().map(|from| from as _)).map_err(failed)?;
        if status.success() {
            return Ok(said);
        }
        let why = text(process.0.stderr.as_mut().map(|from| from as _)).map_err(failed)?;
        Err(format!("the program ended with {status}: {}", why.trim()))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // `swapoff` fails if the device was not turned on; the device is free again in any case.
        let _ = call(Command::new("swapoff").arg(DEVICE));
        let _ = fs::write(format!("{BLOCK}/reset"), "1");
    }
}

fn call(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|why| format!("{name}: {why}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A memory cgroup with a limit.
#[derive(Debug)]
struct Group {
    path: PathBuf,
}

impl Group {
    fn new(limit: usize) -> io::Result<Self> {
        let old = Path::new(VERSION_1).join("memory.limit_in_bytes").exists();
        let (root, file) = if old { (VERSION_1, "memory.limit_in_bytes") } else { (VERSION_2, "memory.max") };
        let path = Path::new(root).join(format!("azekura-far-goals-{}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Self { path };
        fs::write(group.path.join(file), limit.to_string())?;
        Ok(group)
    }

    /// The file in which a process writes itself down.
    fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty, as its programs have ended; if not, it stays under its name.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Makes this process a member of a group.
///
/// # Errors
///
/// An error of the operating system.
pub fn join(members: &Path) -> io::Result<()> {
    fs::write(members, std::process::id().to_string())
}
