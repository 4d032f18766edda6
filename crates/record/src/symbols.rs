//! Translates addresses to functions, variables and lines, by the files that the program had mapped.
//!
//! Names come from the symbol tables; a stripped program has the dynamic one only. Lines come from debug
//! information, in the file itself or in another one (`debug`). A file that was removed or is not
//! an ELF file gives no names for its addresses.

use crate::debug::debug_file;
use crate::elf::{self, Parts};
use azekura_trace::file::Module;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The source place of an address: file, function and line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// The function's demangled name; if unknown, the file name and the address in the file.
    pub function: String,
    /// Source file; if unknown, the program or library.
    pub file: String,
    /// Source line; 0 if unknown.
    pub line: u32,
}

/// The symbols of all files that one process had mapped.
#[derive(Debug)]
pub struct Symbols {
    images: Vec<Image>,
}

impl Symbols {
    /// Reads the symbol tables of all files that are mapped.
    #[must_use]
    pub fn new(modules: &[Module]) -> Self {
        Self::with(modules, &mut Files::default())
    }

    /// Returns the symbols as [`Symbols::new`] does, and reads only the files that are not in `files`.
    /// Afterward `files` has the files that are mapped here.
    pub(crate) fn with(modules: &[Module], files: &mut Files) -> Self {
        let mut first: HashMap<&str, &Module> = HashMap::new();
        for module in modules {
            let kept = first.entry(&module.path).or_insert(module);
            if module.base < kept.base {
                *kept = module;
            }
        }
        let mut known = std::mem::take(&mut files.0);
        let mut images = Vec::new();
        for module in first.into_values() {
            let path = PathBuf::from(module.path.strip_suffix(" (deleted)").unwrap_or(&module.path));
            let file = known.remove(&path).unwrap_or_else(|| Elf::read(&path).map(Rc::new));
            images.extend(file.as_ref().and_then(|file| Image::new(module, file)));
            files.0.entry(path).or_insert(file);
        }
        images.sort_by_key(|image: &Image| image.begin);
        Self { images }
    }

    /// Returns the place of the code at `address`.
    #[must_use]
    pub fn code(&self, address: u64) -> Place {
        let Some(image) = self.image(address) else {
            return Place { function: format!("{address:#x}"), ..Place::default() };
        };
        let at = address.wrapping_sub(image.bias);
        let function = image
            .file
            .symbol(at, Sort::Code)
            .map_or_else(|| format!("{}+{at:#x}", image.file.short()), |(symbol, _)| demangled(&symbol.name));
        let file = &image.file;
        let (file, line) = file.line(at).unwrap_or_else(|| (file.path.display().to_string(), 0));
        Place { function, file, line }
    }

    /// Returns the frames at `address`, the innermost first. An inlined function has a frame of its own. The
    /// last frame is the function in the symbol table.
    #[must_use]
    pub fn frames(&self, address: u64) -> Vec<Place> {
        let Some(image) = self.image(address) else { return vec![self.code(address)] };
        let mut frames = image.file.inlined(address.wrapping_sub(image.bias));
        let whole = self.code(address);
        match frames.last_mut() {
            Some(outermost) => outermost.function = whole.function,
            None => frames.push(whole),
        }
        frames
    }

    /// Returns the name of the variable at `address`, with the offset of `address` in it unless that is 0.
    #[must_use]
    pub fn variable(&self, address: u64) -> Option<String> {
        let image = self.image(address)?;
        let (symbol, behind) = image.file.symbol(address.wrapping_sub(image.bias), Sort::Data)?;
        let name = demangled(&symbol.name);
        Some(if behind == 0 { name } else { format!("{name}+{behind:#x}") })
    }

    /// Returns the code within `reach` bytes of `address`, and the address of its first byte.
    #[must_use]
    pub fn bytes(&self, address: u64, reach: u64) -> Option<(u64, Vec<u8>)> {
        let image = self.image(address)?;
        let at = address.wrapping_sub(image.bias);
        let (begin, len, offset) =
            image.file.segments.iter().copied().find(|(begin, len, _)| at >= *begin && at - begin < *len)?;
        let first = at.saturating_sub(reach).max(begin);
        let end = at.saturating_add(reach).min(begin.saturating_add(len));
        let mut bytes = vec![0; usize::try_from(end - first).ok()?];
        let file = std::fs::File::open(&image.file.path).ok()?;
        file.read_exact_at(&mut bytes, offset.checked_add(first - begin)?).ok()?;
        Some((first.wrapping_add(image.bias), bytes))
    }

    /// Returns the name of the file with the code at `address`, without its directory.
    pub(crate) fn library(&self, address: u64) -> Option<&str> {
        self.image(address)?.file.path.file_name()?.to_str()
    }

