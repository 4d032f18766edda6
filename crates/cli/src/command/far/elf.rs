//! Checks that a library can be preloaded into a program. Rejects programs for which the loader would ignore
//! the library silently.
//!
//! | rejected program | reason |
//! |---|---|
//! | set-user-id, set-group-id, with file capabilities | the loader ignores libraries from the caller |
//! | statically linked | there is no loader |
//! | 32-bit, or for another processor | the library has another architecture |
//! | with another C library (musl, Android) | the library needs the GNU one |
//! | made by Go | it requests memory from the kernel, not from the C library: none of it would be far |
//! | with a sanitizer (address, thread, memory, leak) | it replaces the same functions as the library |
//! | with a loader that rejects the library | an old C library, or a directory that forbids execution |

use anyhow::{Context, Result, bail};
use object::Endianness;
use object::elf::{ELFCLASS64, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longest chain of script interpreters that is followed: the same limit as in the kernel.
const DEPTH: usize = 4;
/// Longest first line of a script, in bytes.
const LINE: usize = 256;
const SET_ID: u32 = 0o6000;
/// Offset of the ELF class in the file; the offset of the machine follows.
const CLASS: usize = 4;
const MACHINE: usize = 18;

/// The file that the kernel will run, as far as it can be determined.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Runs {
    program: PathBuf,
    loader: PathBuf,
}

/// The result of inspecting one file.
enum Inspected {
    /// The interpreter of a script, which is inspected next.
    Script(Option<PathBuf>),
    Runs(Runs),
    /// Neither a script nor an ELF file: the kernel decides.
    Nothing,
}

/// Rejects a program that would run without the library. If the file cannot be found or read, the kernel will
/// return the error.
pub(super) fn check(program: &OsStr) -> Result<Option<Runs>> {
    let mut path = find(program);
    for _ in 0..DEPTH {
        let Some(here) = path else { return Ok(None) };
        path = match check_file(&here)? {
            Inspected::Script(next) => next,
            Inspected::Runs(runs) => return Ok(Some(runs)),
            Inspected::Nothing => return Ok(None),
        };
    }
    Ok(None)
}

impl Runs {
    /// Rejects a program with a loader that does not accept this library. Runs the loader in a mode that only
    /// checks and starts no program.
    pub(super) fn takes(&self, library: &Path) -> Result<()> {
        let asked = Command::new(&self.loader)
            .arg("--list")
            .arg(&self.program)
            .env("LD_PRELOAD", library)
            .stdin(Stdio::null())
            .output()
            .with_context(|| {
                format!("cannot run the dynamic loader of {} to check the library", self.program.display())
            })?;
        let (lists, says) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
        // An empty list may also mean that the loader cannot read the program, although the kernel can.
        if !asked.status.success() || lists.contains(&*library.to_string_lossy()) {
            return Ok(());
        }
        bail!(
            "the dynamic loader of {} does not accept the library of azekura: {}",
            self.program.display(),
            says.trim()
        );
    }
}

/// Finds a program as the shell does.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn check_file(path: &Path) -> Result<Inspected> {
    let Ok(found) = fs::metadata(path) else { return Ok(Inspected::Nothing) };
    let Ok(head) = head(path, LINE) else { return Ok(Inspected::Nothing) };
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(Inspected::Script(interpreter(line)));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Inspected::Nothing);
    }
    let name = path.display();
    if found.mode() & SET_ID != 0 {
        bail!("{name} is set-user-id or set-group-id: the loader preloads no library into it");
    }
    if has_capabilities(path) {
        bail!("{name} has file capabilities: the loader preloads no library into it");
    }
    let bytes = fs::read(path)?;
    let loader = judge(&bytes).with_context(|| name.to_string())?;
    Ok(Inspected::Runs(Runs { program: path.into(), loader: loader.into() }))
}

