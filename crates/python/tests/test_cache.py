"""`azekura.cache`: a random model, threads, transactions, processes, openings; and diskcache's own tests."""

import asyncio
import contextlib
import gc
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import weakref

import azekura
import pytest
from azekura.cache import Cache, Timeout

# diskcache's own tests, unpacked from its source package. scripts/python.sh --diskcache sets the variable.
SUITE = os.environ.get("AZEKURA_DISKCACHE_TESTS")
# These tests replace parts of SQLite or of the files in which diskcache stores values, or use its classes
# for them (`Disk`, `JSONDisk`, `EVICTION_POLICY`).
INTERNAL = (
    "init_disk disk_reset disk_valueerror custom_disk custom_filename_disk pragma_error close_error"
    " get_keyerror4 set_twice set_timeout get_ioerror_fast_path pop_ioerror path check integrity_check"
    " clear_timeout add_timeout pull_ioerror peek_ioerror peekitem_ioerror cull_timeout"
    " custom_eviction_policy cleanup_dirs disk_write_os_error"
).split()


@pytest.fixture
def cache(tmp_path):
    with Cache(tmp_path / "cache") as cache:
        yield cache
        assert cache.check() == []


def test_equals_a_model(cache):
    for seed in range(20):
        seeded = random.Random(seed)
        keys = [0, 1, -5, 2.5, 2**70, "a", "é", b"a", ("t", 1), None, (True,), "k" * 5000, b"\0" * 2000]
        model = {}
        cache.clear()
        for step in range(300):
            key, kind = seeded.choice(keys), seeded.randrange(7)
            if kind < 3:
                cache[key] = model[key] = [seed, step, "x" * seeded.randrange(3000)]
            elif kind == 3:
                assert cache.pop(key, "none") == model.pop(key, "none")
            elif kind == 4:
                assert cache.add(key, step) == (key not in model)
                model.setdefault(key, step)
            elif kind == 5:
                assert cache.get(key, "none") == model.get(key, "none")
            else:
                assert (key in cache) == (key in model)
            assert len(cache) == len(model)
        assert list(cache) == list(model)
        assert list(reversed(cache)) == list(reversed(model))
        assert sorted(map(repr, cache.iterkeys())) == sorted(map(repr, model))
        assert list(cache.iterkeys(reverse=True)) == list(cache.iterkeys())[::-1]
        assert cache.check() == []


def test_numbers_that_are_equal_are_one_key_and_numbers_are_in_order(cache):
    cache[1.0] = "one"
    assert cache[1] == "one" and len(cache) == 1
    cache[-0.0] = "zero"
    assert cache[0] == "zero"
    numbers = [-(2**63), -1e300, -3, -2.5, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 1e300, float("inf")]
    for number in random.Random(1).sample(numbers, len(numbers)):
        cache[number] = None
    found = list(cache.iterkeys())
    assert found == sorted(numbers)
    assert [type(number) for number in found] == [type(number) for number in sorted(numbers)]


def test_a_transaction_is_kept_whole_or_not_at_all(cache):
    cache["a"] = 1
    with pytest.raises(ZeroDivisionError):
        with cache.transact():
            cache["a"] = 2
            cache["b"] = 3
            assert cache["a"] == 2 and cache.get("b") == 3 and len(cache) == 2
            1 / 0
    assert cache["a"] == 1 and "b" not in cache and len(cache) == 1
    with cache.transact():
        cache["a"] = 5
        with pytest.raises(KeyError):
            with cache.transact():
                cache["a"] = 6
                del cache["none"]
        assert cache["a"] == 5
    assert cache["a"] == 5


def test_a_transaction_has_no_limit_of_its_time(tmp_path, monkeypatch):
    real, limits = azekura.open, []

    def opened(path, *, transaction_timeout=60.0, **key):
        limits.append(transaction_timeout)
        return real(path, transaction_timeout=transaction_timeout, **key)

    monkeypatch.setattr(azekura, "open", opened)
    Cache(tmp_path / "c").close()
    assert limits == [None]


