//! Gives the disk space of free pages back to the file system, with a checkpoint of all pages.

use azekura_base::{DurableLog, Lsn};

use crate::Error;
use crate::database::Shared;

impl Shared {
    /// Takes a checkpoint, and then releases the pages that were free before it and still are
    /// (`azekura_btree::space`, RELEASE-1). Fails only if the checkpoint fails.
    pub(crate) fn checkpoint_and_release(&self) -> Result<(), Error> {
        if !self.wal.has_begun() {
            return Ok(());
        }
        let Ok(Some(free)) = self.env.free_space() else { return self.checkpoint_fully() };
        let next_lsn = self.wal.next_lsn();
        // Pages that become dirty from now on get recovery LSNs that are not below `next_lsn`.
        self.wal.make_durable(Lsn(next_lsn.0 - 1))?;
        self.checkpoint_fully()?;
        if self.control.lock().current().redo_lsn >= next_lsn
            && let Err(error) = free.release()
        {
            // The space stays in use, and the next checkpoint tries again.
            tracing::debug!(path = %self.path.display(), %error, "cannot release the space of free pages");
        }
        Ok(())
    }
}
