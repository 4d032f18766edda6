//! Names of the compression of the local tier.

use std::fmt;
use std::str::FromStr;

/// Compression of pages that leave the region but stay in the memory of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// No compressed tier: each page that leaves the region is sent to the servers.
    #[default]
    None,
    /// One LZ4 block per page.
    Lz4,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
        })
    }
}

/// Error of parsing a name: no compression has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {0:?}; use none or lz4")]
pub struct ParseCompressionError(String);

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::None, Self::Lz4];
        let named = all.into_iter().find(|compression| compression.to_string() == text);
        named.ok_or_else(|| ParseCompressionError(text.into()))
    }
}
