"""The interface of the standard library's `dbm`. A program needs to change only its import.

    import azekura.dbm as dbm

    with dbm.open("cache", "c") as db:
        db["key"] = "value"

Keys and values are bytes; text is encoded as UTF-8. Several threads may use one object. Each change is
durable when the call returns, and `update` stores all its rows or none.
"""

import collections.abc
import os
import shutil

import azekura

__all__ = ["error", "open"]

# The error of `dbm` is a subclass of OSError, so this one is, too.
error = azekura.IoError

_TABLE = "dbm"


def _bytes(text):
    return text.encode() if isinstance(text, str) else bytes(text)


class _Rows(collections.abc.MutableMapping):
    def __init__(self, db):
        self._db = db
        self._rows = db.table(_TABLE, key=bytes, value=bytes)

    def _open(self):
        if self._rows is None:
            raise error("the database is closed")
        return self._rows

    def __getitem__(self, key):
        return self._open()[_bytes(key)]

    def __setitem__(self, key, value):
        try:
            self._open()[_bytes(key)] = _bytes(value)
        except azekura.Invalid as refused:
            raise error(str(refused)) from refused

    def __delitem__(self, key):
        del self._open()[_bytes(key)]

    def __contains__(self, key):
        return _bytes(key) in self._open()

    def __len__(self):
        return len(self._open())

    def __iter__(self):
        return iter(self._open())

    def keys(self):
        return list(self._open())

    def get(self, key, default=None):
        return self._open().get(_bytes(key), default)

    def setdefault(self, key, default=b""):
        return self._open().setdefault(_bytes(key), _bytes(default))

    def update(self, other=(), /, **rows):
        pairs = dict(other, **rows).items()
        self._open().update((_bytes(key), _bytes(value)) for key, value in pairs)

    def clear(self):
        self._open().clear()

    def firstkey(self):
        """Returns the least key, or None."""
        row = self._open().first()
        return None if row is None else row[0]

    def nextkey(self, key):
        """Returns the next greater key, or None."""
        return next(iter(self._open().keys(_bytes(key) + b"\0")), None)

    def sync(self):
        """Does nothing: each change is durable already."""
        self._open()

    def reorganize(self):
        """Does nothing: the store reuses the space of removed rows."""
        self._open()

    def close(self):
        self._rows, db, self._db = None, self._db, None
        if db is not None:
            db.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()


def open(file, flag="r", mode=0o666):
    """Opens the database in directory `file`. `flag` is "r" for reading, "w" for reading and writing, "c" to
    create it if needed, or "n" to begin with an empty one. `mode` is ignored: only the owner of the store's
    files can access them."""
    if flag[:1] not in ("r", "w", "c", "n"):
        raise ValueError('flag is "r", "w", "c" or "n"')
    path = os.fsdecode(file)
    if flag[0] == "n" and os.path.lexists(path):
        is_store = os.path.isdir(path) and os.path.exists(os.path.join(path, "CONTROL"))
        if os.path.isdir(path) and not is_store and os.listdir(path):
            raise error(f"{path} is a directory without a store; remove it or take another name")
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    try:
        return _Rows(azekura.open(path, create=flag[0] in "cn", read_only=flag[0] == "r"))
    except azekura.Error as refused:
        if isinstance(refused, OSError):
            raise
        raise error(str(refused)) from refused
