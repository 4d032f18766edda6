"""A cache on disk with the interface of `diskcache.Cache`. A program needs to change only its import.

    from azekura.cache import Cache

    cache = Cache("/var/tmp/thumbnails", size_limit=2**30)
    cache.set("page", b"...", expire=60, tag="html")

    @cache.memoize(expire=3600)
    def slow(number): ...

Differences from diskcache: one process at a time has a cache open, with any number of threads and of `Cache`
objects; `disk`, `sqlite_*` and `disk_*` arguments do not exist; settings are arguments of each opening and
not stored. A write returns before it is on the disk; a crash or a power loss may lose the writes of the last
milliseconds, but never a part of one. Values are pickled: open only caches of programs that you trust.
"""

import atexit
import collections
import contextlib
import contextvars
import functools
import io
import itertools
import math
import os
import pickle
import struct
import tempfile
import threading
import time
from hashlib import sha256

import azekura

__all__ = ["Cache", "Timeout"]

_POLICIES = ("least-recently-stored", "least-recently-used", "least-frequently-used", "none")
# Where `push` begins. Keys of a queue are greater than 0 and less than twice this number minus 1.
_QUEUE_MIDDLE = 500_000_000_000_000
# A longer key is stored by its hash; the record has the key itself.
_LONGEST_KEY = 900
# Keys that an iterator reads at once.
_BATCH = 256


class Timeout(azekura.Busy):
    """Another thread held the cache for longer than `timeout`; call again, or with `retry=True`."""


_SETTINGS = ("size_limit", "cull_limit", "eviction_policy", "statistics", "tag_index")
# The value of a key without a row.
_NONE = object()
# The transactions that a nested call joins. Asyncio tasks of one thread have different contexts: if a task
# joined the transaction of another one, a rollback would undo the writes of both, and reads would return
# changes that are not committed.
_joined = contextvars.ContextVar("azekura.cache transactions", default=())


# Keys. Numbers, texts, bytes and other objects follow each other; numbers and texts are in order.


def _number_bytes(number):
    bits = struct.unpack(">Q", struct.pack(">d", number))[0]
    bits = bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63
    return struct.pack(">Q", bits)


def _number(bits):
    (bits,) = struct.unpack(">Q", bits)
    bits = bits ^ 1 << 63 if bits >> 63 else bits ^ (2**64 - 1)
    return struct.unpack(">d", struct.pack(">Q", bits))[0]


