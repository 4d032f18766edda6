//! The order in which frames are allocated and in which the clock visits them.

use super::FrameId;

/// Returns the frame at position `nth` of the order in which `frames` frames are allocated and visited by the
/// clock: first one frame of each cache line, then the others. So the two frames of a line are half a pool
/// apart in this order.
pub(crate) const fn nth_frame(nth: usize, frames: usize) -> FrameId {
    let lines = frames.div_ceil(2);
    FrameId(if nth < lines { 2 * nth } else { 2 * (nth - lines) + 1 } as u32)
}

/// Returns the position of a frame in that order.
pub(crate) const fn turn_of(frame: FrameId, frames: usize) -> usize {
    let (line, is_second) = (frame.0 as usize / 2, frame.0 % 2 == 1);
    if is_second { frames.div_ceil(2) + line } else { line }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_of_one_line_are_given_out_half_a_pool_apart() {
        for frames in [1, 2, 3, 8, 1001] {
            let order: Vec<FrameId> = (0..frames).map(|nth| nth_frame(nth, frames)).collect();
            assert!(order.iter().enumerate().all(|(nth, &frame)| turn_of(frame, frames) == nth));
            let apart = |line: usize| turn_of(FrameId(2 * line as u32 + 1), frames) - line;
            assert!((0..frames / 2).all(|line| apart(line) == frames.div_ceil(2)), "{order:?}");
        }
    }
}