def test_threads_lose_no_update(cache):
    def work(number):
        for step in range(100):
            cache.incr("total")
            cache.set((number, step), step, expire=3600, tag=number)
            with cache.transact(retry=True):
                cache["pair"] = cache.get("pair", 0) + 1
            assert cache.get((number, step)) == step

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache["total"] == cache["pair"] == 800 and len(cache) == 802
    assert cache.evict(3) == 100 and len(cache) == 702


def test_a_write_waits_for_its_timeout(tmp_path):
    with Cache(tmp_path / "c", timeout=0.05) as cache:
        entered, leave = threading.Event(), threading.Event()

        def hold():
            with cache.transact():
                cache["held"] = 1
                entered.set()
                leave.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        entered.wait(60)
        with pytest.raises(Timeout, match="another thread"):
            cache.set("a", 1)
        threading.Timer(0.2, leave.set).start()
        cache["a"] = 2
        holder.join()
        assert cache["a"] == 2 and cache["held"] == 1


def test_equal_tuples_are_one_key_whether_or_not_their_parts_are_one_object(cache):
    one = "".join(["a", "b"])
    other = "".join(["a", "b"])
    assert one is not other
    cache[(one, one)] = 1
    assert cache[(one, other)] == 1 and len(cache) == 1
    calls = []
    join = cache.memoize()(lambda *args: calls.append(args))
    join(one, one)
    join(one, other)
    assert len(calls) == 1
    cyclic = []
    cyclic.append((cyclic,))
    cache[(1, 2, id(cache))] = 2
    cache.set(cyclic[0], 3)
    assert cache[cyclic[0]] == 3


def test_an_unpickled_cache_opens_its_store_at_the_first_call(tmp_path):
    with Cache(tmp_path / "c", size_limit=5000) as cache:
        cache["a"] = 1
        pickled = pickle.dumps(cache)
        assert pickle.loads(pickled)["a"] == 1
    gc.collect()
    with azekura.open(tmp_path / "c"):
        other = pickle.loads(pickled)
        with pytest.raises(azekura.Busy):
            other["a"]
    assert other["a"] == 1 and other.size_limit == 5000
    other.close()


def test_an_iteration_skips_a_long_key_that_is_removed_meanwhile(cache):
    long = ["k" * 2000, "l" * 2000]
    for iterate in (lambda: iter(cache), lambda: reversed(cache), cache.iterkeys):
        cache.clear()
        for key in ["a", *long, "b"]:
            cache[key] = 1
        found = []
        for key in iterate():
            found.append(key)
            for other in long:
                cache.delete(other)
        assert found in (["a", "b"], ["b", "a"])


def test_the_collector_frees_a_cache_while_another_one_opens(tmp_path, monkeypatch):
    real = azekura.open

    def collect_and_open(directory, **options):
        gc.collect()
        return real(directory, **options)

    def work():
        cyclic = [Cache(tmp_path / "freed")]
        cyclic.append(cyclic)
        gc.disable()
        del cyclic
        monkeypatch.setattr(azekura, "open", collect_and_open)
        with Cache(tmp_path / "other") as other:
            other["a"] = 1
        gc.enable()
        done.set()

    done = threading.Event()
    threading.Thread(target=work, daemon=True).start()
    assert done.wait(60)
    real(tmp_path / "freed").close()  # the cache has closed it


