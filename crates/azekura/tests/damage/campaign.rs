//! A campaign with many damaged stores. Each opening, each scan and each `check` returns a right content or a
//! typed error, and so do all calls after writes.
//!
//! `AZEKURA_DAMAGE_RUNS` is the number of damaged stores ([default](DEFAULT_RUNS)); `AZEKURA_DAMAGE_SEED` is
//! the first seed.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use azekura::{Database, Error, ErrorKind, TableDefinition};
use azekura_base::PageId;
use azekura_base::page::image;
use azekura_io::{FaultFs, Fs, MemFs, OpenOptions};

use crate::common::{self, Model};
use crate::harm::{Harmed, harm, outdated, repair_silently};
use crate::life::{DIR, Life, PAGE, open, paths, read, write};
use crate::mutate::Random;

/// Default number of damaged stores.
const DEFAULT_RUNS: u64 = 150;
/// The table that is written after the damage.
const AFTER: TableDefinition<u64, [u8]> = TableDefinition::new("after");

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

pub(crate) fn runs() -> u64 {
    from_env("AZEKURA_DAMAGE_RUNS", DEFAULT_RUNS)
}

fn life() -> &'static Life {
    static LIFE: OnceLock<Life> = OnceLock::new();
    LIFE.get_or_init(|| Life::live(11, 6))
}

/// Opens and reads a damaged store; returns the kind of the error, or `None` if its content is right. Returns
/// `Err` with a description if the result is wrong.
fn examine(harmed: &Harmed, states: &[Model], writes: bool) -> Result<Option<ErrorKind>, String> {
    let fs: Arc<dyn Fs> = Arc::new(harmed.files.clone());
    let allowed = &states[harmed.oldest..=harmed.newest];
    let db = match open(&fs) {
        Ok(db) => db,
        Err(error) => return typed(&error).map(Some),
    };
    let checked = db.check(&mut |_, _| {});
    let error = compare(&db, allowed)?;
    match (&checked, &error) {
        (Ok(report), Some(error)) if report.is_clean() => {
            return Err(format!("check finds nothing, but reading says {error}"));
        }
        (Err(error), _) => drop(typed(error)?),
        _ => {}
    }
    if !writes {
        return error.map(|error| typed(&error)).transpose();
    }
    // The write may fail or succeed. In both cases, rows that were readable before must stay readable.
    let _written = db.transact(|tx| (0..60).try_for_each(|n| tx.table(&AFTER)?.insert(&n, &[7; 300][..])));
    let after_writes = compare(&db, allowed)?;
    if let (None, Some(error)) = (&error, &after_writes) {
        return Err(format!("after a write, what was read before says {error}"));
    }
    drop(db);
    match open(&fs) {
        Ok(db) => drop(compare(&db, allowed)?),
        Err(error) => drop(typed(&error)?),
    }
    error.or(after_writes).map(|error| typed(&error)).transpose()
}

fn typed(error: &Error) -> Result<ErrorKind, String> {
    match error.kind() {
        kind @ (ErrorKind::Corrupt | ErrorKind::Io) => Ok(kind),
        kind => Err(format!("an error of kind {kind:?}: {error}")),
    }
}

/// Compares all rows with the allowed states. Returns the error that prevented reading them, or `None`.
fn compare(db: &Database, allowed: &[Model]) -> Result<Option<Error>, String> {
    match common::content(db) {
        Ok(mut found) => {
            found.remove("after");
            if allowed.contains(&found) {
                return Ok(None);
            }
            let last = allowed.last().expect("some");
            Err(format!("silently wrong: {}", common::difference(last, &found)))
        }
        Err(error) => {
            typed(&error)?;
            Ok(Some(error))
        }
    }
}

