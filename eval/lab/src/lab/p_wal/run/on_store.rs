//! Figures of the whole store.

use std::time::Duration;

use azekura_workload::tpcc::{Mix, Scale};

use super::super::goals::{IN_FLIGHT, P99, RECORD_MIB};
use super::super::ground::Ground;
use super::super::store::{self, Tpcc, Updates};
use super::{Into, P50, Run};
use crate::error::BenchError;
use crate::lab::figures::median;

impl Run<'_> {
    /// Measures U-1 and U-10 on the store.
    pub(super) fn store(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let updates = Updates::fill(ground)?;
        for of in [1, 10] {
            let name = format!("U-{of} on the store, {}", ground.name());
            let note = "65,536 rows of 4 bytes, updated through tree and lock table; the store's own compact \
                records.";
            self.figure(&name, note, "workers", "transactions per second");
            self.on_the_store(&name, self.lab.time, &mut |cell| updates.run(cell, of))?;
        }
        Ok(())
    }

    /// Measures TPC-C on the store (Figs 11, 12 and 14).
    pub(super) fn tpcc(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let (warehouses, divisor) = self.lab.tpcc_scale;
        let scale = Scale::reduced(warehouses, divisor);
        let tpcc = Tpcc::load(ground, scale, self.lab.seed, self.progress)?;
        for (mix, name, note) in [
            (Mix::NewOrder, "New-Order", "Figs 11, 12, 14: New-Order alone, without rollbacks."),
            (Mix::Full, "TPC-C", "Past the paper: all five transactions in the specification's mix."),
        ] {
            let name = format!("{name}, {}", ground.name());
            self.figure(&name, note, "workers", "transactions per second");
            self.on_the_store(&name, 2 * self.lab.time, &mut |cell| tpcc.run(cell, mix))?;
        }
        tpcc.check(ground, self.progress)
    }

    /// Measures every variant that the store supports, with blocking and pipelined commits, in turn.
    fn on_the_store(
        &mut self,
        figure: &str,
        time: Duration,
        measure: &mut dyn FnMut(&store::Cell) -> Result<store::Stretch, BenchError>,
    ) -> Result<(), BenchError> {
        let mut cells = Vec::new();
        for (workers, variant) in self.cells(&self.lab.variants) {
            let blocking = self.lab.blocking.then_some(None);
            for window in blocking.into_iter().chain([Some(self.lab.window)]) {
                let window = window.map(|window| variant.window(window));
                cells.push(store::Cell { variant, workers, window, time, seed: self.lab.seed });
            }
        }
        self.progress.begin(figure, (cells.len() * self.lab.runs) as u64);
        let mut runs: Vec<Vec<store::Stretch>> = cells.iter().map(|_| Vec::new()).collect();
        let mut done = 0;
        for run in 0..self.lab.runs as u64 {
            for (cell, runs) in cells.iter().zip(&mut runs) {
                runs.push(measure(&store::Cell { seed: cell.seed + run, ..*cell })?);
                done += 1;
                self.progress.at(done);
            }
        }
        for (cell, mut runs) in cells.iter().zip(runs) {
            let Some((stretch, spread)) = median(&mut runs, |run| run.rate) else { continue };
            let mode = if cell.window.is_some() { "pipelined" } else { "blocking" };
            let series = format!("{}, {mode}", cell.variant.store_name());
            let latencies = &stretch.latencies;
            let beside = [
                (RECORD_MIB, stretch.log_mib_per_s),
                (IN_FLIGHT, stretch.rate * latencies.mean_us() / 1e6),
                (P50, latencies.quantile_us(0.5)),
                (P99, latencies.quantile_us(0.99)),
            ];
            let (rate, streams) = (stretch.rate, stretch.streams as f64);
            let beside =
                if streams > 0.0 { [&beside[..], &[("streams", streams)]].concat() } else { beside.to_vec() };
            self.point(Into { figure, series, at: cell.workers }, (rate, spread), &beside);
        }
        Ok(())
    }
}
