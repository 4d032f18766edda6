//! Entry: a page file and its double-write area with changed bytes. After the repair each page is one of the
//! written images, or zeroes, or an error that contains its page id.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use azekura_base::checksum::crc32c;
use azekura_base::page::image;
use azekura_base::{PageBuf, PageId};
use azekura_buffer::page_file::{AreaShape, PageFile};
use azekura_buffer::store::PageStore;
use azekura_io::{Fs, MemFs, OpenOptions};

const SIZE: usize = 4096;
const PAGES: u64 = 6;
const SHAPE: AreaShape = AreaShape { slots: 2, pages_per_slot: 4 };
const DIR: &str = "db";
const HEAD_BYTES: usize = 4096;

/// Changes and opens the files. The lowest bit of the first byte: correct the checksums of heads. The second
/// bit: truncate the page file in its middle. Patches follow: file, offset (3 bytes), length, bytes.
pub(crate) fn double_write(data: &[u8]) {
    let (&mode, mut patches) = data.split_first().unwrap_or((&0, &[]));
    let mut files = sound_files().clone();
    while let [file, a, b, c, len, rest @ ..] = patches {
        let bytes = &mut files[usize::from(*file) % 2];
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % bytes.len();
        let (new, behind) = rest.split_at(rest.len().min(usize::from(*len)).min(bytes.len() - at));
        bytes[at..at + new.len()].copy_from_slice(new);
        patches = behind;
    }
    if mode & 1 != 0 {
        (0..files[0].len()).step_by(HEAD_BYTES).for_each(|at| reseal(&mut files[0][at..at + HEAD_BYTES]));
        reseal(&mut files[1][..HEAD_BYTES]);
    }
    if mode & 2 != 0 {
        files[1].truncate(usize::from(mode) * SIZE / 16 + HEAD_BYTES);
    }
    examine(&with_files(&files));
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let at = |mode, file, offset: u32, bytes: &[u8]| {
        let [a, b, c, _] = offset.to_le_bytes();
        [&[mode, file, a, b, c, bytes.len() as u8], bytes].concat()
    };
    let heads = [12, 16, 20, 4096 + 12, 4096 + 16, 4096 + 32, 4096 + 40, 4096 + 48];
    let heads = heads.into_iter().flat_map(|field| (0..4).map(move |mode| at(mode, 0, field, &[3])));
    let torn = (0..PAGES as u32).map(|page| at(0, 1, (page + 1) * SIZE as u32 + 512, &[0; 64]));
    let endless = at(1, 0, 4096 + 16, &[255; 8]); // The sequence number without a successor.
    heads.chain(torn).chain([endless, vec![0], vec![1], vec![2], vec![255]]).collect()
}

fn examine(fs: &MemFs) {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let Ok(file) = PageFile::open(Arc::clone(&fs), Path::new(DIR), SIZE) else { return };
    if file.repair().is_err() {
        return;
    }
    let mut damaged = Vec::new();
    for id in 0..PAGES + 2 {
        let mut page = PageBuf::zeroed(SIZE);
        match file.read_page(PageId(id), &mut page) {
            Ok(()) => assert!(
                image::is_zero(&page) || (0..4).any(|n| *page == *sealed(id, n)),
                "page {id} is nothing that was written"
            ),
            Err(error) => damaged.push((id, error.to_string())),
        }
    }
    // The repair can be repeated with the same result.
    let again = PageFile::open(fs, Path::new(DIR), SIZE).expect("as before");
    again.repair().expect("as before");
    for (id, error) in damaged {
        assert!(again.read_page(PageId(id), &mut PageBuf::zeroed(SIZE)).is_err(), "{error}");
    }
}

fn image_of(id: u64, number: u64) -> PageBuf {
    let mut page = PageBuf::zeroed(SIZE);
    page[24..]
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = (at / 512) as u8 ^ (id * 16 + number) as u8);
    page[8..16].copy_from_slice(&id.to_le_bytes());
    page[16..24].copy_from_slice(&(number + 1).to_le_bytes());
    page
}

fn sealed(id: u64, number: u64) -> PageBuf {
    let mut page = image_of(id, number);
    image::seal(&mut page);
    page
}

/// Corrects the checksum of a head.
fn reseal(head: &mut [u8]) {
    if head[..3] == *b"AZK" {
        let crc = crc32c(&head[12..]).to_le_bytes();
        head[8..12].copy_from_slice(&crc);
    }
}

/// Returns the area and the page file after three batches: every page was written, some pages twice.
fn sound_files() -> &'static [Vec<u8>; 2] {
    static FILES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    FILES.get_or_init(|| {
        let fs = MemFs::new();
        let shared: Arc<dyn Fs> = Arc::new(fs.clone());
        PageFile::create_with(Arc::clone(&shared), Path::new(DIR), SIZE, 0, SHAPE).expect("creates");
        let file = PageFile::open(shared, Path::new(DIR), SIZE).expect("opens");
        for (number, ids) in [(0, 0..4), (1, 2..PAGES), (2, 1..3)] {
            let mut batch: Vec<_> = ids.map(|id| (PageId(id), image_of(id, number))).collect();
            file.write_pages(&mut batch).expect("writes");
        }
        [PageFile::DOUBLE_WRITE_NAME, PageFile::NAME].map(|name| {
            let file = fs.open(&Path::new(DIR).join(name), OpenOptions::new()).expect("is there");
            let mut bytes = vec![0; file.len().expect("length") as usize];
            file.read_at(0, &mut bytes).expect("reads");
            if name == PageFile::NAME {
                bytes.truncate((PAGES as usize + 1) * SIZE); // The rest is allocated space: zeroes.
            }
            bytes
        })
    })
}

fn with_files(files: &[Vec<u8>; 2]) -> MemFs {
    let fs = MemFs::new();
    fs.create_dir_all(Path::new(DIR)).expect("makes");
    for (name, bytes) in [PageFile::DOUBLE_WRITE_NAME, PageFile::NAME].into_iter().zip(files) {
        let file = fs.open(&Path::new(DIR).join(name), OpenOptions::new().create(true)).expect("opens");
        file.write_at(0, bytes).expect("writes");
    }
    fs
}
