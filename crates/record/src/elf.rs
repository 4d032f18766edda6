//! Reads parts of ELF files. Programs map files that are larger than the memory: files of data, programs
//! with data appended, and programs with debug information. Only the parts that are used are read.

use object::ReadRef;
use object::elf::ELFMAG;
use object::read::ReadCache;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

/// The parts of a file that were read. Other processes may change the file meanwhile.
#[derive(Debug)]
pub(crate) struct Parts(ReadCache<File>);

/// An ELF file of which the parts are read when they are used.
pub(crate) type Parsed<'a> = object::File<'a, Source<'a>>;

impl Parts {
    /// Opens a regular file that begins as an ELF file does. A read of a device may not end.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let not_elf = || io::Error::new(io::ErrorKind::InvalidData, "not an ELF file");
        if !std::fs::metadata(path)?.is_file() {
            return Err(not_elf());
        }
        let mut file = File::open(path)?;
        let mut magic = [0; ELFMAG.len()];
        file.read_exact(&mut magic)?;
        if magic == ELFMAG { Ok(Self(ReadCache::new(file))) } else { Err(not_elf()) }
    }

    pub(crate) fn parse(&self) -> object::Result<Parsed<'_>> {
        Parsed::parse(Source(&self.0))
    }

    /// Returns the bytes in a range of the file, as far as the file has them.
    pub(crate) fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        let end = Source(&self.0).len().ok()?.min(range.end);
        Source(&self.0).read_bytes_at(range.start, end.checked_sub(range.start)?).ok()
    }
}

/// Reads each part of the file once. Reads strings in blocks: [`ReadCache`] needs two system calls for each
/// string, and fails for strings of more than 4,096 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a>(&'a ReadCache<File>);

/// Number of bytes in a block of strings.
const BLOCK: u64 = 64 << 10;
/// Largest part, in bytes: a damaged file may claim any size for its symbol table.
const LARGEST: u64 = 1 << 30;

impl<'a> ReadRef<'a> for Source<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > LARGEST { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let (begin, limit) = (range.start, range.end.min(self.len()?));
        let mut at = begin;
        while at < limit {
            let block = at - at % BLOCK;
            let bytes = self.read_bytes_at(block, BLOCK.min(self.len()? - block))?;
            let searched = &bytes[(at - block) as usize..((limit - block) as usize).min(bytes.len())];
            if let Some(len) = searched.iter().position(|&byte| byte == delimiter) {
                let end = at + len as u64;
                return if at == begin {
                    Ok(&searched[..len])
                } else {
                    self.read_bytes_at(begin, end - begin)
                };
            }
            at = block + BLOCK;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSymbol};
    use std::io::Write;

    fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, Parts) {
        let mut file = tempfile::NamedTempFile::new().expect("is made");
        file.write_all(&ELFMAG).and_then(|()| file.write_all(bytes)).expect("is written");
        let parts = Parts::open(file.path()).expect("begins as an ELF file does");
        (file, parts)
    }

    #[test]
    fn only_elf_files_are_opened() {
        let directory = tempfile::tempdir().expect("is made");
        let data = directory.path().join("data");
        File::create(&data).and_then(|file| file.set_len(1 << 20)).expect("is written");
        assert!(Parts::open(&data).is_err(), "a program maps a file of data");
        assert!(Parts::open(Path::new("/dev/zero")).is_err());
        assert!(Parts::open(directory.path()).is_err());
        let (_file, parts) = file(b"");
        assert!(parts.parse().is_err());
    }

    #[test]
    fn strings_end_in_the_same_block_or_in_a_later_one_or_not() {
        let block = BLOCK as usize;
        let mut bytes = vec![b'x'; 4 * block];
        for zero in [10, block - 5, 3 * block] {
            bytes[zero] = 0;
        }
        let (_file, parts) = file(&bytes[..bytes.len() - 4]);
        let magic = ELFMAG.len() as u64;
        let string = |range: Range<u64>| {
            let found = Source(&parts.0).read_bytes_at_until(range.start + magic..range.end + magic, 0);
            found.ok().map(<[u8]>::len)
        };
        let len = bytes.len() as u64;
        assert_eq!(string(0..len), Some(10));
        assert_eq!(string(11..len), Some(block - 16));
        assert_eq!(string(block as u64 - 4..len), Some(2 * block + 4), "the end is two blocks later");
        assert_eq!(string(block as u64 - 4..3 * BLOCK), None, "the table ends before the string");
        assert_eq!(string(3 * BLOCK + 1..2 * len), None, "the file ends before the string");
        assert_eq!(string(2 * len..3 * len), None);
    }

    /// The file has a TiB of zeros after the program, as a program with an appended archive has.
    #[test]
    fn the_symbols_are_those_of_a_whole_program_with_data_after_it() {
        let directory = tempfile::tempdir().expect("is made");
        let own = directory.path().join("program");
        std::fs::copy(std::env::current_exe().expect("has a path"), &own).expect("is copied");
        let bytes = std::fs::read(&own).expect("is read");
        let program = File::options().write(true).open(&own).expect("is there");
        program.set_len(1 << 40).expect("is sparse");
        let whole = object::File::parse(&*bytes).expect("is an ELF file");
        let parts = Parts::open(&own).expect("is an ELF file");
        let read = parts.parse().expect("is an ELF file");
        let names = |name: object::Result<&str>| name.unwrap().to_owned();
        let all: Vec<_> = whole.symbols().map(|symbol| (symbol.address(), names(symbol.name()))).collect();
        assert!(all.len() > 1000);
        assert!(read.symbols().map(|symbol| (symbol.address(), names(symbol.name()))).eq(all));
        assert_eq!(parts.bytes(0..64), Some(&bytes[..64]));
        assert_eq!(parts.bytes(64..u64::MAX), None, "larger than any symbol table");
        program.set_len(bytes.len() as u64).expect("is cut");
        let parts = Parts::open(&own).expect("is an ELF file");
        assert_eq!(parts.bytes(64..u64::MAX), Some(&bytes[64..]));
        assert_eq!(parts.bytes(u64::MAX - 1..u64::MAX), None);
    }
}
