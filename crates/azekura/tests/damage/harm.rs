//! Damage to a store's files: changed bytes, exchanged pages and files, and files from other moments.

use std::path::{Path, PathBuf};

use azekura_base::PageId;
use azekura_base::page::image;
use azekura_io::{Fs, MemFs, OpenOptions};

use crate::life::{DIR, Life, PAGE, paths, read, write};
use crate::mutate::Random;

/// Damaged files, and the states that a store with these files may have.
pub(crate) struct Harmed {
    pub(crate) files: MemFs,
    pub(crate) done: String,
    pub(crate) oldest: usize,
    pub(crate) newest: usize,
}

/// The parts of a store that are copied one after another.
const GROUPS: [&str; 5] = ["CONTROL", "pages", "dw", "wal", "lsnmap"];

/// Damages the files of a random moment in one way.
pub(crate) fn harm(random: &mut Random, life: &Life) -> Harmed {
    match random.below(12) {
        0..=4 => harm_one_file(random, life),
        5..=7 => harm_pages(random, life),
        8 => replace_one_file(random, life),
        9 | 10 => mix(random, life),
        _ => copy_while_live(random, life),
    }
}

fn pages_path() -> PathBuf {
    Path::new(DIR).join("pages")
}

/// Returns the files of a moment, which the caller damages.
fn begin(life: &Life, at: usize) -> Harmed {
    let moment = &life.moments[at];
    let state = if moment.is_closed { "closed" } else { "killed" };
    let done = format!("{state} at moment {at}: ");
    Harmed { files: moment.files.copied(), done, oldest: moment.oldest, newest: moment.newest }
}

/// Damages bits, bytes, a sector or a page of one file, or truncates or removes the file.
fn harm_one_file(random: &mut Random, life: &Life) -> Harmed {
    let at = random.below(life.moments.len());
    let names = paths(&life.moments[at].files);
    let path = match random.below(3) {
        0 => pages_path(),
        _ => names[random.below(names.len())].clone(),
    };
    let mut harmed = begin(life, at);
    let mut bytes = read(&harmed.files, &path);
    let kind = random.below(7);
    if kind == 6 || bytes.is_empty() {
        harmed.files.remove_file(&path).expect("is there");
        harmed.done += &format!("{} is missing", path.display());
        return harmed;
    }
    let place = place_in(random, &bytes);
    let done = change(random, kind, &mut bytes, place);
    write(&harmed.files, &path, &bytes);
    harmed.done += &format!("{}: {done} at byte {place}", path.display());
    harmed
}

/// Returns a position in a file. Large parts of a file may be zero, because they are reserved for growth. So
/// half of the positions are among bytes that are not zero.
fn place_in(random: &mut Random, bytes: &[u8]) -> usize {
    let at = random.below(bytes.len());
    let used = (at..bytes.len()).find(|&i| bytes[i] != 0).unwrap_or(at);
    [at, used][random.below(2)]
}

fn change(random: &mut Random, kind: usize, bytes: &mut Vec<u8>, at: usize) -> &'static str {
    let sector = at / 512 * 512..(at / 512 * 512 + 512).min(bytes.len());
    let page = at / PAGE * PAGE..(at / PAGE * PAGE + PAGE).min(bytes.len());
    match kind {
        0 | 1 => {
            bytes[at] ^= 1 << random.below(8);
            "a bit"
        }
        2 => {
            let end = (at + 1 + random.below(64)).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
            "some bytes"
        }
        3 => {
            bytes[sector].fill(0);
            "a sector of zeroes"
        }
        4 => {
            bytes[page].fill(0);
            "a page of zeroes"
        }
        _ => {
            bytes.truncate(at);
            "cut off"
        }
    }
}

