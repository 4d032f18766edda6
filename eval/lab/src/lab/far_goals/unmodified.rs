//! Unmodified third-party programs: plain, on far memory with all large blocks local, and with at most three
//! quarters of them local. The last case runs as the current user; if that is root, as the user *nobody*,
//! too.
//!
//! The report names programs that are not installed. `scripts/far-programs.py` runs more programs, with half
//! of their memory local and with every mechanism.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use azekura_cli::shared::Scratch;
use azekura_far::{FarMemory, Policy, Server};

/// Page size in bytes; `BLOCK` is the size of the smallest block that is put into far memory.
const PAGE: usize = FarMemory::PAGE;
const BLOCK: usize = 256 << 10;
/// Bytes of address space for large blocks.
const SPACE: usize = 512 << 20;
/// Smallest number of local pages of a program.
const LEAST_PAGES: usize = 64;
/// Search path with system directories only: the user *nobody* may not be able to execute other programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// User number of *nobody*, the conventional user without rights.
const NOBODY: u32 = 65_534;

/// Settings of the trials.
#[derive(Clone, Copy, Debug)]
pub struct Trials<'a> {
    /// Path of the lab's executable, which also contains the command `azekura`.
    pub program: &'a Path,
    /// Replacement policy of far memory.
    pub policy: Policy,
    /// Uses less data and fewer repetitions.
    pub quick: bool,
}

/// Results of the trials.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Results of the programs that are installed.
    pub seen: Vec<Seen>,
    /// Names of the programs that are not installed.
    pub missing: Vec<&'static str>,
    /// Programs that failed on far memory, with the reason.
    pub failed: Vec<(&'static str, String)>,
}

/// Results of one program.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Name of the program.
    pub name: &'static str,
    /// Seconds of a plain run: the median of runs that alternate with those of `fits_s`.
    pub plain_s: f64,
    /// Seconds on far memory with all large blocks local.
    pub fits_s: f64,
    /// Runs with at most three quarters of the large blocks local, one for each user.
    pub parts: Vec<Part>,
}

/// A run with part of the large blocks local.
#[derive(Clone, Debug)]
pub struct Part {
    /// User of the process.
    pub user: &'static str,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of pages that were paged out.
    pub pages_out: u64,
    /// Reason that the run counts as failed; `None` if pages were paged out and the output was that of the
    /// plain run.
    pub wrong: Option<String>,
}

/// A program with its arguments.
struct Sample {
    name: &'static str,
    arguments: fn(&Path, u32) -> Vec<String>,
}

const SAMPLES: [Sample; 3] = [
    Sample { name: "sort", arguments: sort },
    Sample { name: "sqlite3", arguments: sqlite },
    Sample { name: "python3", arguments: python },
];

fn sort(folder: &Path, share: u32) -> Vec<String> {
    let lines = folder.join("lines").display().to_string();
    ["-S", &format!("{}M", 16 * share), "--parallel=2", "-k2,2n", &lines].map(str::to_owned).into()
}

fn sqlite(_: &Path, share: u32) -> Vec<String> {
    let sql = format!(
        "pragma journal_mode = off; create table t(a integer primary key, b text, c blob); with recursive \
         n(i) as (select 1 union all select i + 1 from n where i < {}) insert into t select i, hex(i * \
         7919), zeroblob(i % 400) from n; create index u on t(b); delete from t where a % 7 = 0; select \
         count(*), sum(length(b)), sum(length(c)), min(b), max(b) from t; pragma integrity_check;",
        40_000 * share
    );
    ["-pagecache", "4400", &(4_000 * share).to_string(), ":memory:", &sql].map(str::to_owned).into()
}

fn python(_: &Path, share: u32) -> Vec<String> {
    let code = format!(
        "a = [i * 7919 % 1000003 for i in range({} * 100000)]; b = sorted(a); print(b[::9999], sum(x * y % \
         1013 for x, y in zip(a, b)))",
        4 * share
    );
    ["-c", &code].map(str::to_owned).into()
}