def _pickled_key(key):
    """Pickles a key without references to its earlier parts, so that the bytes do not depend on whether two
    equal parts are one object."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=4)
    pickler.fast = True
    try:
        pickler.dump(key)
    except (RecursionError, ValueError):
        # A key that contains itself needs references.
        return pickle.dumps(key, protocol=4)
    return file.getvalue()


def _key_bytes(key):
    """Encodes a key so that equal numbers, texts and bytes have equal encodings."""
    kind = type(key)
    if kind is float and math.isfinite(key) and key == int(key) and abs(key) < 2**63:
        kind, key = int, int(key)
    encoded = None
    if kind is int and -(2**63) <= key < 2**63:
        encoded = b"1" + _number_bytes(float(key)) + struct.pack(">Q", key + 2**63)
    elif kind is float and not math.isnan(key):
        encoded = b"1" + _number_bytes(key)
    elif kind is str:
        with contextlib.suppress(UnicodeEncodeError):
            encoded = b"2" + key.encode()
    elif kind is bytes:
        encoded = b"3" + key
    if encoded is None:
        encoded = b"4" + _pickled_key(key)
    return _shortened(encoded)


def _shortened(encoded):
    """Returns an encoded key, or the beginning and the hash of a long one."""
    if len(encoded) <= _LONGEST_KEY:
        return encoded
    return b"5" + encoded[:64] + sha256(encoded).digest()


def _key(encoded, record=None):
    """Decodes a key; `record` returns the record of a long key."""
    kind, rest = encoded[:1], encoded[1:]
    if kind == b"1":
        return _number(rest) if len(rest) == 8 else struct.unpack(">Q", rest[8:])[0] - 2**63
    if kind == b"2":
        return rest.decode()
    if kind == b"3":
        return rest
    if kind == b"4":
        return pickle.loads(rest)
    return record().key


# Tags and long keys in a row. None, numbers, texts and bytes are stored as they are, and each other object as
# its pickle in a tuple: so a row can be removed and replaced without the class of its tag or key.


def _stored(field):
    is_plain = field is None or type(field) in (int, float, str, bytes)
    return field if is_plain else (_pickled_key(field),)


def _is_pickle(stored):
    return type(stored) is tuple and len(stored) == 1 and type(stored[0]) is bytes


def _restored(stored):
    return pickle.loads(stored[0]) if _is_pickle(stored) else stored


def _tag_bytes(stored):
    """Encodes a stored tag as `_key_bytes` encodes the tag."""
    return _shortened(b"4" + stored[0]) if _is_pickle(stored) else _key_bytes(stored)


class _Unknown:
    """An object of a row with a value that cannot be unpickled."""

    def __new__(cls, *_args, **_named):
        return super().__new__(cls)

    def _ignore(self, *_args, **_named):
        return _Unknown()

    __init__ = lambda self, *_args, **_named: None
    __call__ = __getattr__ = __setstate__ = __setitem__ = append = extend = add = _ignore


class _WithoutValue(pickle.Unpickler):
    """Unpickles a row, with objects of unknown type in place of those of missing or of all classes."""

    def __init__(self, row, has_classes):
        super().__init__(io.BytesIO(row))
        self._has_classes = has_classes

    def find_class(self, module, name):
        if self._has_classes:
            with contextlib.suppress(Exception):
                return super().find_class(module, name)
        return _Unknown

    @classmethod
    def fields(cls, row, error):
        """Returns the fields of a row; raises `error` if the row is no pickle."""
        for has_classes in (True, False):
            with contextlib.suppress(Exception):
                return cls(row, has_classes).load()
        raise error


class _Record:
    """A row of the cache. `seq` is its place in the order of insertion, `rank` in the order of eviction.

    Only reading the value, the tag or the key raises the error of an object that cannot be unpickled, for
    example because its class was renamed. Such a row can be removed and replaced as any other."""

    __slots__ = ("stored_key", "_value", "expire", "stored_tag", "seq", "rank", "size", "_error")

    def __init__(self, stored_key, value, expire, stored_tag, seq, rank, size=0, error=None):
        self.stored_key, self._value, self.expire, self.stored_tag = stored_key, value, expire, stored_tag
        self.seq, self.rank, self.size, self._error = seq, rank, size, error

    @property
    def key(self):
        """The key, if it is a long one."""
        return _restored(self.stored_key)

    @property
    def value(self):
        if self._error is not None:
            raise self._error
        return self._value

    @property
    def tag(self):
        return _restored(self.stored_tag)

    def dump(self, encoded):
        fields = (self.stored_key, self.value, self.expire, self.stored_tag, self.seq, self.rank)
        row = pickle.dumps(fields, protocol=4)
        self.size = len(encoded) + len(row)
        return row

    @staticmethod
    def load(encoded, row):
        size = len(encoded) + len(row)
        try:
            return _Record(*pickle.loads(row), size)
        except Exception as error:
            fields = _WithoutValue.fields(row, error)
            return _Record(*fields, size, error)

    def changed(self, **fields):
        """Returns a copy with other values of these fields."""
        names = ("stored_key", "value", "expire", "stored_tag", "seq", "rank")
        return _Record(**{name: fields.get(name, getattr(self, name)) for name in names})

    def is_expired(self, now):
        return self.expire is not None and self.expire < now

    def answer(self, value, expire_time, tag):
        if expire_time and tag:
            return value, self.expire, self.tag
        if expire_time:
            return value, self.expire
        return (value, self.tag) if tag else value


_NO_RECORD = _Record(None, None, None, None, 0, 0)


class _Store:
    """An open store; all `Cache` objects of this process on one directory share it.

    `lock` serializes the writers of this process, so no transaction meets a conflict. `tx` is the transaction
    of the thread that holds `lock`, and `writer` is the number of this thread.
    """

    _open: dict = {}
    # A signal handler may open or close a cache, or raise an exception, between any two steps of a method
    # that holds `_registry`. So each step can be repeated, and a store in `_open` is closed only if it has
    # no user.
    _registry = threading.RLock()
    # True while a thread that holds `_registry` changes `_open` or `_freed`.
    _is_changing = False
    # Directory and user of each `Cache` object that was freed, until the store is left.
    _freed: collections.deque = collections.deque()

    def __init__(self, directory, key):
        # Other writers wait for `lock`, so a limit of the store would only break long transactions.
        self.db = azekura.open(directory, transaction_timeout=None, **key)
        self.key = key  # the arguments for the encryption
        self.users = set()  # `Cache._user` of each object that has this store open
        self.lock = threading.RLock()
        self.tx = self.writer = None
        self.hits = self.misses = 0
        table = self.db.table
        self.rows = table("rows", key=bytes, value=bytes)
        self.sequence = table("sequence", key=int, value=bytes)
        self.eviction = table("eviction", key=(int, int), value=bytes)
        self.expiry = table("expiry", key=(float, int), value=bytes)
        self.tags = table("tags", key=(bytes, int), value=bytes)
        self.totals = table("totals", key=str, value=int)
        # Numbers for the orders of insertion and of eviction, greater than all in the store. Only the thread
        # that holds `lock` draws one: without a GIL, two threads could draw the same number.
        (seq, _), ((rank, _), _) = self.sequence.last() or (0, None), self.eviction.last() or ((0, 0), None)
        self.clock = itertools.count(1 + max(seq, rank))

    @classmethod
    def enter(cls, cache):
        """Opens the store of a `Cache` object, unless it is open."""
        with cls._registry, cls._change():
            while (opened := cache._opened) is None or cache._pid != os.getpid():
                directory = cache._directory
                store = cls._open.get(directory)
                if store is None:
                    try:
                        store = cls(directory, cache._key)
                    except azekura.Busy:
                        if directory in cls._open:
                            continue  # a signal handler has opened it
                        raise
                    cls._open[directory] = store
                if store.key != cache._key:
                    text = "this process has the cache open with another encryption key; use the same key"
                    raise azekura.Invalid(f"{directory}: {text}")
                store.users.add(cache._user)
                # A signal handler may have closed the store before it had this user.
                if cls._open.get(directory) is store:
                    cache._pid, cache._opened = os.getpid(), store
        cls.leave_freed()
        return opened

    @classmethod
    def leave(cls, cache):
        """Closes the store of a `Cache` object if no other object uses it. After `Busy`, the store is still
        open; after another error, such as a failed write, the next call opens it again."""
        with cls._registry, cls._change():
            opened, cache._opened = cache._opened, None
            try:
                cls._release(cache._directory, cache._user)
            except azekura.Busy:
                cache._opened = opened
                raise
        cls.leave_freed()

    @classmethod
    def _release(cls, directory, user):
        store = cls._open.get(directory)
        if store is None or user not in store.users:
            return
        if store.users == {user}:
            del cls._open[directory]
            try:
                if store.users == {user}:  # otherwise a signal handler has added one
                    store.db.close()
                    return
            except azekura.Busy:
                cls._open[directory] = store
                raise
            cls._open[directory] = store
        store.users.discard(user)

    @classmethod
    @contextlib.contextmanager
    def _change(cls):
        """Sets `_is_changing` during a `with` block, inside `_registry`."""
        outer = cls._is_changing
        try:
            cls._is_changing = True
            yield
        finally:
            cls._is_changing = outer

    @classmethod
    def leave_freed(cls, *freed):
        """Leaves the stores of `Cache` objects that were freed. The garbage collector frees objects at any
        place, also while this thread is in a method of this class. A later call then leaves the stores."""
        cls._freed.extend(freed)
        held = []
        try:
            if not cls._freed or cls._is_changing:
                return
            # One step: no signal handler raises an exception before `held` has the result.
            held.extend(map(cls._registry.acquire, (False,)))
            if True not in held:
                return
            with cls._change():
                for _ in range(len(cls._freed)):
                    try:
                        cls._release(*cls._freed[0])
                        cls._freed.popleft()
                    except azekura.Busy:
                        cls._freed.rotate(-1)
        finally:
            if True in held:
                cls._registry.release()

    @classmethod
    def close_all(cls):
        with cls._registry:
            while cls._open:
                # The transaction of a daemon thread may be open.
                with contextlib.suppress(azekura.Busy):
                    cls._open.popitem()[1].db.close()

    @classmethod
    def after_fork(cls):
        """The child of a fork cannot use the stores of its parent."""
        cls._open = {}
        cls._freed = collections.deque()
        cls._registry = threading.RLock()
        cls._is_changing = False


atexit.register(_Store.close_all)
os.register_at_fork(after_in_child=_Store.after_fork)


class Cache:
    """A mapping on disk with a bound of its size, expiration, tags, queues and counters.

    - `directory`: where the cache is; without it, a new directory in the system's temporary directory.
    - `timeout`: seconds for which a write waits for another thread; then it raises `Timeout`, or waits on if
      `retry` is true. `cache[key] = value`, `del cache[key]` and reads wait without a limit.
    - `size_limit`: when rows take more bytes, a write evicts up to `cull_limit` rows. 0 as `cull_limit`:
      writes remove no other rows.
    - `eviction_policy`: "least-recently-stored", "least-recently-used" or "least-frequently-used" (with these
      two each read is also a write), or "none".
    - `statistics`: count hits and misses.
    - `encryption_key`, `encryption_key_id`: as for `azekura.open`. All caches of a process on one directory
      have the same key. A pickled cache has its key, too; a function must then be one of a module.
    """

    def __init__(
        self,
        directory=None,
        timeout=60,
        *,
        size_limit=2**30,
        cull_limit=10,
        eviction_policy="least-recently-stored",
        statistics=False,
        tag_index=True,
        encryption_key=None,
        encryption_key_id="",
    ):
        if directory is None:
            directory = tempfile.mkdtemp(prefix="azekura-cache-")
        directory = os.path.expanduser(os.path.expandvars(os.fsdecode(directory)))
        if not directory:
            raise azekura.Invalid("the path is empty")  # `abspath` would return the working directory
        self._directory = os.path.abspath(directory)
        os.makedirs(self._directory, exist_ok=True)
        self._timeout = timeout
        self._key = {"encryption_key": encryption_key, "encryption_key_id": encryption_key_id}
        self._check_policy(eviction_policy)
        self.size_limit, self.cull_limit, self.eviction_policy = size_limit, cull_limit, eviction_policy
        self.statistics, self.tag_index = statistics, tag_index
        self._pid, self._opened, self._user = os.getpid(), None, object()
        _Store.enter(self)

    @staticmethod
    def _check_policy(policy):
        if policy not in _POLICIES:
            raise ValueError(f"eviction_policy is one of {', '.join(_POLICIES)}, not {policy!r}")

    @property
    def directory(self):
        return self._directory

    @property
    def timeout(self):
        return self._timeout

    @property
    def _store(self):
        # After `close`, and in the child of a fork, the next call opens the store again.
        opened = self._opened
        if opened is None or self._pid != os.getpid():
            opened = _Store.enter(self)
        return opened

    # Transactions.

    @contextlib.contextmanager
    def transact(self, retry=False):
        """Runs the calls of the `with` block as one transaction: other threads see all of them or none, and
        an exception rolls them back. Other threads that write wait; another asyncio task of this thread that
        writes gets `Busy`. Blocks can be nested."""
        store = self._store
        limit = -1 if retry else min(max(self._timeout, 0), threading.TIMEOUT_MAX)  # -1: none
        if not store.lock.acquire(timeout=limit):
            raise Timeout(f"{self._directory}: another thread has written for {self._timeout} s")
        try:
            if store.tx is not None:
                if not self._has_joined(store.tx):
                    text = "another asyncio task of this thread is in a transaction; leave it before `await`"
                    raise azekura.Busy(f"{self._directory}: {text}")
                # If only the inner block fails, the outer transaction does not keep half of its changes.
                with store.tx.savepoint():
                    yield
                return
            with store.db.begin(durable=False) as tx:
                outer = _joined.get()
                # A signal handler may raise an exception after each of these steps.
                try:
                    _joined.set((*outer, tx))
                    # In this order: a reader of another thread that sees `tx` never sees its own number.
                    store.writer = threading.get_ident()
                    store.tx = tx
                    yield
                finally:
                    # Before the commit: a signal handler that runs after it needs a transaction of its own.
                    store.tx = None
                    _joined.set(outer)
        finally:
            store.lock.release()

    @staticmethod
    def _has_joined(tx):
        return any(joined is tx for joined in _joined.get())

    @classmethod
    def _source(cls, store):
        """Returns the source of reads: the transaction that this call has joined; a snapshot if another
        asyncio task of this thread is in a transaction, because a wait for it would not end; otherwise
        None."""
        tx = store.tx
        # This call does not take the lock: meanwhile, a write of another thread with `timeout=0` would fail.
        if tx is None or store.writer != threading.get_ident():
            return None
        return tx if cls._has_joined(tx) else store.db.snapshot()

    def _table(self, table):
        """Returns `table` of the source of reads; without a source, each call is one transaction."""
        store = self._store
        source = self._source(store)
        return getattr(store, table) if source is None else source[getattr(store, table)]

    def _batch(self, table, part, start, end, reverse):
        """Returns the first keys or items of a range, at most `_BATCH`. Outside a transaction, they come from
        a snapshot: with the locks of a scan, a writer could meet a conflict."""
        store = self._store
        source = self._source(store)
        with contextlib.ExitStack() as open_snapshot:
            source = source or open_snapshot.enter_context(store.db.snapshot())
            rows = getattr(source[getattr(store, table)], part)(start, end, reverse=reverse)
            return list(itertools.islice(rows, _BATCH))

    # Rows; the caller has begun a transaction.

    def _load(self, encoded):
        row = self._table("rows").get(encoded)
        return None if row is None else _Record.load(encoded, row)

    def _index(self, tx, encoded, record, is_new):
        """Adds the record to the indexes, or removes it from them."""
        store = self._store
        entries = [
            (store.sequence, record.seq, True),
            (store.eviction, (record.rank, record.seq), True),
            (store.expiry, (record.expire, record.seq), record.expire is not None),
            (store.tags, (_tag_bytes(record.stored_tag), record.seq), record.stored_tag is not None),
        ]
        for table, key, is_indexed in entries:
            if is_indexed and is_new:
                tx[table][key] = encoded
            elif is_indexed:
                del tx[table][key]
        sign = 1 if is_new else -1
        tx[store.totals].add("rows", sign)
        tx[store.totals].add("bytes", sign * record.size)

    def _remove(self, encoded, record):
        store = self._store
        del store.tx[store.rows][encoded]
        self._index(store.tx, encoded, record, False)

    def _write(self, encoded, record, old):
        store = self._store
        row = record.dump(encoded)
        if old is not None:
            self._index(store.tx, encoded, old, False)
        store.tx[store.rows][encoded] = row
        self._index(store.tx, encoded, record, True)

    def _store_value(self, key, value, expire, tag, now, old):
        """Writes a row, and removes others if the cache is full."""
        encoded = _key_bytes(key)
        tick = next(self._store.clock)
        rank = 0 if self.eviction_policy == "least-frequently-used" else tick
        expire = None if expire is None else float(now + expire)
        stored_key = _stored(key) if encoded[:1] == b"5" else None
        seq = tick if old is None else old.seq
        self._write(encoded, _Record(stored_key, value, expire, _stored(tag), seq, rank), old)
        if self.cull_limit:
            self._make_room(now, self.cull_limit)

    def _make_room(self, now, most):
        removed = self._remove_each(self._expired_before(now), most)
        if self.eviction_policy == "none":
            return
        store = self._store
        over = store.tx[store.totals].get("bytes", 0) - self.size_limit
        if over > 0:
            self._remove_each(store.tx[store.eviction].values(), most - removed)

    def _expired_before(self, now):
        store = self._store
        return store.tx[store.expiry].values(end=(now, 0))

    def _remove_each(self, encoded_keys, most):
        """Removes the rows of the first keys, at most `most`; returns their number."""
        keys = list(itertools.islice(encoded_keys, most))
        for encoded in keys:
            self._remove(encoded, self._load(encoded))
        return len(keys)

    def _remove_all(self, batch, retry):
        """Removes the rows that `batch` returns, in transactions of a few hundred; returns their number."""
        removed = 0
        while True:
            with self.transact(retry):
                # Another thread may have closed the store, and this call has opened it again.
                in_batch = self._remove_each(batch(self._store), 200)
            removed += in_batch
            if in_batch == 0:
                return removed

    def _rank_after_read(self, record):
        """Returns the place in the order of eviction after a read."""
        if self.eviction_policy == "least-recently-used":
            return next(self._store.clock)
        return record.rank + (self.eviction_policy == "least-frequently-used")

    def _note_read(self, encoded):
        """Changes the order of eviction after a read, if it depends on reads."""
        is_ordered_by_reads = self.eviction_policy in ("least-recently-used", "least-frequently-used")
        store = self._store
        if is_ordered_by_reads and self._source(store) in (None, store.tx):
            with self.transact(retry=True):
                old = self._load(encoded)
                if old is not None:
                    self._write(encoded, old.changed(rank=self._rank_after_read(old)), old)

    # The calls of diskcache.

    @staticmethod
    def _content(value, is_file):
        """Returns the value to store. A file is read before the transaction, because other writers wait for a
        transaction, and the file may be a pipe."""
        return value.read() if is_file else value

    def set(self, key, value, expire=None, read=False, tag=None, retry=False):
        """Stores a value; `expire` is in seconds from now, and with `read` the value is a binary file."""
        value = self._content(value, read)
        with self.transact(retry):
            self._store_value(key, value, expire, tag, time.time(), self._load(_key_bytes(key)))
        return True

    def __setitem__(self, key, value):
        self.set(key, value, retry=True)

    def add(self, key, value, expire=None, read=False, tag=None, retry=False):
        """Stores a value if the key has none; returns whether it did."""
        value = self._content(value, read)
        now = time.time()
        with self.transact(retry):
            old = self._load(_key_bytes(key))
            if old is not None and not old.is_expired(now):
                return False
            self._store_value(key, value, expire, tag, now, old)
        return True

    def touch(self, key, expire=None, retry=False):
        """Sets the time of expiration; returns False if there is no such key."""
        now = time.time()
        encoded = _key_bytes(key)
        with self.transact(retry):
            old = self._load(encoded)
            if old is None or old.is_expired(now):
                return False
            expire = None if expire is None else float(now + expire)
            self._write(encoded, old.changed(expire=expire), old)
        return True

    def incr(self, key, delta=1, default=0, retry=False):
        """Adds to a number in one transaction; returns the new value. A key without a value begins with
        `default`; if that is None, it is a `KeyError`."""
        now = time.time()
        with self.transact(retry):
            encoded = _key_bytes(key)
            old = self._load(encoded)
            if old is None or old.is_expired(now):
                if default is None:
                    raise KeyError(key)
                value = default + delta
                self._store_value(key, value, None, None, now, old)
            else:
                value = old.value + delta
                self._write(encoded, old.changed(value=value, rank=self._rank_after_read(old)), old)
        return value

    def decr(self, key, delta=1, default=0, retry=False):
        """Subtracts from a number, as `incr` adds."""
        return self.incr(key, -delta, default, retry)

    def get(self, key, default=None, read=False, expire_time=False, tag=False, retry=False):
        """Returns the value of a key, or `default`. With `read`, bytes are returned as a file."""
        encoded = _key_bytes(key)
        record = self._load(encoded)
        is_hit = record is not None and not record.is_expired(time.time())
        if self.statistics:
            store = self._store
            with store._registry:
                store.hits += is_hit
                store.misses += not is_hit
        if not is_hit:
            return _NO_RECORD.answer(default, expire_time, tag)
        self._note_read(encoded)
        value = record.value
        if read and isinstance(value, bytes):
            value = io.BytesIO(value)
        return record.answer(value, expire_time, tag)

    def __getitem__(self, key):
        value = self.get(key, _NONE)
        if value is _NONE:
            raise KeyError(key)
        return value

    def read(self, key, retry=False):
        """Returns the bytes of a key as a file."""
        value = self.get(key, _NONE, read=True, retry=retry)
        if value is _NONE:
            raise KeyError(key)
        return value

    def __contains__(self, key):
        record = self._load(_key_bytes(key))
        return record is not None and not record.is_expired(time.time())

    def pop(self, key, default=None, expire_time=False, tag=False, retry=False):
        """Removes a key; returns its value, or `default`."""
        encoded = _key_bytes(key)
        now = time.time()
        with self.transact(retry):
            record = self._load(encoded)
            if record is None or record.is_expired(now):
                return _NO_RECORD.answer(default, expire_time, tag)
            value = record.value
            self._remove(encoded, record)
        return record.answer(value, expire_time, tag)

    def __delitem__(self, key, retry=True):
        encoded = _key_bytes(key)
        with self.transact(retry):
            record = self._load(encoded)
            if record is None or record.is_expired(time.time()):
                raise KeyError(key)
            self._remove(encoded, record)
        return True

    def delete(self, key, retry=False):
        """Removes a key; returns False if there is no such key."""
        try:
            return self.__delitem__(key, retry)
        except KeyError:
            return False

    # Queues: keys are numbers, or texts of a prefix and a number.

    @staticmethod
    def _queue_bounds(prefix):
        if prefix is None:
            return _key_bytes(1), _key_bytes(2 * _QUEUE_MIDDLE - 1)
        bounds = _key_bytes(f"{prefix}-000000000000001"), _key_bytes(f"{prefix}-999999999999999")
        if bounds[0][:1] == b"5":
            raise ValueError(f"the prefix is too long: keys of a queue have at most {_LONGEST_KEY - 1} bytes")
        return bounds

    def _queue(self, prefix, is_back):
        """Iterates over the encoded keys of a queue from one end. Keys of another length are fractions, or
        belong to a queue with a longer prefix, such as "jobs-7" for the queue "jobs"."""
        least, end = self._queue_bounds(prefix)
        keys = self._table("rows").keys(least, end, reverse=is_back)
        return (encoded for encoded in keys if len(encoded) == len(least))

    def push(self, value, prefix=None, side="back", expire=None, read=False, tag=None, retry=False):
        """Adds a value at one end of a queue; returns its key."""
        is_back = self._is_back(side)
        least, end = self._queue_bounds(prefix)
        value = self._content(value, read)
        with self.transact(retry):
            last = next(self._queue(prefix, is_back), None)
            if last is None:
                number = _QUEUE_MIDDLE
            else:
                key = _key(last)
                number = key if prefix is None else int(key[key.rfind("-") + 1 :])
                number += 1 if is_back else -1
            key = number if prefix is None else f"{prefix}-{number:015d}"
            if not least <= _key_bytes(key) < end:
                raise ValueError(f"the queue has no free key at its {side}: {key!r} is not a key of a queue")
            self._store_value(key, value, expire, tag, time.time(), None)
        return key

    @staticmethod
    def _is_back(side):
        if side not in ("front", "back"):
            raise ValueError(f'side is "front" or "back", not {side!r}')
        return side == "back"

    def _end_of_queue(self, is_taken, prefix, default, side, expire_time, tag, retry):
        is_back = self._is_back(side)
        now = time.time()
        failure = None
        removed = _BATCH
        # A transaction removes a limited number of expired rows, so that its locks and its time are limited.
        while removed == _BATCH:
            removed = 0
            with self.transact(retry):
                for encoded in self._queue(prefix, is_back):
                    record = self._load(encoded)
                    if record.is_expired(now):
                        self._remove(encoded, record)
                        removed += 1
                        if removed == _BATCH:
                            break
                        continue
                    try:
                        answer = record.answer((_key(encoded), record.value), expire_time, tag)
                    except Exception as error:
                        error.__traceback__ = None  # its frames would keep this cache
                        failure = error if failure is None else failure
                        continue
                    if is_taken:
                        self._remove(encoded, record)
                    return answer
        if failure is not None:
            raise failure
        return _NO_RECORD.answer(default, expire_time, tag)

    def pull(
        self, prefix=None, default=(None, None), side="front", expire_time=False, tag=False, retry=False
    ):
        """Removes and returns the key and value at one end of a queue. A row that cannot be unpickled stays
        in the queue, and the next one is returned; if there is no other row, raises its error."""
        return self._end_of_queue(True, prefix, default, side, expire_time, tag, retry)

    def peek(
        self, prefix=None, default=(None, None), side="front", expire_time=False, tag=False, retry=False
    ):
        """Returns the key and value that `pull` would remove."""
        return self._end_of_queue(False, prefix, default, side, expire_time, tag, retry)

    def peekitem(self, last=True, expire_time=False, tag=False, retry=False):
        """Returns the key and value that were inserted last or first."""
        now = time.time()
        with self.transact(retry):
            store = self._store
            while True:
                sequence = store.tx[store.sequence]
                end = sequence.last() if last else sequence.first()
                if end is None:
                    raise KeyError("the cache is empty")
                record = self._load(end[1])
                if not record.is_expired(now):
                    pair = _key(end[1], lambda: record), record.value
                    return record.answer(pair, expire_time, tag)
                self._remove(end[1], record)

    def memoize(self, name=None, typed=False, expire=None, tag=None, ignore=()):
        """Decorator: a call with arguments that were used before returns the stored result."""
        if callable(name):
            raise TypeError("write @cache.memoize(), with parentheses")

        def decorate(function):
            base = (f"{function.__module__}.{function.__qualname__}" if name is None else name,)

            @functools.wraps(function)
            def wrapper(*args, **named):
                key = wrapper.__cache_key__(*args, **named)
                result = self.get(key, _NONE, retry=True)
                if result is _NONE:
                    result = function(*args, **named)
                    if expire is None or expire > 0:
                        self.set(key, result, expire, tag=tag, retry=True)
                return result

            def __cache_key__(*args, **named):
                """Returns the key of a call."""
                args = tuple(arg for place, arg in enumerate(args) if place not in ignore)
                pairs = sorted((name, arg) for name, arg in named.items() if name not in ignore)
                key = base + args + (None,) + tuple(itertools.chain.from_iterable(pairs))
                if typed:
                    key += tuple(map(type, args)) + tuple(type(arg) for _, arg in pairs)
                return key

            wrapper.__cache_key__ = __cache_key__
            return wrapper

        return decorate

    # The whole cache.

    def expire(self, now=None, retry=False):
        """Removes expired rows; returns their number."""
        now = time.time() if now is None else now
        return self._remove_all(lambda _store: self._expired_before(now), retry)

    def evict(self, tag, retry=False):
        """Removes the rows with a tag; returns their number."""
        encoded = _key_bytes(tag)
        last = 2**63 - 1
        return self._remove_all(
            lambda store: store.tx[store.tags].values((encoded, 0), (encoded, last)), retry
        )

    def clear(self, retry=False):
        """Removes all rows; returns their number."""
        return self._remove_all(lambda store: store.tx[store.sequence].values(), retry)

    def cull(self, retry=False):
        """Removes expired rows, and evicts until the size limit holds; returns the number of rows."""
        removed = self.expire(retry=retry)
        if self.eviction_policy == "none":
            return removed
        while self.volume() > self.size_limit:
            with self.transact(retry):
                store = self._store
                in_batch = self._remove_each(store.tx[store.eviction].values(), 10)
            removed += in_batch
            if in_batch == 0:
                break
        return removed

    def volume(self):
        """Returns the bytes of all keys and records, which `size_limit` bounds."""
        return self._table("totals").get("bytes", 0)

    def stats(self, enable=True, reset=False):
        """Returns the numbers of hits and misses since the store was opened, then switches counting."""
        store = self._store
        with store._registry:
            counted = store.hits, store.misses
            if reset:
                store.hits = store.misses = 0
        self.statistics = bool(enable)
        return counted

    def check(self, fix=False, retry=False):
        """Checks the store and the totals; returns a list of messages, empty if nothing is wrong. `fix`
        corrects the totals."""
        found = []
        for finding in self._store.db.check()["findings"]:
            found.append(f"{self._directory}: {finding}")
        with self.transact(retry):
            store = self._store
            totals = store.tx[store.totals]
            sizes = [len(key) + len(row) for key, row in store.tx[store.rows].items()]
            for name, counted in (("rows", len(sizes)), ("bytes", sum(sizes))):
                if totals.get(name, 0) != counted:
                    stored = totals.get(name, 0)
                    found.append(f"{self._directory}: total of {name} is {stored}, not {counted}")
                    if fix:
                        totals[name] = counted
        return found

    def reset(self, key, value=_NONE, update=True):
        """Changes a setting of this object, or returns it."""
        if key not in _SETTINGS:
            raise AttributeError(f"no setting {key!r}; settings are {', '.join(_SETTINGS)}")
        if value is not _NONE:
            if key == "eviction_policy":
                self._check_policy(value)
            setattr(self, key, value)
        return getattr(self, key)

    def iterkeys(self, reverse=False):
        """Iterates over the keys in their order: numbers, texts, bytes, others."""
        start, end = b"", None
        while batch := self._batch("rows", "keys", start, end, reverse):
            yield from self._decoded(batch)
            if reverse:
                end = batch[-1]
            else:
                start = batch[-1] + b"\0"

    def _decoded(self, encoded_keys):
        for encoded in encoded_keys:
            # Only the record has a long key. Another thread may have removed it meanwhile.
            record = self._load(encoded) if encoded[:1] == b"5" else _NO_RECORD
            if record is not None:
                yield _key(encoded, lambda: record)

    def _in_order_of_insertion(self, reverse):
        # Keys that are inserted during the iteration have greater numbers.
        newest = self._batch("sequence", "keys", 0, None, True)[:1]
        start, end = 0, newest[0] + 1 if newest else 0
        while batch := self._batch("sequence", "items", start, end, reverse):
            yield from self._decoded(encoded for _, encoded in batch)
            if reverse:
                end = batch[-1][0]
            else:
                start = batch[-1][0] + 1

    def __iter__(self):
        return self._in_order_of_insertion(False)

    def __reversed__(self):
        return self._in_order_of_insertion(True)

    def __len__(self):
        return self._table("totals").get("rows", 0)

    def close(self):
        """Closes the store if no other object of this process uses it. A later call opens it again. Raises
        `Busy`, and closes nothing, while a thread is in a transaction."""
        if self._pid == os.getpid():
            _Store.leave(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_exception):
        try:
            self.close()
        except azekura.Busy:
            # An exception of the block is more informative.
            if kind is None:
                raise

    def __del__(self):
        user = self.__dict__.get("_user")
        if user is not None and self._pid == os.getpid():
            _Store.leave_freed((self._directory, user))

    def __getstate__(self):
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return self._directory, self._timeout, settings, self._key

    def __setstate__(self, state):
        # The first call opens the store: an error of unpickling would end the worker process of a pool, and
        # the program would wait for its result without end.
        self._directory, self._timeout, settings, self._key = state
        self.__dict__.update(settings)
        self._pid, self._opened, self._user = os.getpid(), None, object()
