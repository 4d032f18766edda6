"""The exceptions of the package."""


class Error(Exception):
    """The base of all errors of the store."""


class Conflict(Error):
    """The transaction was rolled back because of a conflict with another one: run it again."""


class Busy(Error):
    """A resource is in use or exhausted at the moment."""


class UndoMemoryExhausted(Busy):
    """The undo entries of open transactions reach `undo_bytes`. The call was undone, and its transaction
    remains open: commit it, and continue in a new one."""


class Corrupt(Error):
    """Bytes on disk are not those that were written."""


class Closed(Error):
    """The store or the transaction accepts no more calls."""


class Expired(Error):
    """The snapshot is too old: the versions that it needs were removed. Open a new one."""


class Invalid(Error, ValueError):
    """The call or its arguments are wrong."""


class IoError(Error, OSError):
    """A call of the operating system failed; `errno` has the error number."""


for _error in (Error, Conflict, Busy, UndoMemoryExhausted, Corrupt, Closed, Expired, Invalid, IoError):
    _error.__module__ = "azekura"
del _error
