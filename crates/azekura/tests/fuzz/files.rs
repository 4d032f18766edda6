//! All files of a file system in memory, as bytes that can be changed, and back.

use std::path::{Path, PathBuf};

use azekura_io::{Fs, MemFs, OpenOptions};

pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

/// Every file below `dir`, in order of names.
pub(crate) fn take(fs: &MemFs, dir: &Path) -> Files {
    let mut found = Vec::new();
    for name in fs.list_dir(dir).expect("a directory") {
        let path = dir.join(name);
        match fs.open(&path, OpenOptions::new()) {
            Ok(file) => {
                let mut bytes = vec![0; file.len().expect("length") as usize];
                file.read_at(0, &mut bytes).expect("reads");
                found.push((path, bytes));
            }
            Err(_) => found.extend(take(fs, &path)),
        }
    }
    found
}

/// A file system with these files; zeroes are left as holes.
pub(crate) fn put(files: &[(PathBuf, Vec<u8>)]) -> MemFs {
    const BLOCK: usize = 4096;
    let fs = MemFs::new();
    for (path, bytes) in files {
        fs.create_dir_all(path.parent().expect("in a directory")).expect("makes");
        let file = fs.open(path, OpenOptions::new().create(true)).expect("opens");
        file.set_len(bytes.len() as u64).expect("sets");
        for (at, block) in bytes.chunks(BLOCK).enumerate() {
            if block.iter().any(|&b| b != 0) {
                file.write_at((at * BLOCK) as u64, block).expect("writes");
            }
        }
    }
    fs
}
