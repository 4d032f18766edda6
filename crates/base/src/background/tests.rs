use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::*;

/// Serializes the tests, because they count threads of the process.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Returns the number of threads with a name.
fn threads(name: &str) -> usize {
    let directory = std::path::Path::new("/proc/self/task");
    loop {
        // The kernel may end a listing early if a thread ends meanwhile. Such a listing is shorter than the
        // number of threads before it, which is the number of the directory's links less 2.
        let before = directory.metadata().unwrap().nlink() - 2;
        let tasks: Vec<_> = directory.read_dir().unwrap().map(Result::unwrap).collect();
        if tasks.len() as u64 >= before {
            let comm = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            return tasks.iter().filter(|task| comm(task).is_ok_and(|comm| comm.trim() == name)).count();
        }
    }
}

/// Waits until at most `most` threads of a name exist, because the kernel removes an ended thread after a
/// short time.
fn become_at_most(name: &str, most: usize, what: &str) {
    for _ in 0..6_000 {
        if threads(name) <= most {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: {} stay", threads(name));
}

/// Starts a job that runs until it gets the signal to end.
fn held(group: &Group) -> Sender<()> {
    let (end, ended): (_, Receiver<()>) = channel();
    let (began, begins) = channel();
    assert!(group.start(move || {
        began.send(()).unwrap();
        let _ = ended.recv();
    }));
    begins.recv().unwrap();
    end
}

#[test]
fn threads_start_with_jobs_and_a_few_stay_idle() {
    let _alone = ALONE.lock();
    become_at_most("azekura-log", 0, "threads of other tests");
    let groups: Vec<_> = (0..100).map(|_| Group::new(Kind::Log).unwrap()).collect();
    // A thread that was started, or has ended its job, and does not look for a job yet is not idle. If the
    // system does not run such a thread, the next job starts one more: twice at most here.
    drop(held(&groups[0]));
    assert!((1..=2).contains(&threads("azekura-log")), "of the process, not of a group");
    let held: Vec<_> = groups.iter().take(20).map(|group| held(group)).collect();
    assert!((20..=22).contains(&threads("azekura-log")), "each job that runs has one");
    drop(held);
    for group in &groups {
        group.close(|| {});
        assert!(!group.start(|| panic!("JOBS-2")));
    }
    drop(groups);
    become_at_most("azekura-log", 0, "the last group ends the threads");
}

#[test]
fn idle_threads_end_but_for_a_few() {
    let _alone = ALONE.lock();
    let group = Group::new(Kind::Log).unwrap();
    drop((0..20).map(|_| held(&group)).collect::<Vec<_>>());
    become_at_most("azekura-log", KEPT_IDLE, "idle threads end");
}

#[test]
fn jobs_of_pages_wait_for_a_thread_where_the_limit_is_reached() {
    let _alone = ALONE.lock();
    let most = std::thread::available_parallelism().unwrap().get() + PAGE_THREADS;
    let (group, other) = (Group::new(Kind::Pages).unwrap(), Group::new(Kind::Pages).unwrap());
    let mut ends: Vec<_> = (0..most).map(|_| held(&group)).collect();
    assert!(!group.is_overdue());
    let (done, does) = channel();
    let tell = done.clone();
    assert!(other.start(move || tell.send(1).unwrap()));
    assert!(other.start_after(Duration::from_millis(1), move || done.send(2).unwrap()));
    assert!(group.is_overdue() && other.is_overdue());
    become_at_most("azekura-pages", most, "threads of other tests");
    assert_eq!(threads("azekura-pages"), most);
    assert!(does.try_recv().is_err(), "the threads are taken");
    drop(ends.pop());
    assert_eq!([does.recv(), does.recv()], [Ok(1), Ok(2)]);
    assert!(!group.is_overdue());
}

#[test]
fn a_delayed_job_runs_though_all_threads_work() {
    let _alone = ALONE.lock();
    let group = Group::new(Kind::Pages).unwrap();
    let (done, does) = channel();
    let delayed = |group: &Group, ms, name| {
        let done = done.clone();
        assert!(group.start_after(Duration::from_millis(ms), move || done.send(name).unwrap()));
    };
    // Due in reverse order. The only idle thread takes the first job, and another thread must take the
    // others.
    delayed(&group, 30, "third");
    delayed(&group, 20, "second");
    delayed(&group, 1, "first");
    let end = held(&group);
    // Jobs that became due while the system did not run their threads run at the same time.
    let mut done = [(); 3].map(|()| does.recv().unwrap());
    done.sort_unstable();
    assert_eq!(done, ["first", "second", "third"]);
    drop(end);
}

#[test]
fn closing_waits_for_the_jobs_that_run_and_drops_the_others() {
    let _alone = ALONE.lock();
    let group = Group::new(Kind::Log).unwrap();
    let owned = Arc::new(());
    for _ in 0..3 {
        let owned = Arc::clone(&owned);
        group.start_after(Duration::from_secs(3600), move || drop(owned));
    }
    let (end, ended) = channel::<()>();
    let owns = Arc::clone(&owned);
    assert!(group.start(move || {
        let _ = ended.recv();
        drop(owns);
    }));
    group.close(|| drop(end));
    assert_eq!(Arc::strong_count(&owned), 1, "all jobs are over");
}

#[test]
fn a_job_may_close_its_own_group_and_a_panic_ends_only_its_job() {
    let _alone = ALONE.lock();
    // Repeated, because the job may end before `start` has returned.
    for _ in 0..500 {
        let (group, met) = (Group::new(Kind::Log).unwrap(), Arc::new(Barrier::new(2)));
        group.start(|| std::panic::resume_unwind(Box::new("on purpose")));
        let (own, meets) = (Arc::clone(&group), Arc::clone(&met));
        group.start(move || {
            own.close(|| {});
            drop(own);
            meets.wait();
        });
        met.wait();
        assert!(!group.start(|| {}));
    }
}

#[test]
fn starters_start_the_last_set_job() {
    let (starter, (done, does)) = (Starter::default(), channel());
    starter.start();
    for n in 0..2 {
        let done = done.clone();
        starter.set(move || done.send(n).unwrap());
    }
    starter.start();
    assert_eq!((does.try_recv(), does.try_recv().is_err()), (Ok(1), true));
}
