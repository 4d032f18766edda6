//! Executor of tasks in virtual time, one at a time. Ready tasks run in order; when none is ready, the clock
//! advances to the next timer.
//!
//! Tasks belong to groups. When a group ends, all its tasks end at once, as in a crash.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use crate::world::{Clock, Rng, Spawn, Task};

type TaskId = u64;
type Event = Box<dyn FnOnce()>;

/// The event loop. Clones are handles of the same loop.
#[derive(Clone)]
pub struct Executor(Rc<Inner>);

struct Inner {
    now: Cell<Duration>,
    next_id: Cell<u64>,
    tasks: RefCell<BTreeMap<TaskId, Running>>,
    ready: Arc<Mutex<VecDeque<TaskId>>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    rng: RefCell<SmallRng>,
    ended: RefCell<BTreeSet<Group>>,
    events: Cell<u64>,
}

struct Running {
    group: Group,
    /// The task; absent while it runs.
    task: Option<Task<'static, ()>>,
}

/// A group of tasks that end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u64);

struct Timer {
    at: Duration,
    /// Order of timers that are due at the same time.
    number: u64,
    what: Due,
}

enum Due {
    Wake(Waker),
    Run(Event),
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct Alarm {
    id: TaskId,
    ready: Arc<Mutex<VecDeque<TaskId>>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.id);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("now", &self.now()).field("events", &self.events()).finish()
    }
}

impl Executor {
    /// Creates an executor at simulated time 0 that draws random numbers from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Inner {
            now: Cell::default(),
            next_id: Cell::new(1),
            tasks: RefCell::default(),
            ready: Arc::default(),
            timers: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            ended: RefCell::default(),
            events: Cell::default(),
        }))
    }

    /// Returns the number of task steps and events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.events.get()
    }

    /// Creates a group.
    #[must_use]
    pub fn group(&self) -> Group {
        Group(self.draw())
    }

    /// Returns a spawner for tasks of `group`.
    #[must_use]
    pub fn spawner(&self, group: Group) -> Rc<dyn Spawn> {
        Rc::new(Spawner { executor: self.clone(), group })
    }

    /// Starts a task, unless its group has ended: a task that still holds parts of an ended group cannot
    /// revive it.
    pub fn spawn_in(&self, group: Group, task: Task<'static, ()>) {
        if self.0.ended.borrow().contains(&group) {
            return;
        }
        let id = self.draw();
        self.0.tasks.borrow_mut().insert(id, Running { group, task: Some(task) });
        self.0.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(id);
    }

    /// Ends all tasks of a group.
    pub fn end(&self, group: Group) {
        self.0.ended.borrow_mut().insert(group);
        let ended: Vec<_> = {
            let mut tasks = self.0.tasks.borrow_mut();
            let ids: Vec<_> =
                tasks.iter().filter(|(_, task)| task.group == group).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        drop(ended); // after the borrow: a destructor may call the executor
    }

    /// Schedules `event` for the time `at`.
    pub fn at(&self, at: Duration, event: impl FnOnce() + 'static) {
        self.set(at, Due::Run(Box::new(event)));
    }

    /// Runs until `done` returns `true` or no task and no event is left; returns the last result of `done`.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if !self.step() {
                return done();
            }
        }
        true
    }

    /// Runs for `time` of simulated time.
    pub fn run_for(&self, time: Duration) {
        let passed = Rc::new(Cell::new(false));
        let tell = Rc::clone(&passed);
        self.at(self.now() + time, move || tell.set(true));
        self.run_until(|| passed.get());
    }

    /// Runs until `task` ends. `None` if no task and no event is left before that.
    pub fn block_on<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let for_task = Rc::clone(&result);
        let group = self.group();
        self.spawn_in(
            group,
            Box::pin(async move {
                let value = task.await;
                *for_task.borrow_mut() = Some(value);
            }),
        );
        self.run_until(|| result.borrow().is_some());
        self.end(group);
        result.take()
    }

    /// Runs one step of one task, or one event; returns `false` if there is none.
    fn step(&self) -> bool {
        self.0.events.set(self.0.events.get() + 1);
        let ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(id) = ready {
            self.run_task(id);
            return true;
        }
        let Some(Reverse(timer)) = self.0.timers.borrow_mut().pop() else { return false };
        self.0.now.set(self.0.now.get().max(timer.at));
        match timer.what {
            Due::Wake(waker) => waker.wake(),
            Due::Run(event) => event(),
        }
        true
    }

    fn run_task(&self, id: TaskId) {
        // The task may have ended, or may have been woken twice.
        let Some(mut task) = self.0.tasks.borrow_mut().get_mut(&id).and_then(|running| running.task.take())
        else {
            return;
        };
        let waker = Waker::from(Arc::new(Alarm { id, ready: Arc::clone(&self.0.ready) }));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        let ended = match (polled, self.0.tasks.borrow_mut().get_mut(&id)) {
            (Poll::Pending, Some(running)) => {
                running.task = Some(task);
                None
            }
            // The task is complete, or its group has ended meanwhile.
            _ => Some(task),
        };
        if ended.is_some() {
            self.0.tasks.borrow_mut().remove(&id);
        }
        drop(ended);
    }

    fn draw(&self) -> u64 {
        let id = self.0.next_id.get();
        self.0.next_id.set(id + 1);
        id
    }

    fn set(&self, at: Duration, what: Due) {
        let number = self.draw();
        self.0.timers.borrow_mut().push(Reverse(Timer { at, number, what }));
    }
}

impl Clock for Executor {
    fn now(&self) -> Duration {
        self.0.now.get()
    }

    fn sleep(&self, time: Duration) -> Task<'static, ()> {
        let (executor, at) = (self.clone(), self.now() + time);
        let mut is_set = false;
        Box::pin(std::future::poll_fn(move |cx| {
            if executor.now() >= at {
                return Poll::Ready(());
            }
            if !is_set {
                executor.set(at, Due::Wake(cx.waker().clone()));
                is_set = true;
            }
            Poll::Pending
        }))
    }
}

impl Rng for Executor {
    fn next(&self) -> u64 {
        self.0.rng.borrow_mut().next_u64()
    }
}

struct Spawner {
    executor: Executor,
    group: Group,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task<'static, ()>) {
        self.executor.spawn_in(self.group, task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_advances_only_while_all_tasks_wait() {
        let executor = Executor::new(1);
        let clock = executor.clone();
        let slept = executor.block_on(async move {
            clock.sleep(Duration::from_secs(3600)).await;
            clock.now()
        });
        assert_eq!(slept, Some(Duration::from_secs(3600)));
    }

    #[test]
    fn the_end_of_a_group_ends_its_tasks() {
        let executor = Executor::new(1);
        let group = executor.group();
        let (held, clock) = (Rc::new(()), executor.clone());
        let for_task = Rc::clone(&held);
        let task = async move {
            clock.sleep(Duration::from_secs(1)).await;
            drop(for_task);
        };
        executor.spawn_in(group, Box::pin(task));
        executor.run_for(Duration::from_millis(1));
        assert_eq!(Rc::strong_count(&held), 2);
        executor.end(group);
        assert_eq!(Rc::strong_count(&held), 1);
        executor.run_for(Duration::from_secs(2));
    }

    #[test]
    fn a_wait_without_an_event_is_reported() {
        assert_eq!(Executor::new(1).block_on(std::future::pending::<()>()), None);
    }
}
