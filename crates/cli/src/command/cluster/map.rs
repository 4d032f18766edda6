//! The leaves of the cluster with their nodes.

use anyhow::{Result, bail};

use super::client::Reply;
use super::directory::ClusterDirectory;

/// A leaf of the cluster: a range of keys that one node owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The first key.
    pub(super) low: Vec<u8>,
    /// The key before which the leaf ends; `None` for the last leaf.
    pub(super) high: Option<Vec<u8>>,
    pub(super) node: u16,
    /// The number of the leaf at its node.
    pub(super) page: i64,
    pub(super) version: i64,
}

impl Leaf {
    fn parse(value: &Reply) -> Option<Self> {
        let Reply::Array(fields) = value else { return None };
        let [Reply::Text(low), high, node, page, version] = fields.as_slice() else { return None };
        let number = |value: &Reply| if let Reply::Integer(number) = value { Some(*number) } else { None };
        let high = match high {
            Reply::Text(high) => Some(high.clone()),
            Reply::Null => None,
            _ => return None,
        };
        let node = u16::try_from(number(node)?).ok()?;
        Some(Self { low: low.clone(), high, node, page: number(page)?, version: number(version)? })
    }
}

/// Passes each leaf to `take`, in key order. Leaves are requested in batches: a leaf that moves meanwhile is
/// reported as it was when its batch was read.
pub(super) fn each_leaf(
    directory: &ClusterDirectory,
    mut take: impl FnMut(Leaf) -> Result<()>,
) -> Result<()> {
    let mut from = Vec::new();
    loop {
        let reply = directory.ask_any(&[b"AZ.CLUSTER", b"MAP", b"FROM", &from])?;
        let leaves = match reply {
            Reply::Array(leaves) => leaves.iter().map(Leaf::parse).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let Some(leaves) = leaves else { bail!("the reply is not a map; use the azekura of the nodes") };
        let Some(last) = leaves.last() else { return Ok(()) };
        let next = last.high.clone();
        leaves.into_iter().try_for_each(&mut take)?;
        match next {
            Some(key) => from = key,
            None => return Ok(()),
        }
    }
}
