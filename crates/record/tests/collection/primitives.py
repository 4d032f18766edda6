"""One primitive of CPython under one load; the loads are those of primitives.c."""
import ctypes
import queue
import sys
import threading
import time

primitive, load = sys.argv[1:]
MAKERS = {
    "lock": threading.Lock,
    "rlock": threading.RLock,
    "semaphore": threading.Semaphore,
    "condition": threading.Condition,
}


def compute():
    total = 0
    for i in range(4_000_000):
        total = total * 31 + i & 0xFFFF
    return total


def named(name):
    """CPython tells the kernel the names of its threads from 3.14 on; before, a program can."""
    process = ctypes.CDLL(None)
    process.pthread_self.restype = ctypes.c_void_p
    process.pthread_setname_np(ctypes.c_void_p(process.pthread_self()), name)


def worker(lock):
    if primitive == "lock":
        named(b"teller-1")
    for _ in range(150):
        with lock:
            time.sleep(0.001)
        time.sleep(0.00005)


def consumer(jobs):
    while jobs.get() is not None:
        pass


if load == "pool":
    jobs = queue.SimpleQueue() if primitive == "simple_queue" else queue.Queue()
    threads = [threading.Thread(target=consumer, args=(jobs,)) for _ in range(4)]
elif primitive == "gil":
    threads = [threading.Thread(target=compute) for _ in range(4)]
elif primitive == "sleep":
    threads = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(4)]
else:
    locks = [MAKERS[primitive]() for _ in range(4)]
    threads = [
        threading.Thread(target=worker, args=(locks[0 if load == "contended" else i],)) for i in range(4)
    ]
for thread in threads:
    thread.start()
if load == "pool":
    for i in range(50):
        time.sleep(0.01)
        jobs.put(i)
    for _ in threads:
        jobs.put(None)
for thread in threads:
    thread.join()
