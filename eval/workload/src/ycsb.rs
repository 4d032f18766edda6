//! The six core mixes of YCSB.
//!
//! Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB" (SoCC 2010), table 2. There are two
//! deviations. A value is one field of the workload's size (default: 100 bytes) instead of ten fields of 100
//! bytes. An update replaces the whole value.

/// A mix of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 95 % reads, 5 % updates.
    B,
    /// Read only.
    C,
    /// Read latest: 95 % reads of recently inserted records, 5 % inserts.
    D,
    /// Short ranges: 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Read-modify-write: half reads, half reads followed by an update of the same record.
    F,
}

/// An operation of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read a record.
    Read,
    /// Replace a record.
    Update,
    /// Insert a record.
    Insert,
    /// Read a few records in order.
    Scan,
    /// Read a record and replace it.
    ReadModifyWrite,
}

/// Largest number of records of a scan in mix E; the number is uniform from one to this.
pub const MAX_SCAN_RECORDS: u64 = 100;

impl Mix {
    /// All six mixes.
    pub const ALL: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F];

    /// Returns the letter in lower case.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Mix::A => 'a',
            Mix::B => 'b',
            Mix::C => 'c',
            Mix::D => 'd',
            Mix::E => 'e',
            Mix::F => 'f',
        }
    }

    /// Returns the two operations of the mix, and the percentage of the first; the second has the rest.
    #[must_use]
    pub const fn operations(self) -> (Operation, u32, Operation) {
        match self {
            Mix::A => (Operation::Read, 50, Operation::Update),
            Mix::B => (Operation::Read, 95, Operation::Update),
            Mix::C => (Operation::Read, 100, Operation::Read),
            Mix::D => (Operation::Read, 95, Operation::Insert),
            Mix::E => (Operation::Scan, 95, Operation::Insert),
            Mix::F => (Operation::Read, 50, Operation::ReadModifyWrite),
        }
    }

    /// Returns the operation for a number drawn uniformly from `0 .. 100`.
    #[must_use]
    pub const fn operation(self, percent: u32) -> Operation {
        let (first, share, second) = self.operations();
        if percent < share { first } else { second }
    }

    /// Returns whether the mix inserts records.
    #[must_use]
    pub const fn inserts(self) -> bool {
        matches!(self, Mix::D | Mix::E)
    }
}
