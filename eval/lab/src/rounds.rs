//! Interleaved runs of several engines: in each round every engine runs once, and each round begins with
//! another engine. A slow minute of the machine then affects all engines alike.

/// Returns the results of each engine, in the order of its runs. An engine that fails is not run again, and
/// its result is the error. Calls `run` with the round and the index of the engine.
pub fn interleaved<T, E>(
    rounds: usize,
    takes_part: &[bool],
    mut run: impl FnMut(usize, usize) -> Result<T, E>,
) -> Vec<Result<Vec<T>, E>> {
    let mut runs: Vec<Result<Vec<T>, E>> = takes_part.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..takes_part.len() {
            let at = (round + turn) % takes_part.len();
            if let (Ok(done), true) = (&mut runs[at], takes_part[at]) {
                match run(round, at) {
                    Ok(ran) => done.push(ran),
                    Err(error) => runs[at] = Err(error),
                }
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::interleaved;

    #[test]
    fn engines_begin_a_round_in_turn_and_one_that_fails_is_left_out() {
        let mut order = Vec::new();
        let runs = interleaved(3, &[true, true, false, true], |round, at| {
            order.push((round, at));
            if (round, at) == (1, 3) { Err("broke") } else { Ok(10 * round + at) }
        });
        assert_eq!(order, [(0, 0), (0, 1), (0, 3), (1, 1), (1, 3), (1, 0), (2, 0), (2, 1)]);
        assert_eq!(runs, [Ok(vec![0, 10, 20]), Ok(vec![1, 11, 21]), Ok(vec![]), Err("broke")]);
    }
}
