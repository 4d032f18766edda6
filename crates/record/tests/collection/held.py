"""Waits of CPython in arrangements that the recorder was not made with: `held.py ARRANGEMENT THREADS`."""
import queue
import sys
import threading
import time

arrangement, count = sys.argv[1], int(sys.argv[2])
bounded = threading.BoundedSemaphore(1)
gate = threading.Condition()
barrier = threading.Barrier(count)
is_busy = False


def by_semaphore():
    for _ in range(80):
        with bounded:
            time.sleep(0.002)
        time.sleep(0.0003)


def by_condition():
    """A lock made of a condition, of which one waiter is woken."""
    global is_busy
    for _ in range(80):
        with gate:
            while is_busy:
                gate.wait()
            is_busy = True
        time.sleep(0.0015)
        with gate:
            is_busy = False
            gate.notify()


def by_barrier():
    for _ in range(60):
        time.sleep(0.003)
        barrier.wait()


def by_queue(jobs):
    while (job := jobs.get()) is not None:
        time.sleep(job)


if arrangement == "bounded_queue":
    # One producer, slower than its consumers.
    jobs = queue.Queue(maxsize=2)
    threads = [threading.Thread(target=by_queue, args=(jobs,)) for _ in range(count)]
else:
    work = {"semaphore": by_semaphore, "condition": by_condition, "barrier": by_barrier}[arrangement]
    threads = [threading.Thread(target=work) for _ in range(count)]
for thread in threads:
    thread.start()
if arrangement == "bounded_queue":
    for _ in range(60):
        time.sleep(0.008)
        jobs.put(0.001)
    for _ in threads:
        jobs.put(None)
for thread in threads:
    thread.join()
