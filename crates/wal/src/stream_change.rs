//! Changing the number of streams in use while the log is written.
//!
//! 1. Lead every stream's gate, in order: no flush goes on, and none begins (ASSIGN-1). Each is claimed
//!    (GATE-7), so it takes one flush of the stream.
//! 2. Close the buffers: an appender waits, as it does for a segment, for a stream's writer, which we hold.
//! 3. Write what is in the buffers by the streams it belongs to, and settle (ASSIGN-2).
//! 4. Change the number, unless a stream would then have less prepared than its buffers can hold (SEGMENT-2).
//! 5. Open the buffers by the new assignment (ASSIGN-3), let the writers and gates go, wake whom it concerns.
//!
//! Committers wait for one flush of each stream meanwhile; it is done a few times in a log's life, see
//! [`adapt`](crate::adapt).

use azekura_base::LogFailed;

use crate::commit_gate::Lead;
use crate::log::{Log, PoisonOnPanic};
use crate::options::{Admission, StreamCount};
use crate::stream::{Stream, Taken};

impl Log {
    /// Uses so many streams from now on, at least one and at most all. Tells whether the number changed.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed, now or before.
    pub(crate) fn use_streams(&self, count: usize) -> Result<bool, LogFailed> {
        let count = count.clamp(1, self.streams.len());
        let _one_at_a_time = self.changing.lock();
        self.failure.check()?;
        let may_change = !matches!(self.options.streams, StreamCount::Fixed(_));
        if count == self.assignment.in_use() || !may_change {
            return Ok(false);
        }
        if count > self.assignment.in_use() && !self.prepare_for(count) {
            return Ok(false); // no room; the appender that needs it gets the error
        }
        let leads: Vec<Lead<'_>> = self.streams.iter().map(|stream| stream.gate.claim()).collect();
        let poison = PoisonOnPanic(self);
        let changed = self.change_while_leading(count);
        std::mem::forget(poison);
        if let Err(reason) = &changed {
            self.fail(reason);
        }
        self.streams.iter().for_each(|stream| self.hand_over_tasks(stream));
        let acknowledged = self.acknowledge();
        for lead in leads {
            lead.finish();
        }
        self.wakers.wake_through(acknowledged);
        if self.options.background {
            self.preparer.request();
        }
        self.failure.check()?;
        Ok(changed.unwrap_or(false))
    }

    /// Has segments made ready in the streams that are to be used, as large as those of the log so far.
    fn prepare_for(&self, count: usize) -> bool {
        let segment = |stream: &Stream| stream.store.with_sizes(|sizes| sizes.next.segment);
        let largest = self.streams.iter().filter_map(segment).max().unwrap_or(0);
        // A log that was not begun has nothing to make ready for.
        let is_begun = self.streams.iter().any(|stream| stream.store.is_started());
        let mut new = self.streams[..count].iter().skip(self.assignment.in_use());
        is_begun
            && new.all(|stream| stream.store.start().is_ok() && stream.prepare_for(count, largest).is_ok())
    }

    /// Steps 2 to 5; in words what failed.
    fn change_while_leading(&self, count: usize) -> Result<bool, String> {
        let writers: Vec<_> = self.streams.iter().map(Stream::writer).collect();
        self.streams.iter().for_each(|stream| stream.close_buffers(&self.buffers));
        // Kept to the end: who was refused waits for one of them.
        let mut kept: Vec<Taken<'_>> = Vec::new();
        for (stream, writer) in self.streams.iter().zip(writers) {
            let mut taken = stream.take(writer, &self.horizon, &self.buffers, Admission::None);
            stream.write(&mut taken, &self.horizon, &self.buffers)?;
            kept.push(taken);
        }
        self.buffers.iter().for_each(|buffer| buffer.settle(&self.horizon));
        let before = self.assignment.in_use();
        self.assignment.use_streams(count);
        self.streams.iter().for_each(Stream::reassigned);
        let all_fit = self.streams[..count].iter().all(|stream| stream.admissible() == Admission::All);
        if !all_fit {
            self.assignment.use_streams(before);
            self.streams.iter().for_each(Stream::reassigned);
        }
        self.streams.iter().for_each(|stream| stream.open_buffers(&self.buffers));
        Ok(all_fit)
    }
}