/// Damages one or two pages of the page file, often pages with a copy in the double-write area or with an
/// outdated copy, or exchanges two pages.
fn harm_pages(random: &mut Random, life: &Life) -> Harmed {
    let at = random.below(life.moments.len());
    let mut harmed = begin(life, at);
    if random.below(4) == 0 {
        write(&harmed.files, &Path::new(DIR).join("dw"), &[]);
        harmed.done += "without copies, ";
    }
    let mut bytes = read(&harmed.files, &pages_path());
    for _ in 0..1 + random.below(2) {
        let (copies, outdated) = (copies(&life.moments[at].files), outdated(&life.moments[at].files));
        let page = match random.below(4) {
            0 if !outdated.is_empty() => outdated[random.below(outdated.len())].0 as usize,
            1 if !copies.is_empty() => copies[random.below(copies.len())].0.0 as usize,
            _ => random.below(bytes.len() / PAGE - 1),
        };
        let (from, kind) = ((page + 1) * PAGE, random.below(6));
        if from + PAGE > bytes.len() {
            continue;
        }
        let done = if kind == 5 {
            swap(random, &mut bytes, from)
        } else {
            let place = from + random.below(PAGE);
            change(random, kind, &mut bytes, place).into()
        };
        harmed.done += &format!("page {page}: {done}; ");
    }
    write(&harmed.files, &pages_path(), &bytes);
    harmed
}

fn swap(random: &mut Random, bytes: &mut [u8], from: usize) -> String {
    let other = (1 + random.below(bytes.len() / PAGE - 1)) * PAGE;
    let (a, b) = (bytes[from..from + PAGE].to_vec(), bytes[other..other + PAGE].to_vec());
    bytes[from..from + PAGE].copy_from_slice(&b);
    bytes[other..other + PAGE].copy_from_slice(&a);
    format!("changed places with page {}", other / PAGE - 1)
}

/// Replaces one file by the same file of another moment.
fn replace_one_file(random: &mut Random, life: &Life) -> Harmed {
    let [at, other] = [(); 2].map(|()| random.below(life.moments.len()));
    let source = &life.moments[other];
    let names = paths(&source.files);
    let mut path = names[random.below(names.len())].clone();
    if random.below(2) == 0 {
        path = Path::new(DIR).join(["CONTROL", "pages", "dw", "lsnmap"][random.below(4)]);
    }
    let mut harmed = begin(life, at);
    if names.contains(&path) {
        write(&harmed.files, &path, &read(&source.files, &path));
    } else if paths(&harmed.files).contains(&path) {
        harmed.files.remove_file(&path).expect("is there");
    }
    harmed.done += &format!("{} is that of moment {other}", path.display());
    harmed.newest = harmed.newest.max(source.newest);
    harmed
}

/// Combines the parts of two moments.
fn mix(random: &mut Random, life: &Life) -> Harmed {
    let at = random.below(life.moments.len());
    // Adjacent moments are the hardest to distinguish.
    let reach = [4, life.moments.len() - 1][random.below(2)];
    let other = (at + 1 + random.below(reach)) % life.moments.len();
    let choice = 1 + random.below((1 << GROUPS.len()) - 2);
    let moments: Vec<usize> = (0..GROUPS.len()).map(|group| [at, other][choice >> group & 1]).collect();
    put_together(life, &moments, None)
}

/// Simulates `cp` of a store in use. The parts are copied in some order, each at the same or a later moment
/// than the one before. The second part of the page file may be from a later moment than the first.
fn copy_while_live(random: &mut Random, life: &Life) -> Harmed {
    let mut at = random.below(life.moments.len() - 1);
    let mut order = GROUPS.map(|group| (random.next(), group));
    order.sort_unstable();
    let mut moments = [0; GROUPS.len()];
    let mut split = None;
    for (_, group) in order {
        moments[GROUPS.iter().position(|g| *g == group).expect("is one")] = at;
        let later = (at + random.below(3)).min(life.moments.len() - 1);
        if group == "pages" {
            split = Some((later, random.below(200)));
        }
        at = (later + random.below(2)).min(life.moments.len() - 1);
    }
    put_together(life, &moments, split)
}

