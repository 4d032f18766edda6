//! TPC-C's transactions in a session of any engine.

use super::client::{End, Ended, Runner, execute};
use super::keyed::KeyedRows;
use super::schema::UnusedItem;
use crate::engine::{Reader, Session, Ticket, Writer};
use crate::error::{BenchError, EngineError};
use azekura_workload::tpcc::Input;

/// Runs TPC-C's transactions in a session.
pub struct OnSession<'s>(pub Box<dyn Session + 's>);

impl std::fmt::Debug for OnSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnSession")
    }
}

impl Runner for OnSession<'_> {
    type Promise = Box<dyn Ticket>;

    fn run(&mut self, input: &Input, pipelined: bool) -> Result<Ended<Box<dyn Ticket>>, BenchError> {
        let mut skipped = 0;
        let ended = if matches!(input, Input::OrderStatus(_) | Input::StockLevel(_)) {
            let work = &mut |reader: &mut dyn Reader| execute(&KeyedRows::reading(reader), input).map(drop);
            self.0.read(work).map(|retries| (retries, None))
        } else {
            let work = &mut |writer: &mut dyn Writer| {
                skipped = execute(&KeyedRows::writing(writer), input)?;
                Ok(())
            };
            if pipelined {
                self.0.write_async(work).map(|(retries, ticket)| (retries, Some(ticket)))
            } else {
                self.0.write(work).map(|retries| (retries, None))
            }
        };
        match ended {
            Ok((retries, promise)) => Ok(Ended { retries, end: End::Committed { skipped, promise } }),
            Err(EngineError::Failed { source, .. }) if source.is::<UnusedItem>() => {
                Ok(Ended { retries: 0, end: End::RolledBack })
            }
            Err(error) => Err(error.into()),
        }
    }
}
