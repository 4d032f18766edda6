//! LEB128 integers: seven bits per byte, least significant group first. The high bit means that another byte
//! follows.

/// Appends `value` to `out`: 1 byte for values below 128, at most 10 bytes.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes`, followed by `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Removes an integer from the front of `input` and returns it. Returns `None` if it is cut off or longer
/// than 64 bits.
#[inline]
pub fn take_u64(input: &mut &[u8]) -> Option<u64> {
    if let Some(word) = input.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            let len = ends.trailing_zeros() / 8 + 1;
            *input = &input[len as usize..];
            return Some(join_groups(word & u64::MAX >> (64 - 8 * len)));
        }
    }
    take_bytewise(input)
}

/// Joins the groups of seven bits in the eight bytes of a word.
#[inline]
fn join_groups(word: u64) -> u64 {
    let pairs = (word & 0x007f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = (pairs & 0x0000_3fff_0000_3fff) | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    (fours & 0x0fff_ffff) | (fours & 0x0fff_ffff_0000_0000) >> 4
}

/// Removes an integer as [`take_u64`] does, byte by byte: at the end of the input, or if it has more than
/// eight bytes.
fn take_bytewise(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in input.iter().enumerate().take(10) {
        let group = u64::from(byte & 0x7f);
        if i == 9 && group > 1 {
            return None;
        }
        value |= group << (7 * i);
        if byte & 0x80 == 0 {
            *input = &input[i + 1..];
            return Some(value);
        }
    }
    None
}

/// Removes bytes written by [`put_bytes`] and returns them. Returns `None` if they are cut off.
pub fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_u64(input)?).ok()?;
    let (head, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(head)
}

/// Removes one byte and returns it.
pub fn take_u8(input: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = input.split_first()?;
    *input = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_at_every_length() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_u64(&mut out, value);
                let mut rest = out.as_slice();
                assert_eq!(take_u64(&mut rest), Some(value));
                assert!(rest.is_empty());
                assert_eq!(take_u64(&mut &out[..out.len() - 1]), None);
                // With more input behind it.
                out.extend([0x80 | shift as u8; 9]);
                let mut rest = out.as_slice();
                assert_eq!((take_u64(&mut rest), rest.len()), (Some(value), 9));
            }
        }
    }

    #[test]
    fn refuses_a_length_beyond_the_input() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"azekura");
        assert_eq!(take_bytes(&mut out.as_slice()), Some(&b"azekura"[..]));
        assert_eq!(take_bytes(&mut &out[..4]), None);
        assert_eq!(take_u64(&mut &[0xff; 11][..]), None);
    }
}