/// Combines files of several moments, one for each of [`GROUPS`]. `split` gives another moment for the page
/// file from a page on.
fn put_together(life: &Life, moments: &[usize], split: Option<(usize, usize)>) -> Harmed {
    let files = MemFs::new();
    for (group, &moment) in GROUPS.iter().zip(moments) {
        let (root, from) = (Path::new(DIR).join(group), &life.moments[moment].files);
        for path in paths(from).into_iter().filter(|path| path.starts_with(&root)) {
            write(&files, &path, &read(from, &path));
        }
    }
    if let Some((later, page)) = split {
        let bytes = read(&life.moments[later].files, &pages_path());
        let from = ((page + 1) * PAGE).min(bytes.len());
        let file = files.open(&pages_path(), OpenOptions::new()).expect("is there");
        file.write_at(from as u64, &bytes[from..]).expect("writes");
    }
    let all = || moments.iter().chain(split.as_ref().map(|(later, _)| later)).map(|&at| &life.moments[at]);
    Harmed {
        files,
        done: format!("{GROUPS:?} of moments {moments:?}, pages from (moment, page) {split:?} on"),
        oldest: all().map(|moment| moment.oldest).min().expect("some"),
        newest: all().map(|moment| moment.newest).max().expect("some"),
    }
}

/// Returns all copies in the double-write area, of any age, with their sequence numbers.
pub(crate) fn copies(files: &MemFs) -> Vec<(PageId, u64, Vec<u8>)> {
    let dw = read(files, &Path::new(DIR).join("dw"));
    let (mut found, mut at) = (Vec::new(), PAGE);
    let number = |at: usize| u64::from_le_bytes(*dw[at..].first_chunk().expect("in the file"));
    let slot = PAGE * (1 + ((1 << 20) / PAGE).clamp(16, 128));
    while at + slot <= dw.len() {
        let count = if dw[at..at + 8] == *b"AZKDWSL\x01" { number(at + 12) as u32 as usize } else { 0 };
        for nth in 0..count {
            let id = PageId(number(at + 32 + 16 * nth));
            let page = &dw[at + PAGE * (1 + nth)..][..PAGE];
            if image::is_intact(page, id) {
                found.push((id, number(at + 16), page.to_vec()));
            }
        }
        at += slot;
    }
    found
}

/// Returns the pages that differ from their newest copy.
pub(crate) fn outdated(files: &MemFs) -> Vec<PageId> {
    let mut copies = copies(files);
    copies.sort_by_key(|&(id, sequence, _)| (id, sequence));
    let pages = read(files, &pages_path());
    let newest = copies.chunk_by(|a, b| a.0 == b.0).filter_map(<[_]>::last);
    let differs = |id: PageId, copy: &[u8]| {
        let place = pages[(id.0 as usize + 1) * PAGE..].first_chunk::<PAGE>();
        place.is_some_and(|page| image::is_intact(page, id) && page != copy)
    };
    newest.filter(|(id, _, copy)| differs(*id, copy)).map(|&(id, ..)| id).collect()
}

/// Replaces each damaged page by its newest copy, of any age; returns their number. A store must not repair
/// pages in this way. (A page of zeroes is a hole, not a damaged page.)
pub(crate) fn repair_silently(files: &MemFs) -> usize {
    let mut copies = copies(files);
    copies.sort_by_key(|&(id, sequence, _)| (id, sequence));
    let (mut bytes, mut repaired) = (read(files, &pages_path()), 0);
    for run in copies.chunk_by(|a, b| a.0 == b.0) {
        let (id, _, copy) = run.last().expect("not empty");
        let place = (id.0 as usize + 1) * PAGE;
        let is_damaged = |page: &[u8]| !image::is_intact(page, *id) && page.iter().any(|&byte| byte != 0);
        if bytes.get(place..place + PAGE).is_some_and(is_damaged) {
            bytes[place..place + PAGE].copy_from_slice(copy);
            repaired += 1;
        }
    }
    write(files, &pages_path(), &bytes);
    repaired
}