/// Returns the first bytes of a file, at most `most`.
fn head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(most as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn has_capabilities(path: &Path) -> bool {
    // A missing attribute is an error, too, and so is a file system without attributes.
    rustix::fs::getxattr(path, c"security.capability", &mut [0; 64]).is_ok_and(|length| length > 0)
}

fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let program = words.next()?;
    let is_env = program.ends_with(b"/env");
    let named =
        if is_env { words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')) } else { None };
    let name = OsString::from_vec(named.unwrap_or(program).to_vec());
    find(&name)
}

/// Returns the loader of a program that can be run, or the reason for rejecting it.
fn judge(bytes: &[u8]) -> Result<String> {
    if bytes.get(CLASS).is_some_and(|&class| class != ELFCLASS64.0) {
        bail!("it is a 32-bit program; only 64-bit programs are supported");
    }
    let ours = head(Path::new("/proc/self/exe"), MACHINE + 2).unwrap_or_default();
    if let (Some(machine), Some(ours)) = (bytes.get(MACHINE..MACHINE + 2), ours.get(MACHINE..MACHINE + 2))
        && machine != ours
    {
        bail!("it is built for another processor architecture");
    }
    let Some(loader) = loader(bytes) else {
        bail!("it is statically linked: no library can be preloaded into it");
    };
    let name = loader.rsplit('/').next().unwrap_or_default();
    if name.contains("musl") {
        bail!("it uses the C library musl; far memory needs glibc");
    }
    if !name.starts_with("ld-linux") && !name.starts_with("ld64.so") && !name.starts_with("ld.so") {
        bail!("its dynamic loader is {loader}; far memory needs that of glibc");
    }
    if is_of_go(bytes) {
        bail!("it is a Go program: Go allocates memory by system calls, so nothing would be far memory");
    }
    if let Some(symbol) = symbol_of_sanitizer(bytes) {
        bail!(
            "it contains a sanitizer (symbol {symbol}), which replaces the same functions as far memory; \
             build it without -fsanitize=address, thread, memory or leak"
        );
    }
    Ok(loader)
}

/// Returns the loader of a dynamically linked 64-bit program.
fn loader(bytes: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, bytes).ok()?;
    let interp = headers.iter().find(|header| header.p_type(endian) == PT_INTERP)?;
    let name = interp.data(endian, bytes).ok()?;
    Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
}

/// Returns `true` if the program has the section with the build information of Go.
fn is_of_go(bytes: &[u8]) -> bool {
    let look = || {
        let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, bytes).ok()?;
        sections.section_by_name(endian, b".go.buildinfo").map(|(_, section)| section.sh_size(endian) > 0)
    };
    look().unwrap_or(false)
}

