"""The interface of the standard library's `dbm`. A program needs to change only its import.

    import azekura.dbm as dbm

    with dbm.open("cache", "c") as db:
        db["key"] = "value"

Keys and values are bytes; text is encoded as UTF-8. Several threads may use one object. Each change is
durable when the call returns, and `update` stores all its rows or none.
"""

import collections.abc
import functools
import os
import shutil

import azekura

__all__ = ["error", "open"]

# The error of `dbm` is a subclass of OSError, so this one is, too.
error = azekura.IoError

_TABLE = "dbm"
# The files of a store, CONTROL last: while CONTROL is there, the directory is a store.
_FILES = (
    "pages",
    "dw",
    "lsnmap",
    "wal",
    "sort",
    "runs",
    "ARCHIVED-TO",
    "RESTORING",
    "LOCK",
    "CONTROL.new",
    "CONTROL",
)


def _bytes(text):
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    raise TypeError(f"keys and values are bytes or str, not {type(text).__name__}")


def _raises_error(call):
    """Decorator: errors of the store become the error of this module."""

    @functools.wraps(call)
    def run(*args, **named):
        try:
            return call(*args, **named)
        except azekura.Error as refused:
            if isinstance(refused, OSError):
                raise
            raise error(str(refused)) from refused

    return run


class _Rows(collections.abc.MutableMapping):
    def __init__(self, db):
        self._db = db
        self._rows = db.table(_TABLE, key=bytes, value=bytes)

    def _open(self):
        if self._rows is None:
            raise error("the database is closed")
        return self._rows

    @_raises_error
    def __getitem__(self, key):
        return self._open()[_bytes(key)]

    @_raises_error
    def __setitem__(self, key, value):
        self._open()[_bytes(key)] = _bytes(value)

    @_raises_error
    def __delitem__(self, key):
        del self._open()[_bytes(key)]

    @_raises_error
    def __contains__(self, key):
        return _bytes(key) in self._open()

    @_raises_error
    def __len__(self):
        return len(self._open())

    @_raises_error
    def __iter__(self):
        keys = iter(self._open())
        return iter(_raises_error(lambda: next(keys, None)), None)

    @_raises_error
    def keys(self):
        return list(self._open())

    @_raises_error
    def get(self, key, default=None):
        return self._open().get(_bytes(key), default)

    @_raises_error
    def setdefault(self, key, default=b""):
        return self._open().setdefault(_bytes(key), _bytes(default))

    @_raises_error
    def pop(self, key, *default):
        return self._open().pop(_bytes(key), *default)

    @_raises_error
    def popitem(self):
        return self._open().popitem()

    @_raises_error
    def update(self, other=(), /, **rows):
        pairs = dict(other, **rows).items()
        self._open().update((_bytes(key), _bytes(value)) for key, value in pairs)

    @_raises_error
    def clear(self):
        self._open().clear()

    @_raises_error
    def firstkey(self):
        """Returns the least key, or None."""
        row = self._open().first()
        return None if row is None else row[0]

    @_raises_error
    def nextkey(self, key):
        """Returns the next greater key, or None."""
        return next(iter(self._open().keys(_bytes(key) + b"\0")), None)

    @_raises_error
    def sync(self):
        """Does nothing: each change is durable already."""
        self._open()

    @_raises_error
    def reorganize(self):
        """Does nothing: the store reuses the space of removed rows."""
        self._open()

    @_raises_error
    def close(self):
        """Closes the database. While another thread uses it, raises `error` and leaves it open."""
        db = self._db
        if db is not None:
            db.close()
            self._rows = self._db = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_exception):
        try:
            self.close()
        except error:
            # An exception of the block is more informative.
            if kind is None:
                raise


def _emptied(path):
    """Opens the store at `path` and removes its tables in one transaction. Returns None if the store is
    damaged. A store that cannot be opened for another reason raises an error and stays as it is: it is in
    use, encrypted, of another format version, or the result of an unfinished restore."""
    try:
        db = azekura.open(path, create=False)
    except azekura.Corrupt:
        return None
    names = db.table_names()
    db.transact(lambda tx: [tx.drop_table(name) for name in names])
    return db


def _remove(path):
    """Removes the files of a damaged store. A directory with other files stays as it is."""
    others = sorted(set(os.listdir(path)).difference(_FILES))
    if others:
        raise error(f"{path} has a damaged store and other files ({others[0]!r}); remove the store's files")
    for name in _FILES:
        file = os.path.join(path, name)
        if os.path.isdir(file) and not os.path.islink(file):
            shutil.rmtree(file)
        elif os.path.lexists(file):
            os.remove(file)


@_raises_error
def open(file, flag="r", mode=0o666):
    """Opens the database in directory `file`. `flag` is "r" for reading, "w" for reading and writing, "c" to
    create it if needed, or "n" to begin with an empty one, which replaces a damaged store. `mode` is ignored:
    only the owner of the store's files can access them."""
    if flag[:1] not in ("r", "w", "c", "n"):
        raise ValueError('flag is "r", "w", "c" or "n"')
    path = os.fsdecode(file)
    if not path:
        raise error("the path is empty")  # `realpath` would return the working directory
    if flag[0] == "n":
        path = os.path.realpath(path)
    if flag[0] == "n" and os.path.exists(path):
        if os.path.exists(os.path.join(path, "CONTROL")):
            db = _emptied(path)
            if db is not None:
                return _Rows(db)
            _remove(path)
        elif not os.path.isdir(path):
            os.remove(path)
        elif os.listdir(path):
            raise error(f"{path} is a directory without a store; remove it or take another name")
    return _Rows(azekura.open(path, create=flag[0] in "cn", read_only=flag[0] == "r"))