/// Examines a store as [`examine`] does, and reports a panic as a wrong result.
fn judge(harmed: &Harmed, states: &[Model], writes: bool) -> Result<Option<ErrorKind>, String> {
    let answer = std::panic::catch_unwind(AssertUnwindSafe(|| examine(harmed, states, writes)));
    answer.unwrap_or_else(|_| Err("panic".into())).map_err(|wrong| format!("{}: {wrong}", harmed.done))
}

#[test]
fn a_campaign_of_damage_ends_in_right_contents_or_typed_errors() {
    let (runs, first) = (runs(), from_env("AZEKURA_DAMAGE_SEED", 0));
    let (mut right, mut refused, mut wrong) = (0, BTreeMap::new(), Vec::new());
    for seed in first..first + runs {
        let random = &mut Random::new(seed);
        let harmed = harm(random, life());
        match judge(&harmed, &life().states, random.below(3) == 0) {
            Ok(None) => right += 1,
            Ok(Some(kind)) => *refused.entry(format!("{kind:?}")).or_insert(0) += 1,
            Err(what) => wrong.push(format!("seed {seed}: {what}")),
        }
    }
    println!("{runs} damaged stores: {right} right, refused: {refused:?}, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(right > 0 && !refused.is_empty(), "the damage is not varied");
}

/// The campaign's control: stores with a damaged page that is silently repaired with an old copy. The
/// campaign must detect such a repair. The LSN map refuses such pages, so the control runs without it.
#[test]
fn a_planted_repair_with_stale_copies_is_found() {
    let life = life();
    let (mut repaired, mut found) = (0, 0);
    for (at, moment) in life.moments.iter().enumerate().filter(|(_, moment)| moment.is_closed) {
        for id in outdated(&moment.files) {
            let harmed = Harmed {
                files: moment.files.copied(),
                done: format!("moment {at}, page {id}"),
                oldest: moment.oldest,
                newest: moment.newest,
            };
            let mut pages = read(&harmed.files, format!("{DIR}/pages").as_ref());
            pages[(id.0 as usize + 1) * PAGE + 100] ^= 1;
            write(&harmed.files, format!("{DIR}/pages").as_ref(), &pages);
            let honest = judge(&harmed, &life.states, false);
            assert!(honest.is_ok(), "{honest:?}");
            write(&harmed.files, format!("{DIR}/pages").as_ref(), &pages);
            assert_eq!(repair_silently(&harmed.files), 1);
            let refused = judge(&harmed, &life.states, false);
            assert!(refused.is_ok(), "{refused:?}");
            harmed.files.remove_file(format!("{DIR}/lsnmap").as_ref()).expect("is there");
            repaired += 1;
            found += usize::from(judge(&harmed, &life.states, false).is_err());
        }
    }
    println!("{repaired} planted repairs, {found} found");
    assert!(repaired >= 2 && found * 3 > repaired, "{found} of {repaired} stale repairs were found");
}

/// Each read and each lookup of an opening fails once. The opening reports the error or does not need that
/// call. The next opening finds all rows.
#[test]
fn a_read_or_lookup_that_fails_during_an_opening_costs_no_rows() {
    type Calls = (&'static str, fn(&FaultFs) -> u64, fn(&FaultFs, u64));
    let reads: Calls = ("read", FaultFs::read_count, FaultFs::fail_read_at);
    let lookups: Calls = ("lookup", FaultFs::lookup_count, FaultFs::fail_lookup_at);
    for (is_closed, (what, count, fail)) in
        [true, false].into_iter().flat_map(|is_closed| [(is_closed, reads), (is_closed, lookups)])
    {
        let disk = FaultFs::new();
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let db = open(&fs).expect("creates");
        let put = |n: u64| db.transact(|tx| tx.table(&AFTER)?.insert(&n, &[n as u8; 900][..]));
        (0..600).try_for_each(put).expect("commits");
        let disk = if is_closed {
            db.close().expect("closes");
            disk.kill()
        } else {
            disk.kill()
        };
        let rows = |fs: &FaultFs| {
            let db = open(&(Arc::new(fs.clone()) as _))?;
            db.transact(|tx| {
                tx.table(&AFTER)?.iter().map(|row| row.map(|(n, _)| n)).collect::<Result<Vec<_>, _>>()
            })
        };
        let expected: Vec<u64> = (0..600).collect();
        let whole = disk.kill();
        assert_eq!(rows(&whole).expect("reads"), expected);
        let (mut opened, calls) = (0, count(&whole));
        // The first calls are those on CONTROL, the page file and the double-write area.
        for failing in (1..40).chain((40..=calls).step_by(1 + calls as usize / 20)) {
            let disk = disk.kill();
            fail(&disk, failing);
            match rows(&disk) {
                Ok(found) => {
                    assert_eq!(found, expected, "{what} {failing}");
                    opened += 1;
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt), "{error}"),
            }
            assert_eq!(rows(&disk.kill()).expect("reads"), expected, "after {what} {failing} had failed");
        }
        assert!(opened > 0, "no {what} could be done without, of {calls}");
    }
}

/// A device loses a write of one page, or an operator restores one block of the page file, so that the page
/// has an older but intact image. A read of such an image is refused, and the error names the page and its
/// LSNs. Without the LSN map the image is accepted, which shows that the campaign detects this damage.
#[test]
fn an_old_image_of_a_single_page_is_refused_or_redone() {
    let life = life();
    let (path, map) = (format!("{DIR}/pages"), format!("{DIR}/lsnmap"));
    let (mut refused, mut right, mut by_lsn, mut believed_without) = ([0; 2], [0; 2], 0, 0);
    for seed in 0..2 * runs() {
        let random = &mut Random::new(seed);
        let at = 1 + random.below(life.moments.len() - 1);
        let moment = &life.moments[at];
        let Some((page, image)) = older_image(random, life, at) else { continue };
        let harmed = |has_map: bool| {
            let files: MemFs = moment.files.copied();
            let file = files.open(path.as_ref(), OpenOptions::new()).expect("is there");
            file.write_at(((page + 1) * PAGE) as u64, &image).expect("writes");
            if !has_map && files.exists(map.as_ref()) {
                files.remove_file(map.as_ref()).expect("is there");
            }
            let done = format!("seed {seed}: page {page} of moment {at} is older");
            Harmed { files, done, oldest: moment.oldest, newest: moment.newest }
        };
        let is_closed = usize::from(moment.is_closed);
        match judge(&harmed(true), &life.states, random.below(3) == 0)
            .unwrap_or_else(|wrong| panic!("{wrong}"))
        {
            None => right[is_closed] += 1,
            Some(_) => refused[is_closed] += 1,
        }
        let output = match open(&(Arc::new(harmed(true).files) as _)).and_then(|db| db.check(&mut |_, _| {}))
        {
            Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
            Err(error) => error.full_message(),
        };
        by_lsn +=
            usize::from(output.contains(&format!("page {page} at offset")) && output.contains("older image"));
        let without = judge(&harmed(false), &life.states, false);
        believed_without += usize::from(without.is_err_and(|wrong| wrong.contains("silently wrong")));
    }
    println!(
        "old images of single pages, killed and closed: {refused:?} refused, {right:?} right all the same; \
         {by_lsn} errors name the page; without the LSN map {believed_without} are believed"
    );
    let is_varied = refused[0] > 0 && refused[1] > 0 && right[0] > 0;
    assert!(is_varied && by_lsn > 0 && believed_without > 0, "the damage is not varied");
}

/// Returns an intact image that a page had at an earlier moment, but no longer has. It is the image of any
/// page, or of one that a checkpoint or a bulk load has changed since the previous moment.
fn older_image(random: &mut Random, life: &Life, at: usize) -> Option<(usize, Vec<u8>)> {
    let path = format!("{DIR}/pages");
    let before = if random.below(2) == 0 { at - 1 } else { random.below(at) };
    let [old, new] = [before, at].map(|moment| read(&life.moments[moment].files, path.as_ref()));
    let place = |page: usize| (page + 1) * PAGE..(page + 2) * PAGE;
    let is_older = |&page: &usize| {
        let (old, new) = (&old[place(page)], &new[place(page)]);
        old != new && image::is_intact(old, PageId(page as u64)) && image::is_intact(new, PageId(page as u64))
    };
    let pages: Vec<usize> = (0..old.len().min(new.len()) / PAGE - 1).filter(is_older).collect();
    let page = *pages.get(random.below(pages.len().max(1)))?;
    Some((page, old[place(page)].to_vec()))
}

/// A store has all its rows even if its LSN map is empty, filled with zeroes, damaged, or from an earlier
/// moment.
#[test]
fn a_lost_or_old_lsn_map_costs_no_rows() {
    let life = life();
    let map = format!("{DIR}/lsnmap");
    for (at, moment) in life.moments.iter().enumerate().filter(|(_, m)| m.files.exists(map.as_ref())) {
        let bytes = read(&moment.files, map.as_ref());
        let earlier = &life.moments[at / 2].files;
        let earlier = if earlier.exists(map.as_ref()) { read(earlier, map.as_ref()) } else { Vec::new() };
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 3] ^= 4;
        for (what, bytes) in [
            ("empty", Vec::new()),
            ("zeroes", vec![0; bytes.len()]),
            ("cut off", bytes[..bytes.len() * 2 / 3].to_vec()),
            ("damaged", flipped),
            ("of an earlier moment", earlier),
        ] {
            let files = moment.files.copied();
            write(&files, map.as_ref(), &bytes);
            let done = format!("the LSN map of moment {at} is {what}");
            let harmed = Harmed { files, done, oldest: moment.oldest, newest: moment.newest };
            assert_eq!(judge(&harmed, &life.states, at % 4 == 0), Ok(None));
        }
    }
}