def test_a_close_that_a_transaction_refuses_can_be_repeated(tmp_path):
    cache, other = Cache(tmp_path / "c", timeout=float("inf")), Cache(tmp_path / "c")
    with cache.transact():
        cache["a"] = 1
        other.close()
        with pytest.raises(azekura.Busy):
            cache.close()
        assert Cache(tmp_path / "c")["a"] == 1
    cache.close()
    gc.collect()
    azekura.open(tmp_path / "c").close()
    assert cache["a"] == 1  # opens again
    threads = [threading.Thread(target=cache.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    azekura.open(tmp_path / "c").close()


def test_a_program_ends_quietly_while_a_daemon_thread_is_in_a_transaction(tmp_path):
    program = f"""
import threading
from azekura.cache import Cache

def hold():
    with cache.transact():
        cache["a"] = 1
        entered.set()
        threading.Event().wait()

cache, entered = Cache({str(tmp_path / "c")!r}), threading.Event()
threading.Thread(target=hold, daemon=True).start()
entered.wait()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_queues_from_both_ends(cache):
    keys = [cache.push(number) for number in range(3)] + [cache.push(-1, side="front")]
    assert keys == [500000000000000, 500000000000001, 500000000000002, 499999999999999]
    assert cache.pull(side="back")[1] == 2 and cache.pull()[1] == -1 and cache.peek()[1] == 0
    assert cache.push("job", prefix="jobs-a") == "jobs-a-500000000000000"
    assert cache.pull(prefix="jobs-b") == (None, None)
    with pytest.raises(ValueError, match="front"):
        cache.push(1, side="middle")


def test_openings_and_other_objects_see_the_rows(tmp_path):
    for opening in range(3):
        with Cache(tmp_path / "c") as cache, Cache(str(tmp_path / "c")) as other:
            assert len(cache) == len(other) == opening
            cache[opening] = opening
            assert other[opening] == opening
            copy = pickle.loads(pickle.dumps(cache))
            assert list(copy) == list(range(opening + 1))
            copy.close()
    assert cache[2] == 2
    cache.close()
    with azekura.open(tmp_path / "c") as db:
        assert "rows" in db.table_names()


def test_a_killed_process_leaves_whole_transactions(tmp_path):
    program = (
        "import sys\nfrom azekura.cache import Cache\ncache = Cache(sys.argv[1])\n"
        "for n in range(10**9):\n"
        "    with cache.transact():\n        cache['a', n] = cache['b', n] = n\n"
        "    if n == 200: print('running', flush=True)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "running\n"
    with pytest.raises(azekura.Busy):
        Cache(tmp_path / "c")
    running.kill()
    running.wait()
    with Cache(tmp_path / "c") as cache:
        assert cache.check() == [] and len(cache) % 2 == 0
        kinds = [{n for kind, n in cache if kind == wanted} for wanted in "ab"]
        assert kinds[0] == kinds[1] == set(range(len(cache) // 2))


def test_a_child_of_a_fork_is_refused_and_harms_nothing(cache):
    cache["a"] = 1
    child = os.fork()
    if child == 0:
        try:
            cache["b"] = 2
        except azekura.Busy:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    cache["c"] = 3
    assert list(cache) == ["a", "c"]


def key_of(id):
    return {"one": b"1" * 32, "two": b"2" * 32}[id]


def test_an_encrypted_cache(tmp_path):
    path = tmp_path / "cache"
    with Cache(path, encryption_key=key_of, encryption_key_id="one") as cache:
        cache["a"] = "secret" * 20
        with Cache(path, encryption_key=key_of, encryption_key_id="one") as other:
            assert other["a"] == cache["a"]
        pickled = pickle.dumps(cache)
        for key in (None, b"1" * 32, b"2" * 32):
            with pytest.raises(azekura.Invalid, match="another encryption key"):
                Cache(path, encryption_key=key)
    assert b"secret" not in b"".join(f.read_bytes() for f in path.rglob("*") if f.is_file())
    with pytest.raises(azekura.Invalid, match="is encrypted"):
        Cache(path)
    with pytest.raises(azekura.Invalid, match="another key"):
        Cache(path, encryption_key=b"2" * 32)
    assert pickle.loads(pickled)["a"] == "secret" * 20
    pickle.loads(pickled).close()
    with Cache(path, encryption_key=b"1" * 32) as cache:
        assert cache["a"] == "secret" * 20 and cache.check() == []


def test_unknown_settings_and_values_that_cannot_be_pickled(cache, tmp_path):
    with pytest.raises(ValueError, match="least-recently-used"):
        Cache(tmp_path / "d", eviction_policy="random")
    with pytest.raises(AttributeError, match="size_limit"):
        cache.reset("sqlite_mmap_size", 1)
    with pytest.raises(Exception, match="pickle"):
        cache["function"] = lambda: None
    assert "function" not in cache and len(cache) == 0
    assert cache.reset("cull_limit") == cache.cull_limit == 10
    with pytest.raises(TypeError, match="parentheses"):
        cache.memoize(len)


def test_the_size_limit_holds_under_writes(tmp_path):
    with Cache(tmp_path / "c", size_limit=100_000, eviction_policy="least-recently-used") as cache:
        for number in range(300):
            cache[number] = b"v" * 1_000
            assert cache.get(0) is not None
        assert cache.volume() < 110_000 and 299 in cache and 0 in cache and 1 not in cache
        cache.set("short", 1, expire=1e-9)
        time.sleep(0.01)
        assert "short" not in cache and cache.expire() == 1


def test_a_cache_opens_its_store_again_after_a_close_that_failed(tmp_path):
    class Failing:
        def __init__(self, db):
            self.db = db

        def close(self):
            self.db.close()
            raise azekura.Closed("a write of the page file failed")

    cache = Cache(tmp_path / "c")
    cache["a"] = 1
    cache._store.db = Failing(cache._store.db)
    with pytest.raises(azekura.Closed):
        cache.close()
    assert cache["a"] == 1
    cache.close()


class Renamed:
    """A class that the test removes, as a new version of a program may do."""


def test_rows_with_objects_of_a_missing_class_can_be_removed_and_replaced(tmp_path, monkeypatch):
    with Cache(tmp_path / "c") as cache:
        for name in "abc":
            cache.set(name, {"of": [Renamed(), {1, 2}]}, tag="old")
        cache.set("short", Renamed(), expire=0.01)
        cache.push(Renamed())
        monkeypatch.delattr(sys.modules[__name__], "Renamed")
        time.sleep(0.05)
        assert cache.set("new", 1) and "short" not in cache and "a" in cache and len(cache) == 5
        for read in (lambda: cache["a"], lambda: cache.pop("a"), lambda: cache.touch("a"), cache.pull):
            with pytest.raises(AttributeError, match="Renamed"):
                read()
        assert len(cache) == 5
        assert cache.set("a", 2) and cache["a"] == 2
        assert cache.delete("b") and cache.evict("old") == 1 and cache.clear() == 3
        assert cache.check() == [] and cache.volume() == 0


class Seconds(float):
    """A number that makes each sum a number of its class, as those of numpy do."""

    def __radd__(self, other):
        return Seconds(other + float(self))


def test_rows_with_a_tag_or_a_key_of_a_missing_class_can_be_read_and_removed(tmp_path, monkeypatch):
    with Cache(tmp_path / "c") as cache:
        for name in "abcd":
            cache.set(name, name, tag=Renamed())
        cache.set("d", "d", expire=Seconds(60))
        cache.set("short", 1, expire=0.01, tag=(1, Renamed()))
        cache.set((Renamed(), "k" * 2000), Renamed(), tag={"many": ["x" * 2000]})
        assert isinstance(list(cache)[-1][0], Renamed) and cache.evict({"many": ["y"]}) == 0
        assert isinstance(cache.get("a", tag=True)[1], Renamed)
        for name in ("Renamed", "Seconds"):
            monkeypatch.delattr(sys.modules[__name__], name)
        time.sleep(0.05)
        assert cache["a"] == "a" and cache.set("new", 1) and "short" not in cache and len(cache) == 6
        with pytest.raises(AttributeError, match="Renamed"):
            cache.get("a", tag=True)
        with pytest.raises(AttributeError, match="Renamed"):
            list(cache)
        assert cache.touch("a", 60) and cache.set("b", 2) and cache.pop("c") == "c" and cache.delete("d")
        assert cache.evict({"many": ["x" * 2000]}) == 1 and list(cache) == ["a", "b", "new"]
        assert cache.clear() == 3 and len(cache._store.tags) == 0
        assert cache.check() == [] and cache.volume() == 0


def test_a_row_that_cannot_be_unpickled_blocks_no_queue_and_stays_in_it(cache, monkeypatch):
    for value, tag in ((Renamed(), None), ("a", Renamed()), ("b", None), (Renamed(), None)):
        cache.push(value, prefix="jobs", tag=tag)
    real = Renamed
    monkeypatch.delattr(sys.modules[__name__], "Renamed")
    assert cache.peek("jobs", tag=True) == (("jobs-500000000000002", "b"), None)
    assert cache.pull("jobs", tag=True) == (("jobs-500000000000002", "b"), None)
    assert cache.pull("jobs") == ("jobs-500000000000001", "a")
    for side in ("front", "back"):
        for call in (cache.pull, cache.peek):
            with pytest.raises(AttributeError, match="Renamed"):
                call("jobs", side=side)
    assert cache.push("c", prefix="jobs") == "jobs-500000000000004" and cache.pull("jobs")[1] == "c"
    assert len(cache) == 2
    monkeypatch.setattr(sys.modules[__name__], "Renamed", real, raising=False)
    assert [type(cache.pull("jobs")[1]) for _ in range(3)] == [real, real, type(None)]


def test_queues_with_similar_prefixes_are_separate(cache):
    for number in range(3):
        for prefix in ("jobs", "jobs-5", "jobs-9", None):
            cache.push(number, prefix=prefix)
    cache[600000000000000.5] = "a fraction"
    cache.push(3, prefix="jobs")
    for prefix in ("jobs", "jobs-5", "jobs-9", None):
        expected = range(4) if prefix == "jobs" else range(3)
        assert [cache.pull(prefix)[1] for _ in expected] == list(expected)
        assert cache.pull(prefix) == cache.pull(prefix, side="back") == (None, None)
    with pytest.raises(ValueError, match="too long"):
        cache.push(1, prefix="p" * 2000)
    long = "p" * 850
    assert [cache.push(number, prefix=long) for number in range(2)][1] == f"{long}-500000000000001"
    assert cache.pull(long) == (f"{long}-500000000000000", 0) and cache.pull(long)[1] == 1


def test_a_queue_without_a_free_key_refuses_rows(cache):
    cache[0] = "no row of the queue"
    assert cache.pull() == (None, None)
    for key, side in ((1, "front"), (10**15 - 2, "back")):
        cache[key] = "row"
        with pytest.raises(ValueError, match="no free key"):
            cache.push("lost", side=side)
    assert len(cache) == 3 and cache.pull() == (1, "row")


def test_a_pull_removes_expired_rows_in_several_transactions(cache, monkeypatch):
    cache.reset("cull_limit", 0)
    for number in range(600):
        cache.push(number, expire=-1 if number < 599 else None)
    removed, remove = [], cache._remove

    def fail_late(encoded, record):
        removed.append(encoded)
        if len(removed) == 599:
            raise KeyboardInterrupt
        remove(encoded, record)

    monkeypatch.setattr(cache, "_remove", fail_late)
    with pytest.raises(KeyboardInterrupt):
        cache.pull()
    monkeypatch.undo()
    assert 1 < len(cache) < 300
    assert cache.pull() == (500000000000599, 599) and len(cache) == 0


def test_a_file_is_read_while_other_threads_write(tmp_path):
    class File:
        def read(self):
            # The writer of a pipe may write to the cache before it writes to the pipe.
            thread = threading.Thread(target=lambda: written.append(other.set("other", 1)))
            thread.start()
            thread.join()
            return b"content"

    with Cache(tmp_path / "c") as cache, Cache(tmp_path / "c", timeout=0) as other:
        for call in (cache.set, cache.add, lambda _, file, read: cache.push(file, read=read)):
            written = []
            assert call(call.__name__, File(), read=True) and written == [True]
        assert cache["set"] == cache["add"] == cache.pull()[1] == b"content"


def test_a_write_that_waits_without_a_limit_sleeps(tmp_path):
    class Counted:
        def __init__(self, lock):
            self.lock, self.release, self._is_owned, self.waits = lock, lock.release, lock._is_owned, 0

        def acquire(self, **named):
            self.waits += "timeout" in named
            return self.lock.acquire(**named)

    with Cache(tmp_path / "c", timeout=0) as cache:
        store = cache._store
        store.lock = Counted(store.lock)
        held, leave = threading.Event(), threading.Event()

        def hold():
            with store.lock.lock:
                held.set()
                leave.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(60)
        threading.Timer(0.1, leave.set).start()
        cache["a"] = 1
        holder.join()
        assert store.lock.waits == 1


def test_a_signal_handler_may_close_a_cache_that_its_thread_opens_or_closes(tmp_path):
    program = """
import signal, sys
import azekura
from azekura.cache import Cache

def close(*_):
    cache.close()
    other.close()

def interrupted(call):
    def run(*args, **named):
        signal.raise_signal(signal.SIGTERM)
        return call(*args, **named)
    return run

class Db:
    def __init__(self, db):
        self.close = interrupted(db.close)

cache, other = Cache(sys.argv[1]), Cache(sys.argv[2])
signal.signal(signal.SIGTERM, close)
cache._store.db = Db(cache._store.db)
cache.close()
real, azekura.open = azekura.open, interrupted(azekura.open)
cache["a"] = 1
azekura.open = real
cache.close()
for path in sys.argv[1:]:
    azekura.open(path, create=False).close()
print("closed")
"""
    paths = [str(tmp_path / name) for name in "ab"]
    run = [sys.executable, "-W", "error", "-c", program, *paths]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


@pytest.mark.parametrize("action", ["close", "write", "interrupt"])
@pytest.mark.parametrize("call", ["open", "close"])
def test_a_signal_handler_may_run_after_each_call_of_an_opening_or_closing(tmp_path, call, action):
    def handle():
        if action == "close":
            other.close()
        elif action == "write":
            with contextlib.suppress(azekura.Busy):  # the store is just being opened or closed
                other["b"] = 1
        else:
            raise KeyboardInterrupt

    def handler_at(number):
        def profile(frame, event, _):
            nonlocal calls
            is_watched = frame.f_code.co_name in names and frame.f_globals["__name__"] == "azekura.cache"
            # The garbage collector may run anywhere.
            if is_watched and event in ("call", "c_return") and frame.f_back.f_code.co_name != "__del__":
                calls += 1
                if calls == number:
                    handle()

        return profile

    names = ("enter", "leave", "_release", "leave_freed")
    path = tmp_path / "cache"
    number = calls = 0
    while number == calls:
        number, calls = number + 1, 0
        cache, other = Cache(path), Cache(path)
        if call == "open":
            cache.close()
        if action == "write":
            other.close()
        before = sys.getprofile()
        sys.setprofile(handler_at(number))
        try:
            cache.set("a", 1) if call == "open" else cache.close()
        except KeyboardInterrupt:
            assert action == "interrupt"
        finally:
            sys.setprofile(before)
        calls = min(calls, number)
        cache["a"] = 2
        assert other["a"] == 2
        cache.close()
        closer = threading.Thread(target=other.close, daemon=True)
        closer.start()
        closer.join(60)
        assert not closer.is_alive(), number
        azekura.open(path, create=False).close()
    assert number > 5


def test_a_close_that_is_refused_replaces_no_exception(tmp_path):
    cache = Cache(tmp_path / "c")
    with cache.transact():
        with pytest.raises(ZeroDivisionError):
            with cache:
                1 / 0
        with pytest.raises(azekura.Busy), cache:
            pass
    cache.close()


def test_rows_are_removed_although_another_thread_closes_the_cache_meanwhile(cache, monkeypatch):
    transact = cache.transact

    @contextlib.contextmanager
    def closing(retry):
        with transact(retry):
            yield
        cache.close()

    for call in (cache.clear, lambda: cache.evict("tag")):
        for number in range(250):
            cache.set(number, number, tag="tag")
        monkeypatch.setattr(cache, "transact", closing)
        assert call() == 250
        monkeypatch.undo()


def test_a_signal_handler_writes_after_a_commit(cache):
    class Db:
        def __init__(self, db):
            self.db = db

        def __getattr__(self, name):
            return getattr(self.db, name)

        @contextlib.contextmanager
        def begin(self, **named):
            with self.db.begin(**named) as tx:
                yield tx
            if not handled:
                signal.raise_signal(signal.SIGUSR1)  # arrives during the commit

    def handle(*_):
        handled.append(1)
        cache["handled"] = cache["a"] + 1

    handled = []
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        store = cache._store
        store.db = Db(store.db)
        cache["a"] = 1
        store.db = store.db.db
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled and cache["handled"] == 2


def test_an_interrupt_at_the_begin_of_a_transaction_leaves_the_cache_usable(cache, monkeypatch):
    class Joined:
        def get(self):
            return ()

        def set(self, _):
            raise KeyboardInterrupt

    monkeypatch.setattr(azekura.cache, "_joined", Joined())
    with pytest.raises(KeyboardInterrupt):
        cache["a"] = 1
    monkeypatch.undo()
    cache["b"] = 2
    assert list(cache) == ["b"]


def test_a_task_does_not_join_the_transaction_of_another_task(tmp_path):
    async def write(key):
        cache[key] = key

    async def hold():
        with cache.transact(), other.transact():
            cache["a"] = 1
            await asyncio.gather(write("b"), write("c"))  # tasks of this block
            entered.set()
            await asyncio.sleep(600)

    async def main():
        task = asyncio.create_task(hold())
        await entered.wait()
        assert cache.get("a") is None and cache["old"] == 1 and list(cache) == ["old"] and len(cache) == 1
        for call in (lambda: cache.set("d", 1), lambda: cache.incr("b"), cache.clear):
            with pytest.raises(azekura.Busy, match="asyncio task"):
                call()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(cache) == 1 and cache.set("d", 1)
        with cache.transact():
            await write("e")

    used = "least-recently-used"
    with Cache(tmp_path / "c", eviction_policy=used) as cache, Cache(tmp_path / "d") as other:
        cache["old"] = 1
        entered = asyncio.Event()
        asyncio.run(main())
        assert list(cache) == ["old", "d", "e"]


def test_a_skipped_row_keeps_no_cache_object(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "c")
    for value in (Renamed(), Renamed(), 1):
        cache.push(value)
    monkeypatch.delattr(sys.modules[__name__], "Renamed")
    gc.disable()
    try:
        assert cache.pull()[1] == 1
        reference = weakref.ref(cache)
        del cache
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.skipif(SUITE is None, reason="diskcache's own tests: scripts/python.sh --diskcache")
def test_diskcaches_own_tests(tmp_path):
    source = pathlib.Path(SUITE, "test_core.py").read_text()
    assert source.count("import diskcache as dc\n") == 1
    shim = tmp_path / "shim.py"
    shim.write_text(
        "from azekura.cache import Cache, Timeout\n"
        "Cache.disk_min_file_size = 2**15\n"
        "EmptyDirWarning, Disk, UNKNOWN = UserWarning, object, None\n"
        "DEFAULT_SETTINGS = dict(size_limit=2**30, cull_limit=10, statistics=0, tag_index=1,\n"
        "    eviction_policy='least-recently-stored')\n"
    )
    suite = tmp_path / "test_core.py"
    suite.write_text(source.replace("import diskcache as dc\n", "import shim as dc\n"))
    skipped = [f"--deselect=test_core.py::test_{name}" for name in INTERNAL]
    # One test imports diskcache itself, which lies beside its tests.
    path = [str(tmp_path), *sys.path, str(pathlib.Path(SUITE).parent)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_core.py", *skipped],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4_000:]
    print(done.stdout.splitlines()[-1])