/// Returns a name among the dynamic symbols of a program by which a sanitizer is recognized: a program that
/// is linked to one has one of the first names, and a program that contains one may have only the last two.
fn symbol_of_sanitizer(bytes: &[u8]) -> Option<&'static str> {
    const LINKED: [&str; 5] = ["__asan_init", "__tsan_init", "__msan_init", "__lsan_init", "__hwasan_init"];
    const CONTAINED: [&str; 2] = ["__sanitizer_symbolize_code", "__libc_memalign"];
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let (_, section) = sections.section_by_name(endian, b".dynstr")?;
    let names = section.data(endian, bytes).ok()?;
    let has = |name: &&str| names.split(|&byte| byte == 0).any(|found| found == name.as_bytes());
    LINKED.into_iter().find(has).or_else(|| CONTAINED.iter().all(has).then_some(CONTAINED[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory in which tests create programs.
    struct Bench(tempfile::TempDir);

    impl Bench {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn make(&self, name: &str, bytes: &[u8], mode: u32) -> OsString {
            let path = self.0.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        }

        fn cc(&self, name: &str, source: &str, options: &[&str]) -> OsString {
            let text = self.make(&format!("{name}.c"), source.as_bytes(), 0o644);
            let path = self.0.path().join(name);
            let made = Command::new("cc").args(options).arg(text).arg("-o").arg(&path).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            path.into_os_string()
        }
    }

    /// Returns the bytes of this test executable, an ordinary program.
    fn ours() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    fn refused(path: &OsStr) -> String {
        format!("{:#}", check(path).unwrap_err())
    }

    fn with_loader(name: &[u8]) -> Vec<u8> {
        let mut bytes = ours();
        let old = loader(&bytes).unwrap();
        let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
        let mut new = name.to_vec();
        assert!(new.len() <= old.len());
        new.resize(old.len(), 0);
        bytes[at..at + old.len()].copy_from_slice(&new);
        bytes
    }

    #[test]
    fn programs_like_this_one_are_run() {
        let bench = Bench::new();
        let runs = check(&bench.make("plain", &ours(), 0o755)).unwrap().unwrap();
        assert!(runs.loader.to_string_lossy().contains("ld-linux"));
        assert_eq!(check(&bench.make("text", b"neither nor", 0o755)).unwrap(), None);
        assert_eq!(check(OsStr::new("/no/such/program")).unwrap(), None);
        let script = bench.make("other", b"#!/usr/bin/env -S A=1 sh\n", 0o755);
        assert!(check(&script).unwrap().unwrap().program.ends_with("sh"));
    }

    #[test]
    fn set_user_id_programs_are_refused() {
        let set = Bench::new();
        for mode in [0o4755, 0o2755] {
            assert!(refused(&set.make("set", &ours(), mode)).contains("set-user-id"));
        }
    }

    #[test]
    fn programs_with_file_capabilities_are_refused() {
        let bench = Bench::new();
        let path = bench.make("able", &ours(), 0o755);
        // Version 2, with only the right to bind low ports.
        let able: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
        let bytes: Vec<u8> = able.iter().flat_map(|word| word.to_le_bytes()).collect();
        let set =
            rustix::fs::setxattr(&path, c"security.capability", &bytes, rustix::fs::XattrFlags::empty());
        match set {
            Ok(()) => assert!(refused(&path).contains("file capabilities")),
            Err(error) => println!("skipped: no capabilities can be given here: {error}"),
        }
    }

    #[test]
    fn statically_linked_programs_and_scripts_of_theirs_are_refused() {
        let bench = Bench::new();
        // Only a header: the program has no loader.
        let mut still = ours()[..64].to_vec();
        still[56..58].copy_from_slice(&[0, 0]);
        let still = bench.make("static", &still, 0o755);
        assert!(refused(&still).contains("statically linked"));
        let script = bench.make("script", [b"#! ", still.as_bytes(), b" -x\n"].concat().as_slice(), 0o755);
        assert!(refused(&script).contains("statically linked"));
        assert!(refused(&bench.make("cut", &ours()[..70], 0o755)).contains("statically linked"));
    }

    #[test]
    fn programs_of_32_bits_or_for_another_processor_are_refused() {
        let bench = Bench::new();
        let mut narrow = ours();
        narrow[CLASS] = 1;
        assert!(refused(&bench.make("narrow", &narrow, 0o755)).contains("32-bit"));
        let mut other = ours();
        other[MACHINE] ^= 0xff;
        assert!(refused(&bench.make("other", &other, 0o755)).contains("another processor"));
    }

    #[test]
    fn programs_of_another_c_library_are_refused() {
        let bench = Bench::new();
        let musl = bench.make("musl", &with_loader(b"/lib/ld-musl-x86_64.so"), 0o755);
        assert!(refused(&musl).contains("musl"));
        let other = bench.make("other", &with_loader(b"/system/bin/linker64"), 0o755);
        assert!(refused(&other).contains("its dynamic loader is /system/bin/linker64"));
    }

    #[test]
    fn programs_made_by_go_are_refused() {
        let source = "__attribute__((section(\".go.buildinfo\"))) char made[32] = {1}; int main(void) { \
            return made[0] - 1; }";
        assert!(refused(&Bench::new().cc("go", source, &[])).contains("Go program"));
    }

    #[test]
    fn programs_with_a_sanitizer_are_refused() {
        let bench = Bench::new();
        let program = "int main(void) { return 0; }";
        assert!(check(&bench.cc("plain", program, &[])).is_ok());
        // As in a program that is linked to a sanitizer's library, and in one that contains a sanitizer.
        let library = bench.cc("libasan.so", "void __asan_init(void) {}", &["-shared", "-fPIC"]);
        let uses = "void __asan_init(void); int main(void) { __asan_init(); return 0; }";
        let linked = bench.cc("linked", uses, &["-Wl,--no-as-needed", library.to_str().unwrap()]);
        assert!(refused(&linked).contains("sanitizer (symbol __asan_init)"));
        let undefined = "__attribute__((weak)) void __sanitizer_symbolize_code(void); \
            int main(void) { return __sanitizer_symbolize_code ? 1 : 0; }";
        assert!(check(&bench.cc("undefined", undefined, &["-fPIE"])).is_ok());
        let memory = format!("void __libc_memalign(void) {{}} {undefined}");
        assert!(refused(&bench.cc("contains", &memory, &["-fPIE", "-rdynamic"])).contains("sanitizer"));
    }

    #[test]
    fn a_loader_that_rejects_the_library_is_reported_before_the_program_runs() {
        let bench = Bench::new();
        let runs = check(&bench.cc("program", "int main(void) { return 0; }", &[])).unwrap().unwrap();
        let library = bench.cc("good.so", "int far_away;", &["-shared", "-fPIC"]);
        runs.takes(Path::new(&library)).unwrap();
        // A library in a directory that forbids execution, or one that needs a newer C library, behaves like
        // this file: it exists and cannot be loaded.
        let bad = bench.make("bad.so", b"\x7fELF and nothing more", 0o755);
        let said = runs.takes(Path::new(&bad)).unwrap_err().to_string();
        assert!(said.contains("does not accept the library") && said.contains("bad.so"), "{said}");
    }
}
