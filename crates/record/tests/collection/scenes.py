"""Small programs with one bottleneck each: `scenes.py SCENE`.

`log`: threads log through a handler that is slow. `executor`: tasks wait for the only thread of an executor.
`file`: threads sync a file under a lock. `pipe`: a process answers requests through a pipe.
"""
import concurrent.futures
import logging
import os
import sys
import tempfile
import threading
import time


def together(function, count):
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.002)


def log():
    logger = logging.getLogger("scenes")
    logger.addHandler(Slow())
    together(lambda: [logger.warning("step %d", step) for step in range(80)], 4)


def executor():
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        together(lambda: [pool.submit(time.sleep, 0.003).result() for _ in range(60)], 4)


def file():
    lock = threading.Lock()
    with tempfile.TemporaryFile(dir=".") as records:
        def append():
            for _ in range(60):
                with lock:
                    records.write(b"record")
                    records.flush()
                    os.fsync(records.fileno())
                    time.sleep(0.001)  # also where a sync takes no time
        together(append, 4)


def pipe():
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    if os.fork() == 0:
        os.close(from_parent)
        while os.read(to_child, 1):
            time.sleep(0.003)
            os.write(from_child, b"x")
        os._exit(0)

    def ask():
        for _ in range(200):
            os.write(from_parent, b"x")
            os.read(to_parent, 1)
        os.close(from_parent)
    together(ask, 1)


if __name__ == "__main__":
    {"log": log, "executor": executor, "file": file, "pipe": pipe}[sys.argv[1]]()
