"""Tellers post to the accounts of a bank: `bank.py shared|own SECONDS`. Prints the number of postings."""
import collections
import sys
import threading
import time

TELLERS = 6
end = time.monotonic() + float(sys.argv[2])
shared = threading.Lock()
posted = collections.Counter()


def teller(own, lock):
    while time.monotonic() < end:
        with lock:
            posted[own] += 1
            time.sleep(0.002)


threads = []
for own in range(TELLERS):
    lock = shared if sys.argv[1] == "shared" else threading.Lock()
    threads.append(threading.Thread(target=teller, args=(own, lock)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(posted.values()))