    fn image(&self, address: u64) -> Option<&Image> {
        let after = self.images.partition_point(|image| image.begin <= address);
        self.images[..after].last().filter(|image| address < image.end)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Code,
    Data,
}

#[derive(Debug)]
struct Symbol {
    address: u64,
    size: u64,
    sort: Sort,
    name: String,
}

/// Files that were read for another process, by path; `None` for a file without names. Processes of one
/// program have the same files.
#[derive(Debug, Default)]
pub(crate) struct Files(HashMap<PathBuf, Option<Rc<Elf>>>);

/// A mapped file of the process.
#[derive(Debug)]
struct Image {
    file: Rc<Elf>,
    /// Difference between addresses in memory and the file's own addresses.
    bias: u64,
    begin: u64,
    end: u64,
}

/// A program or library, with its own addresses.
struct Elf {
    path: PathBuf,
    /// The first address, and the one after the last.
    range: (u64, u64),
    /// Parts of the file in memory: own address, length, offset in the file.
    segments: Vec<(u64, u64, u64)>,
    /// Sorted by address.
    symbols: Vec<Symbol>,
    lines: Option<addr2line::Loader>,
}

impl fmt::Debug for Elf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elf").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Image {
    fn new(module: &Module, file: &Rc<Elf>) -> Option<Self> {
        // The segment of the mapping. Mappings begin at page boundaries, segments may begin after them.
        let own = file.segments.iter().find_map(|(address, len, offset)| {
            let page_offset = offset & !0xfff;
            (*len > 0 && page_offset <= module.offset && module.offset < offset.saturating_add(*len))
                .then(|| address.wrapping_sub(*offset).wrapping_add(module.offset))
        })?;
        let bias = module.base.wrapping_sub(own);
        let [begin, end] = [file.range.0, file.range.1].map(|address| address.wrapping_add(bias));
        Some(Self { file: Rc::clone(file), bias, begin, end })
    }
}

impl Elf {
    fn read(path: &Path) -> Option<Self> {
        let parts = Parts::open(path).ok()?;
        let file = parts.parse().ok()?;
        let segments: Vec<_> = file.segments().collect();
        let first = segments.iter().map(ObjectSegment::address).min()?;
        let last = segments.iter().map(|s| s.address().saturating_add(s.size())).max()?;
        let in_memory = segments.iter().map(|segment| {
            let (offset, len) = segment.file_range();
            (segment.address(), len, offset)
        });
        let in_memory = in_memory.collect();
        let debug = debug_file(path, &file);
        let mut symbols = symbols_of(&file);
        symbols.extend(debug.as_deref().and_then(symbols_at).unwrap_or_default());
        // Of the names of one address, the shortest one without an underscore is kept: `free`, and neither
        // `cfree` nor `__libc_free`.
        let order = |a: &Symbol| (a.address, a.size, a.name.starts_with('_'), a.name.len());
        symbols.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name)));
        symbols.dedup_by(|a, b| (a.address, a.sort) == (b.address, b.sort));
        let lines = addr2line::Loader::new(debug.as_deref().unwrap_or(path)).ok();
        let (path, range) = (path.to_owned(), (first, last));
        Some(Self { path, range, segments: in_memory, symbols, lines })
    }

    /// Returns the symbol of this sort that contains `at`, and the offset of `at` in it.
    fn symbol(&self, at: u64, sort: Sort) -> Option<(&Symbol, u64)> {
        /// Number of symbols searched before `at`: symbols may nest, but only a few begin inside the one that
        /// contains `at`.
        const LOOK_BACK: usize = 8;
        let after = self.symbols.partition_point(|s| s.address <= at);
        let before = self.symbols[..after].iter().rev().filter(|s| s.sort == sort).take(LOOK_BACK);
        before.map(|s| (s, at - s.address)).find(|(s, behind)| *behind < s.size.max(1))
    }

    fn line(&self, at: u64) -> Option<(String, u32)> {
        let location = self.lines.as_ref()?.find_location(at).ok()??;
        Some((location.file?.to_owned(), location.line?))
    }

    /// Returns the frames in the debug information. The line of a caller is that of the call.
    fn inlined(&self, at: u64) -> Vec<Place> {
        let mut places = Vec::new();
        let Some(mut frames) = self.lines.as_ref().and_then(|lines| lines.find_frames(at).ok()) else {
            return places;
        };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let (Some(name), Some(location)) = (name, frame.location) else { return places };
            let (Some(file), Some(line)) = (location.file, location.line) else { return places };
            places.push(Place { function: demangled(&name), file: file.to_owned(), line });
        }
        places
    }

    fn short(&self) -> String {
        self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

fn symbols_at(path: &Path) -> Option<Vec<Symbol>> {
    Some(symbols_of(&Parts::open(path).ok()?.parse().ok()?))
}

fn symbols_of(file: &elf::Parsed<'_>) -> Vec<Symbol> {
    let symbol = |symbol: object::Symbol<'_, '_, elf::Source<'_>>| {
        let sort = match symbol.kind() {
            SymbolKind::Text => Sort::Code,
            SymbolKind::Data => Sort::Data,
            _ => return None,
        };
        let name = symbol.name().ok().filter(|name| !name.is_empty() && symbol.is_definition())?.to_owned();
        Some(Symbol { address: symbol.address(), size: symbol.size(), sort, name })
    };
    file.symbols().chain(file.dynamic_symbols()).filter_map(symbol).collect()
}

