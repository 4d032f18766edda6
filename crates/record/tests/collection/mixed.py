"""Small programs with one bottleneck each: `mixed SCENE`.

`hash`: threads compute digests, without the interpreter's lock. `event`: threads wait for the event of a slow
thread. `asyncio`: an event loop whose tasks sleep. `process`: threads wait for processes. `sockets`: a slow
server behind a socket. `lifo`: consumers of a slow producer.
"""

import asyncio
import hashlib
import queue
import socket
import subprocess
import sys
import threading
import time


def in_threads(count, function):
    threads = [threading.Thread(target=function, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hash():
    block = bytes(1 << 20)
    in_threads(4, lambda _: [hashlib.sha256(block).digest() for _ in range(400)])


def event():
    steps = [threading.Event() for _ in range(100)]

    def run(index):
        for step in steps:
            if index == 0:
                time.sleep(0.006)
                step.set()
            else:
                step.wait()

    in_threads(4, run)


def asyncio_tasks():
    async def task():
        for _ in range(60):
            await asyncio.sleep(0.01)

    async def run():
        await asyncio.gather(*[task() for _ in range(5)])

    in_threads(1, lambda _: asyncio.run(run()))


def process():
    in_threads(3, lambda _: [subprocess.run(["sleep", "0.2"], check=True) for _ in range(4)])


def sockets():
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        one, _ = listener.accept()
        while byte := one.recv(1):
            time.sleep(0.003)
            one.sendall(byte)

    threading.Thread(target=serve, daemon=True).start()

    def ask(_):
        one = socket.create_connection(listener.getsockname())
        for _ in range(250):
            one.sendall(b"a")
            one.recv(1)
        one.close()

    in_threads(1, ask)


def lifo():
    jobs = queue.LifoQueue()

    def run(index):
        if index == 0:
            for _ in range(150):
                time.sleep(0.004)
                jobs.put(1)
            for _ in range(3):
                jobs.put(0)
        else:
            while jobs.get():
                time.sleep(0.001)

    in_threads(4, run)


SCENES = {
    "hash": hash,
    "event": event,
    "asyncio": asyncio_tasks,
    "process": process,
    "sockets": sockets,
    "lifo": lifo,
}
SCENES[sys.argv[1]]()
