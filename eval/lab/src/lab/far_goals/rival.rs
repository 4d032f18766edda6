//! The alternative of a user: the kernel's swap on compressed memory (zram), with the memory limit of a
//! cgroup.
//!
//! Needs root, an unused `/dev/zram0` and a memory cgroup. If one is missing, the reason is reported and
//! nothing is changed. Swap is never on a loop device, NBD or FUSE, because those can deadlock the kernel
//! under a memory limit. Dropping [`Swap`] removes the setup. After a `kill -9` of the lab, remove it with
//! `swapoff /dev/zram0 && echo 1 > /sys/block/zram0/reset`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::server_process::Killed;

/// Device file of the compressed memory.
const DEVICE: &str = "/dev/zram0";
const BLOCK: &str = "/sys/block/zram0";
/// Directories of memory limits in the two versions of cgroups.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";
/// Memory for the program itself, besides its data.
const OWN: usize = 8 << 20;
/// Interval of the checks for the end of a program. The program measures its own time.
const LOOK: Duration = Duration::from_millis(20);

/// Active swap with a memory cgroup; dropping the value removes both.
#[derive(Debug)]
pub struct Swap {
    group: Group,
}

impl Swap {
    /// Activates swap: `bytes` of compressed memory, for programs with at most `limit` bytes of resident
    /// data.
    ///
    /// # Errors
    ///
    /// The reason that swap is not available, as text for the report.
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

    /// Runs a task of this lab as a process in the cgroup and returns its standard output. The process is
    /// killed after `within`.
    ///
    /// # Errors
    ///
    /// The reason, as text for the report.
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
        // The output of one or two lines fits into the pipe, so the process never waits for a reader.
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
        // `swapoff` fails if swap was not activated; the reset frees the device in any case.
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

    /// Returns the file to which a process writes its number to join the cgroup.
    fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The cgroup should be empty, because its programs have ended. If it is not, it remains.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Makes this process a member of the cgroup with this `cgroup.procs` file.
///
/// # Errors
///
/// An error of the operating system.
pub fn join(members: &Path) -> io::Result<()> {
    fs::write(members, std::process::id().to_string())
}