/// Output and duration of a process.
struct Left {
    out: Vec<u8>,
    seconds: f64,
}

impl Trials<'_> {
    /// Runs all programs that are installed.
    ///
    /// # Errors
    ///
    /// The input directory or the memory server could not be created. Failures of a program are in the
    /// report.
    pub fn run(&self) -> io::Result<Report> {
        let folder = Scratch::new("azekura-lab-")?;
        let folder = folder.path();
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        // The user *nobody* may have no access to this executable at its place, so a copy is used.
        let azekura = folder.join("azekura");
        fs::copy(self.program, &azekura)?;
        fs::set_permissions(&azekura, Permissions::from_mode(0o755))?;
        fs::write(folder.join("lines"), lines(self.share()))?;
        let server =
            Server::builder().capacity(2 * SPACE as u64).listen("127.0.0.1:0").map_err(io::Error::other)?;
        let at =
            Place { azekura: &azekura, folder, server: server.address().to_string(), policy: self.policy };
        let mut report = Report::default();
        for sample in &SAMPLES {
            let arguments = (sample.arguments)(folder, self.share());
            let seen = at.plain(sample.name, &arguments);
            match seen.and_then(|plain| self.seen(&at, sample.name, &arguments, plain)) {
                Ok(seen) => report.seen.push(seen),
                Err(error) if error.kind() == ErrorKind::NotFound => report.missing.push(sample.name),
                Err(error) => report.failed.push((sample.name, error.to_string())),
            }
        }
        Ok(report)
    }

    fn share(&self) -> u32 {
        if self.quick { 1 } else { 4 }
    }

    fn seen(
        &self,
        at: &Place<'_>,
        name: &'static str,
        arguments: &[String],
        plain: Left,
    ) -> io::Result<Seen> {
        let expected = plain.out;
        let mut times = [Vec::new(), Vec::new()];
        let mut used = 0;
        for _ in 0..if self.quick { 1 } else { 5 } {
            times[0].push(at.plain(name, arguments)?.seconds);
            let (left, stats) = at.far(name, arguments, SPACE, false)?;
            if left.out != expected {
                let wrong = Some("with all memory local its output differs".into());
                let part = Part { user: "this user", seconds: left.seconds, pages_out: 0, wrong };
                return Ok(Seen { name, plain_s: plain.seconds, fits_s: left.seconds, parts: vec![part] });
            }
            times[1].push(left.seconds);
            used = stats.pages_used;
        }
        let [plain_s, fits_s] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        // With half of the pages local, programs with random reads would take minutes.
        let local = (used * 3 / 4).max(LEAST_PAGES) * PAGE;
        let users: &[(&str, bool)] = if rustix::process::geteuid().is_root() {
            &[("root", false), ("nobody", true)]
        } else {
            &[("this user", false)]
        };
        let part = |&(user, as_nobody): &(&'static str, bool)| {
            // A program that frees blocks has used more pages than it needs at one time. The local pages are
            // halved until some pages are paged out.
            let mut local = local;
            let (left, stats) = loop {
                let (left, stats) = at.far(name, arguments, local, as_nobody)?;
                if left.out != expected || stats.pages_out > 0 || local <= LEAST_PAGES * PAGE {
                    break (left, stats);
                }
                local = (local / 2).max(LEAST_PAGES * PAGE);
            };
            let wrong = match () {
                () if left.out != expected => Some("its output differs".into()),
                () if stats.pages_out == 0 => Some("none of its pages was paged out".into()),
                () => None,
            };
            Ok::<_, io::Error>(Part { user, seconds: left.seconds, pages_out: stats.pages_out, wrong })
        };
        // A failure becomes part of the report.
        let parts = users.iter().map(|user| {
            part(user).unwrap_or_else(|error| Part {
                user: user.0,
                seconds: 0.0,
                pages_out: 0,
                wrong: Some(error.to_string()),
            })
        });
        Ok(Seen { name, plain_s, fits_s, parts: parts.collect() })
    }
}

