//! Results of the trials.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{Guard, Wrong};
use crate::lab::judged::Judged;

/// Result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every byte was right.
    Right {
        /// Longest time of one access.
        pause_ms: f64,
    },
    /// The program was stopped with a message.
    Stopped {
        /// Time from the fault to the end of the program.
        after_ms: f64,
        /// The message.
        why: String,
    },
    /// A byte was wrong, or the program ended without a message.
    Wrong {
        /// Output of the program.
        said: String,
    },
    /// The program did not end.
    Hangs,
}

/// A trial with its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Seed of all random choices.
    pub seed: u64,
    /// Protection of the pages.
    pub guard: Guard,
    /// Fault of a server.
    pub wrong: Wrong,
    /// The result.
    pub outcome: Outcome,
}

/// Results of all trials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Requested number of trials; fewer were made if too many hung.
    pub asked: u64,
    /// Trials in the order of their seeds.
    pub trials: Vec<Trial>,
}

impl Trial {
    /// Returns whether the trial passed: every byte was right, or, without a second copy of the pages, the
    /// program was stopped with a message.
    #[must_use]
    pub fn is_well(&self) -> bool {
        match self.outcome {
            Outcome::Right { .. } => true,
            Outcome::Stopped { .. } => self.guard == Guard::None,
            Outcome::Wrong { .. } | Outcome::Hangs => false,
        }
    }
}

impl Judged for Report {
    fn is_well(&self) -> bool {
        self.trials.len() as u64 == self.asked && self.trials.iter().all(Trial::is_well)
    }

    fn to_text(&self) -> String {
        let mut text = String::from(
            "guard   server    trials  right  stopped  wrong  hangs  longest pause  longest time to stop\n",
        );
        for guard in Guard::ALL {
            for wrong in Wrong::ALL {
                let of: Vec<&Trial> =
                    self.trials.iter().filter(|trial| (trial.guard, trial.wrong) == (guard, wrong)).collect();
                if !of.is_empty() {
                    let _ = writeln!(text, "{}", row(guard, wrong, &of));
                }
            }
        }
        if (self.trials.len() as u64) < self.asked {
            let _ = writeln!(text, "ended after {} of {}: too many hang", self.trials.len(), self.asked);
        }
        for trial in self.trials.iter().filter(|trial| !trial.is_well()) {
            let Trial { seed, guard, wrong, outcome } = trial;
            let (guard, wrong) = (guard.name(), wrong.name());
            let _ = writeln!(text, "--trials 1 --seed {seed} --guard {guard} --server {wrong}: {outcome:?}");
        }
        text
    }
}

impl Report {
    /// Returns the longest time of one access in the trials in which every byte was right.
    #[must_use]
    pub fn longest_pause_ms(&self) -> f64 {
        self.longest(|outcome| if let Outcome::Right { pause_ms } = outcome { *pause_ms } else { 0.0 })
    }

    /// Returns the longest time from a fault to the end of a program that was stopped.
    #[must_use]
    pub fn longest_stop_ms(&self) -> f64 {
        self.longest(|outcome| if let Outcome::Stopped { after_ms, .. } = outcome { *after_ms } else { 0.0 })
    }

    fn longest(&self, of: fn(&Outcome) -> f64) -> f64 {
        self.trials.iter().map(|trial| of(&trial.outcome)).fold(0.0, f64::max)
    }
}

fn row(guard: Guard, wrong: Wrong, trials: &[&Trial]) -> String {
    let (mut right, mut stopped, mut bad, mut hangs) = (0, 0, 0, 0);
    let (mut pause, mut stop) = (0.0_f64, 0.0_f64);
    for trial in trials {
        match &trial.outcome {
            Outcome::Right { pause_ms } => {
                right += 1;
                pause = pause.max(*pause_ms);
            }
            Outcome::Stopped { after_ms, .. } => {
                stopped += 1;
                stop = stop.max(*after_ms);
            }
            Outcome::Wrong { .. } => bad += 1,
            Outcome::Hangs => hangs += 1,
        }
    }
    let wrong = wrong.name();
    format!(
        "{:<8}{wrong:<10}{:>6}{right:>7}{stopped:>9}{bad:>7}{hangs:>7}{pause:>12.0} ms{stop:>19.0} ms",
        guard.name(),
        trials.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_be_stopped_is_well_only_without_a_second_copy_and_to_hang_never_is() {
        let trial = |guard, outcome| Trial { seed: 1, guard, wrong: Wrong::Killed, outcome };
        let stopped = || Outcome::Stopped { after_ms: 3.0, why: "page 1 is lost".into() };
        assert!(trial(Guard::None, stopped()).is_well());
        assert!(!trial(Guard::Copies, stopped()).is_well());
        assert!(!trial(Guard::None, Outcome::Hangs).is_well());
        assert!(!trial(Guard::None, Outcome::Wrong { said: String::new() }).is_well());
        let right = || trial(Guard::Spill, Outcome::Right { pause_ms: 712.4 });
        let report = Report { asked: 1, trials: vec![right()] };
        assert!(report.is_well() && report.to_text().contains("712 ms"));
        assert_eq!((report.longest_pause_ms(), report.longest_stop_ms()), (712.4, 0.0));
        let ended_early = Report { asked: 2, trials: vec![right()] };
        assert!(!ended_early.is_well() && ended_early.to_text().contains("1 of 2"));
        let stops = Report { asked: 1, trials: vec![trial(Guard::None, stopped())] };
        assert_eq!((stops.longest_pause_ms(), stops.longest_stop_ms()), (0.0, 3.0));
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }
}
