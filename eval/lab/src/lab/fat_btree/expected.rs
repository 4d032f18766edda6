//! Values from the paper's text, and of a discrete-event model of its machine. The model was made before the
//! nodes existed, with the same data, costs and number of clients. Reports show both beside the measured
//! values.

use azekura_fatbtree::{Placement, Protocol};

use super::run::{Outcome, Setup};

/// A number from the paper's section 4.2.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// Name of the series.
    pub series: &'static str,
    /// Placement of the index pages.
    pub placement: Placement,
    /// Number of PEs; each has a cache of 50 pages.
    pub pes: u16,
    /// Value in the paper.
    pub paper: f64,
    /// Value of the model.
    pub model: f64,
    /// Function that returns this value of a measurement.
    pub value: fn(&Outcome) -> f64,
}

/// Returns the numbers from the paper's text.
#[must_use]
pub fn anchors() -> [Anchor; 5] {
    use Placement::{CopyWhole, FatBtree, SingleIndex};
    let locks: fn(&Outcome) -> f64 = |outcome| outcome.remote_locks;
    let hits: fn(&Outcome) -> f64 = |outcome| outcome.hit_percent;
    let first: fn(&Outcome) -> f64 = |outcome| outcome.hit_percent_first;
    let anchor =
        |series, placement, pes, paper, model, value| Anchor { series, placement, pes, paper, model, value };
    [
        anchor("CWB, remote locks per 10,000", CopyWhole, 16, 9400.0, 9350.0, locks),
        anchor("Fat-Btree, remote locks per 10,000", FatBtree, 16, 12_000.0, 11_676.0, locks),
        anchor("Fat-Btree, hits %", FatBtree, 8, 81.5, 80.6, hits),
        anchor("CWB, hits %", CopyWhole, 8, 78.3, 73.4, hits),
        anchor("SIB, hits % at the index PE", SingleIndex, 8, 93.8, 93.7, first),
    ]
}

/// Searches per second of SIB, CWB and Fat-Btree in the model: for each number of PEs, one row per cache
/// size.
const READS: [(u16, [(usize, [f64; 3]); 7]); 3] = [
    (
        4,
        [
            (5, [293.0, 607.0, 612.0]),
            (10, [371.0, 749.0, 893.0]),
            (20, [527.0, 932.0, 1272.0]),
            (30, [718.0, 1028.0, 1495.0]),
            (50, [1336.0, 1187.0, 1634.0]),
            (100, [1644.0, 1465.0, 1693.0]),
            (200, [1722.0, 1686.0, 1773.0]),
        ],
    ),
    (
        8,
        [
            (5, [337.0, 1217.0, 1277.0]),
            (10, [422.0, 1523.0, 1971.0]),
            (20, [674.0, 1897.0, 2861.0]),
            (30, [1152.0, 2057.0, 3199.0]),
            (50, [2689.0, 2355.0, 3343.0]),
            (100, [2951.0, 2984.0, 3358.0]),
            (200, [3108.0, 3572.0, 3730.0]),
        ],
    ),
    (
        16,
        [
            (5, [372.0, 2455.0, 2687.0]),
            (10, [473.0, 3055.0, 4390.0]),
            (20, [782.0, 3809.0, 6417.0]),
            (30, [1871.0, 4138.0, 6516.0]),
            (50, [3443.0, 4837.0, 6886.0]),
            (100, [3442.0, 6333.0, 7435.0]),
            (200, [3441.0, 8345.0, 8948.0]),
        ],
    ),
];

/// Operations per second with 16 PEs in the model. Each row has the percentage of inserts and the cache size
/// in pages, then SIB, CWB and Fat-Btree with B-OPT, INC-OPT and lazy copies.
const UPDATES: [(usize, usize, [[f64; 3]; 3]); 6] = [
    (10, 10, [[515.0, 2101.0, 3143.0], [488.0, 2441.0, 3758.0], [453.0, 2602.0, 3907.0]]),
    (10, 50, [[3171.0, 2881.0, 4788.0], [3376.0, 3696.0, 5792.0], [4976.0, 3976.0, 5929.0]]),
    (10, 200, [[3293.0, 4767.0, 6318.0], [3409.0, 6448.0, 7725.0], [6079.0, 7036.0, 7838.0]]),
    (50, 10, [[415.0, 626.0, 1013.0], [517.0, 1553.0, 2590.0], [412.0, 1687.0, 2923.0]]),
    (50, 50, [[1909.0, 820.0, 1428.0], [2579.0, 2127.0, 3982.0], [3825.0, 2768.0, 4267.0]]),
    (50, 200, [[1998.0, 1205.0, 2098.0], [2955.0, 3685.0, 4740.0], [4932.0, 4774.0, 5283.0]]),
];

/// Returns the model's value for a setup, if it was computed.
#[must_use]
pub fn rate(setup: &Setup) -> Option<f64> {
    let place = Placement::ALL.iter().position(|placement| *placement == setup.placement)?;
    if setup.inserts == 0.0 {
        if setup.protocol == Protocol::Lazy {
            return None;
        }
        let (_, rows) = READS.iter().find(|(pes, _)| *pes == setup.pes)?;
        return rows.iter().find(|(pages, _)| *pages == setup.cache_pages).map(|(_, rates)| rates[place]);
    }
    let percent = (setup.inserts * 100.0).round() as usize;
    let protocol = Protocol::ALL.iter().position(|protocol| *protocol == setup.protocol)?;
    let row =
        |(share, pages, _): &&(usize, usize, [[f64; 3]; 3])| *share == percent && *pages == setup.cache_pages;
    UPDATES.iter().find(row).filter(|_| setup.pes == 16).map(|(_, _, rates)| rates[protocol][place])
}