#[test]
fn a_check_reports_an_lsn_map_that_is_a_directory() {
    let files = MemFs::new();
    let open_it = || open(&(Arc::new(files.clone()) as _)).expect("opens");
    open_it().close().expect("closes");
    let map = Path::new(DIR).join("lsnmap");
    if files.exists(&map) {
        files.remove_file(&map).expect("removes");
    }
    assert!(open_it().check(&mut |_, _| {}).expect("checks").is_clean());
    files.create_dir_all(&map).expect("creates");
    let error = open_it().check(&mut |_, _| {}).expect_err("is no file");
    assert!(matches!(&error, Error::Io { path, .. } if *path == map), "{error:?}");
}

/// The pages of a bulk load are not in the log. A copy with a page file from before the load and a log from
/// after it has older images of these pages.
#[test]
fn a_page_file_from_before_a_bulk_load_and_a_log_from_after_it_are_refused() {
    let files = MemFs::new();
    let db = open(&(Arc::new(files.clone()) as _)).expect("creates");
    let table = |number: u64| TableDefinition::<u64, [u8]>::named(format!("loaded {number}"));
    let load = |number: u64| {
        let rows = (0..300).map(|n: u64| (n, vec![number as u8; 500]));
        db.transact(|tx| tx.table(&table(number))?.bulk_load(rows.clone())).expect("loads");
    };
    load(1);
    db.transact(|tx| tx.drop_table(table(1).name()).map(drop)).expect("drops");
    db.checkpoint().expect("writes");
    let before = files.copied();
    load(2);
    let after = files.copied();
    drop(db);
    for path in paths(&before).iter().filter(|path| path.ends_with("CONTROL") || path.ends_with("pages")) {
        write(&after, path, &read(&before, path));
    }
    let error = open(&(Arc::new(after) as _)).map(drop).expect_err("refused");
    let output = "/db/pages is damaged at byte 0: older than the log";
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().starts_with(output), "{error}");
}
