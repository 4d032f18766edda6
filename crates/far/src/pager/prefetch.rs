//! Which pages will be touched next: sequential and strided streams among the pages that were missed.

/// Streams that are followed at once: a stencil reads several arrays in step.
const STREAMS: usize = 16;
/// Two misses further apart than this are not taken for one stride.
const REACH: i64 = 64;
const MAX_DEPTH: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: i64,
    stride: i64,
    confirmed: u32,
    used: u64,
}

/// Follows streams; how far it looks ahead follows from how often it was right.
#[derive(Debug)]
pub(super) struct Prefetch {
    streams: [Stream; STREAMS],
    clock: u64,
    depth: u32,
}

/// Pages that will probably be touched: `from + stride`, `from + 2·stride`, …, `depth` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    pub(super) from: i64,
    pub(super) stride: i64,
    pub(super) depth: u32,
}

impl Prefetch {
    pub(super) fn new() -> Self {
        let nothing = Stream { last: i64::MIN / 2, stride: 1, confirmed: 0, used: 0 };
        Self { streams: [nothing; STREAMS], clock: 0, depth: 2 }
    }

    /// A page was missed, or found where it had been fetched to.
    pub(super) fn touched(&mut self, page: u32) -> Option<Guess> {
        self.clock += 1;
        let page = i64::from(page);
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.last + s.stride == page) {
            *stream = Stream { last: page, confirmed: stream.confirmed + 1, used: clock, ..*stream };
            return Some(Guess { from: page, stride: stream.stride, depth: self.depth });
        }
        let near = self
            .streams
            .iter_mut()
            .find(|s| s.confirmed == 0 && s.last != page && (s.last - page).abs() <= REACH);
        let stream = match near {
            Some(stream) => {
                stream.stride = page - stream.last;
                stream
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|s| s.used)?;
                oldest.stride = 1;
                oldest
            }
        };
        *stream = Stream { last: page, confirmed: 0, used: clock, ..*stream };
        None
    }

    pub(super) fn was_right(&mut self) {
        self.depth = (self.depth + 1).min(MAX_DEPTH);
    }

    pub(super) fn was_wrong(&mut self) {
        self.depth = (self.depth / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_forwards_backwards_and_by_strides_are_seen_side_by_side() {
        let mut prefetch = Prefetch::new();
        assert_eq!(prefetch.touched(10), None);
        assert_eq!(prefetch.touched(11), Some(Guess { from: 11, stride: 1, depth: 2 }));
        assert_eq!(prefetch.touched(5000), None);
        assert_eq!(prefetch.touched(4993), None);
        assert_eq!(prefetch.touched(4986), Some(Guess { from: 4986, stride: -7, depth: 2 }));
        prefetch.was_right();
        assert_eq!(prefetch.touched(12), Some(Guess { from: 12, stride: 1, depth: 3 }));
        prefetch.was_wrong();
        assert_eq!(prefetch.touched(4979), Some(Guess { from: 4979, stride: -7, depth: 1 }));
    }
}