/// Directories, server and policy for the programs.
struct Place<'a> {
    azekura: &'a Path,
    folder: &'a Path,
    server: String,
    policy: Policy,
}

/// Counts that far memory reports when a program ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// Pages that were touched at least once.
    pages_used: usize,
    /// Pages that were paged out with data.
    pages_out: u64,
}

impl Place<'_> {
    fn plain(&self, name: &str, arguments: &[String]) -> io::Result<Left> {
        run(Command::new(name).args(arguments))
    }

    fn far(
        &self,
        name: &str,
        arguments: &[String],
        local: usize,
        as_nobody: bool,
    ) -> io::Result<(Left, Said)> {
        // This directory is accessible only by the process's user.
        let own = Scratch::new("azekura-lab-")?;
        fs::set_permissions(own.path(), Permissions::from_mode(0o700))?;
        let stats_file = own.path().join("far.json");
        let mut command = Command::new(self.azekura);
        command.args([
            "azekura",
            "far",
            "--quiet",
            "--server",
            &self.server,
            "--policy",
            &self.policy.to_string(),
        ]);
        command.args([
            "--page",
            &PAGE.to_string(),
            "--block",
            &BLOCK.to_string(),
            "--max-far",
            &SPACE.to_string(),
        ]);
        command
            .args(["--local", &local.to_string(), "--stats-json"])
            .arg(&stats_file)
            .arg("--")
            .arg(name)
            .args(arguments);
        // The preloaded library is installed here once per user, as on a user's machine.
        let cache = self.folder.join(if as_nobody { "nobodys-cache" } else { "cache" });
        fs::create_dir_all(&cache)?;
        command.env("XDG_CACHE_HOME", &cache).current_dir(self.folder);
        if as_nobody {
            for owned in [own.path(), &cache] {
                std::os::unix::fs::chown(owned, Some(NOBODY), Some(NOBODY))?;
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let left = run(&mut command)?;
        Ok((left, said(&fs::read_to_string(&stats_file)?)))
    }
}

fn run(command: &mut Command) -> io::Result<Left> {
    let began = Instant::now();
    let output = command.env("LC_ALL", "C").env("PATH", PATH).stdin(Stdio::null()).output()?;
    let seconds = began.elapsed().as_secs_f64();
    if output.status.success() {
        return Ok(Left { out: output.stdout, seconds });
    }
    Err(io::Error::other(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// Adds up the counts of all processes of a program; each has written one line of JSON.
fn said(lines: &str) -> Said {
    let mut sum = Said::default();
    for line in lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let count = |name: &str| line[name].as_u64().unwrap_or(0);
        sum.pages_used += usize::try_from(count("zero_fills")).unwrap_or(0);
        sum.pages_out += count("swap_outs");
    }
    sum
}

/// Returns about 10 MB of lines per share.
fn lines(share: u32) -> String {
    let mut out = String::new();
    for i in 0..u64::from(share) * 160_000 {
        let _ = writeln!(out, "{i} {} {:040}", i * 7919 % 1_000_003, i * i % 97);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_the_processes_of_a_program_are_added() {
        let text = "{\"zero_fills\":7,\"swap_outs\":3}\nnothing of use\n{\"zero_fills\":5,\"swap_outs\":0}\n";
        assert_eq!(said(text), Said { pages_used: 12, pages_out: 3 });
    }

    #[test]
    fn a_failed_command_is_reported_with_its_output() {
        let error =
            run(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).map(drop).unwrap_err().to_string();
        assert!(error.contains('3') && error.contains("no"), "{error}");
        assert_eq!(run(Command::new("sh").args(["-c", "echo yes"])).unwrap().out, b"yes\n");
    }
}
