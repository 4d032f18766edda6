use super::*;
use crate::PageId;
use std::cmp::Ordering as Cmp;
use std::sync::atomic::AtomicU64;

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn unaligned_writes_touch_only_their_bytes() {
    let words = words(4);
    let mut page = PageMut::new(PageWords::new(&words));
    for at in 0..20 {
        for len in 0..=12 {
            page.copy_from(&[0xAA; 32]);
            let bytes: Vec<u8> = (1..=len as u8).collect();
            page.write(at, &bytes);
            let mut out = [0; 32];
            page.copy_to(&mut out);
            let mut expected = [0xAA; 32];
            expected[at..at + len].copy_from_slice(&bytes);
            assert_eq!(out, expected);
            assert_eq!(page.compare(at, len, &bytes), Cmp::Equal);
        }
    }
}

#[test]
fn words_are_intact_exactly_where_their_bytes_are() {
    for bytes in [MIN_PAGE_SIZE, 8192, MAX_PAGE_SIZE] {
        let all = words(bytes / 8);
        let as_words = PageWords::new(&all);
        let mut page = PageMut::new(as_words);
        let mut image = vec![0; bytes];
        let mut agrees = |image: &[u8], expected: bool| {
            page.copy_from(image);
            assert_eq!(
                (image::is_intact(image, PageId(7)), as_words.is_intact(PageId(7))),
                (expected, expected)
            );
        };
        agrees(&image, false); // a page of zeros
        image[bytes - 1] = 1;
        agrees(&image, false);
        image[8] = 7;
        image[100] = 9;
        image::seal(&mut image);
        agrees(&image, true);
        for at in [0, 4, 1535, 1536, 3072, bytes - 1] {
            image[at] ^= 4;
            agrees(&image, false);
            image[at] ^= 4;
        }
        image[8] = 8; // a valid image of another page
        image::seal(&mut image);
        agrees(&image, false);
    }
}

#[test]
fn moves_words_as_a_slice_moves_within_itself() {
    for (from, to) in [(0, 2), (2, 0), (5, 5), (0, 40), (40, 0), (3, 14), (20, 11)] {
        for count in 0..=40 {
            let words = words(80);
            let mut plain: Vec<u64> = (100..180).collect();
            let mut page = PageMut::new(PageWords::new(&words));
            plain.iter().enumerate().for_each(|(i, &word)| page.set_word(i, word));
            page.move_words(from, to, count);
            plain.copy_within(from..from + count, to);
            let moved: Vec<u64> = (0..80).map(|i| page.word(i)).collect();
            assert_eq!(moved, plain, "{count} words from {from} to {to}");
        }
    }
}

#[test]
fn compares_every_pair_of_short_strings_as_byte_strings_do() {
    let words = words(8);
    let strings = |len: usize| {
        (0..3_usize.pow(3)).map(move |n| {
            let mut bytes = vec![b'm'; len];
            // Three positions, each with a digit below, at or above the middle, also beyond the values of
            // text bytes.
            for (at, digit) in [n % 3, n / 3 % 3, n / 9].into_iter().enumerate() {
                let place = (len * at / 3).min(len.saturating_sub(1));
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = [0, b'm', 255][digit];
                }
            }
            bytes
        })
    };
    for (a, b) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
        let at = 5 + a % 8;
        for ours in strings(a) {
            let mut page = PageMut::new(PageWords::new(&words));
            page.write(at, &ours);
            for theirs in strings(b) {
                assert_eq!(page.compare(at, a, &theirs), ours.cmp(&theirs), "{ours:?} {theirs:?}");
            }
        }
    }
}

#[test]
fn compares_as_byte_strings() {
    let words = words(4);
    let mut page = PageMut::new(PageWords::new(&words));
    page.write(3, b"abcdefghijk");
    for (key, expected) in [
        (&b"abcdefghijk"[..], Cmp::Equal),
        (b"abcdefghij", Cmp::Greater),
        (b"abcdefghijkl", Cmp::Less),
        (b"abcdefgz", Cmp::Less),
        (b"", Cmp::Greater),
        (b"\xff", Cmp::Less),
    ] {
        assert_eq!(page.compare(3, 11, key), expected, "{key:?}");
    }
}

#[test]
fn garbage_offsets_read_as_zero() {
    let words = words(2);
    let page = PageWords::new(&words);
    assert_eq!(page.u64(1 << 40), 0);
    let mut out = [7; 5];
    page.read(14, &mut out);
    assert_eq!(out, [0; 5]);
    assert_eq!(page.compare(60_000, 60_000, b"x"), Cmp::Less);
}

#[test]
fn a_changed_bit_breaks_the_seal() {
    let mut page = PageBuf::zeroed(4096);
    page[8] = 9;
    image::seal(&mut page);
    assert!(image::is_intact(&page, PageId(9)));
    assert!(!image::is_intact(&page, PageId(8)), "a page of another place");
    page[4000] ^= 1;
    assert!(!image::is_intact(&page, PageId(9)));
    assert!(!image::is_intact(&PageBuf::zeroed(4096), PageId(0)), "zeroes are no page");
}

#[test]
fn appended_bytes_are_read_back_also_beyond_the_page() {
    let words = words(12);
    let mut page = PageMut::new(PageWords::new(&words));
    let bytes: Vec<u8> = (1..=96).collect();
    page.copy_from(&bytes);
    for at in 0..110 {
        for len in 0..=100 {
            let mut read = vec![0; len.min(96)];
            page.read(at, &mut read);
            let mut appended = vec![9];
            page.read_into(at, len, &mut appended);
            assert_eq!((appended[0], &appended[1..]), (9, &read[..]), "{len} bytes from {at}");
        }
    }
}

/// Blocks of words are copied by wide loads.
#[test]
fn long_copies_are_the_bytes_of_the_page_and_no_more() {
    let words = words(200);
    let bytes: Vec<u8> = (0..1600_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    PageMut::new(PageWords::new(&words)).copy_from(&bytes);
    let page = PageWords::new(&words);
    for at in [0, 8, 16, 3, 1600 - 520, 1599] {
        for len in (490..540).chain([0, 1, 1000, 1583, 1600]) {
            let end = (at + len).min(1600);
            let wanted: Vec<u8> = bytes[at..end].iter().copied().chain([0; 1600]).take(len).collect();
            let mut read = vec![9; len + 8];
            page.read(at, &mut read[..len]);
            assert!(read[..len] == wanted && read[len..] == [9; 8], "{len} bytes from {at}");
            let mut appended = vec![9];
            page.read_into(at, len, &mut appended);
            assert!(appended[0] == 9 && appended[1..] == wanted, "{len} bytes appended from {at}");
        }
    }
}