/// Returns the file offsets of the functions with this name, which is the symbol or its demangled form. If
/// there are none, returns up to five similar names.
pub(crate) fn functions(path: &Path, name: &str) -> io::Result<Result<Vec<u64>, Vec<String>>> {
    let parts = Parts::open(path)?;
    let file = parts.parse().map_err(io::Error::other)?;
    let mut symbols = symbols_of(&file);
    symbols.extend(debug_file(path, &file).as_deref().and_then(symbols_at).unwrap_or_default());
    let offset = |address: u64| {
        file.segments().find_map(|segment| {
            let (begin, len) = segment.file_range();
            let behind = address.checked_sub(segment.address())?;
            (behind < len).then_some(begin + behind)
        })
    };
    let (mut offsets, mut alike) = (Vec::new(), Vec::new());
    for symbol in symbols.iter().filter(|symbol| symbol.sort == Sort::Code) {
        let readable = demangled(&symbol.name);
        if symbol.name == name || readable == name {
            offsets.extend(offset(symbol.address));
        } else if alike.len() < 5 && readable.contains(name) && !alike.contains(&readable) {
            alike.push(readable);
        }
    }
    offsets.sort_unstable();
    offsets.dedup();
    Ok(if offsets.is_empty() { Err(alike) } else { Ok(offsets) })
}

/// Returns the name without decorations: C++ names without arguments and return type, Rust names without
/// hash.
fn demangled(name: &str) -> String {
    if !name.starts_with("_Z") && !name.starts_with("_R") {
        return name.to_owned(); // `c` would be demangled to C++ `char`, but is a C function
    }
    let whole = addr2line::demangle_auto(name.into(), None).into_owned();
    if name.starts_with("_R") {
        return whole;
    }
    let hash = whole.rfind("::h").filter(|at| name.ends_with('E') && is_hash(&whole[at + 3..]));
    match hash {
        Some(at) => whole[..at].to_owned(),
        None => without_result(without_arguments(&whole)).to_owned(),
    }
}

/// Returns `true` if this is the hash at the end of a legacy Rust name.
fn is_hash(end: &str) -> bool {
    end.len() == 16 && end.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes the last list of arguments at the end of a name: `f(int) const` becomes `f`.
fn without_arguments(name: &str) -> &str {
    let end = name.trim_end_matches(" const").trim_end_matches(" &&").trim_end_matches(" &");
    if !end.ends_with(')') {
        return name;
    }
    let mut depth = 0;
    for (at, byte) in end.bytes().enumerate().rev() {
        depth += i32::from(byte == b')') - i32::from(byte == b'(');
        if depth == 0 {
            return if at == 0 { name } else { &end[..at] };
        }
    }
    name
}

/// Removes the return type, which names of templates begin with: `void f<int>` becomes `f<int>`.
fn without_result(name: &str) -> &str {
    let mut depth = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b')' | b'}' | b']' => depth -= 1,
            b' ' if depth == 0 && !name[..at].ends_with("operator") => {
                return without_result(&name[at + 1..]);
            }
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_and_lose_their_argument_lists() {
        assert_eq!((demangled("main"), demangled("c")), ("main".into(), "c".into()));
        assert_eq!(demangled("_ZN5Queue3popEv"), "Queue::pop");
        assert_eq!(demangled("_ZN3foo3bar17h0123456789abcdefE"), "foo::bar");
        assert_eq!(demangled("_Z4workI9SpinMutexEvRT_"), "work<SpinMutex>", "no result before it");
        assert_eq!(demangled("_ZNK5QueueclEi"), "Queue::operator()");
        assert_eq!(demangled("_ZZ3runI4LockEvvENKUlvE_clEv"), "run<Lock>()::{lambda()#1}::operator()");
    }

    #[test]
    fn an_unmapped_address_is_its_own_name() {
        let gone = Module { base: 0x1000, len: 0x1000, offset: 0, path: "/nowhere/at all".into() };
        let rubbish = Module { path: "/proc/self/status".into(), ..gone.clone() };
        // Shared memory of PostgreSQL: reading `/dev/zero` would not end.
        let memory = Module { path: "/dev/zero (deleted)".into(), ..gone.clone() };
        let symbols = Symbols::new(&[gone, rubbish, memory]);
        assert_eq!(symbols.code(0x1010).function, "0x1010");
        assert_eq!(symbols.variable(0x1010), None);
    }

    #[test]
    fn this_program_finds_its_own_function_and_line() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let program = std::env::current_exe().unwrap().display().to_string();
        let module = maps.lines().find(|line| line.ends_with(&program)).unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let fields: Vec<&str> = module.split_whitespace().collect();
        let (base, end) = fields[0].split_once('-').unwrap();
        let module =
            Module { base: hex(base), len: hex(end) - hex(base), offset: hex(fields[2]), path: program };
        let symbols = Symbols::new(&[module]);
        let place = symbols.code(demangled as *const () as u64 + 1);
        assert!(place.function.ends_with("symbols::demangled"), "{place:?}");
        assert!(place.file.ends_with("symbols.rs") && place.line > 0, "{place:?}");
    }
}
