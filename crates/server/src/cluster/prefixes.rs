//! The prefixes of `SCAN` cursors that other nodes have assigned (CURSOR-4).

use azekura_base::blocking;
use azekura_fatbtree::tcp::NodeHandle;
use azekura_fatbtree::{Answer, Error, Key, PeId, Target, Work};

use super::reader::failed_read;
use super::wire::{self, Bytes, Call};
use crate::error::CommandError;

/// Access to the prefixes of the other nodes.
#[derive(Debug)]
pub(crate) struct OtherPrefixes(NodeHandle);

impl OtherPrefixes {
    pub(super) const fn of(node: NodeHandle) -> Self {
        Self(node)
    }

    /// Returns the prefix that node `node` has assigned the number; `None` if there is no such node or
    /// prefix. Blocks.
    pub(crate) fn prefix(&self, node: u16, number: u64) -> Result<Option<Vec<u8>>, CommandError> {
        let pe = PeId(node);
        let work = Work::AtNode { pe, bytes: wire::encode(&Call::CursorPrefix(number)) };
        blocking::announce();
        let called: Result<Result<Option<Answer>, Error>, Error> = self.0.ask(move |here| {
            Box::pin(async move {
                if !here.node.members().contains(&pe) {
                    return Ok(None);
                }
                let (answer, _) = here.node.call(Target::At(Key::new()), work).await?;
                Ok(Some(answer))
            })
        });
        match called.and_then(|answer| answer).map_err(failed_read)? {
            None => Ok(None),
            Some(Answer::Ran(answer)) => {
                Ok(wire::decode::<Option<Bytes>>(&answer)?.map(|Bytes(prefix)| prefix))
            }
            Some(_) => Err(failed_read(Error::Protocol)),
        }
    }
}
