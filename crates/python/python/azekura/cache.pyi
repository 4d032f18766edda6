from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, BinaryIO, Generic, Literal, ParamSpec, TypeVar, overload

import azekura

__all__ = ["Cache", "Timeout"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Policy = Literal["least-recently-stored", "least-recently-used", "least-frequently-used", "none"]
_Setting = Literal["size_limit", "cull_limit", "eviction_policy", "statistics", "tag_index"]
_Side = Literal["front", "back"]

class Timeout(azekura.Busy): ...

# Values are pickled, so they have any type. `expire_time` and `tag` change the type of a result.

class Cache:
    size_limit: int
    cull_limit: int
    eviction_policy: _Policy
    statistics: bool
    tag_index: bool
    def __init__(
        self,
        directory: str | bytes | PathLike[str] | PathLike[bytes] | None = None,
        timeout: float = 60,
        *,
        size_limit: int = ...,
        cull_limit: int = 10,
        eviction_policy: _Policy = "least-recently-stored",
        statistics: bool = False,
        tag_index: bool = True,
        encryption_key: bytes | Callable[[str], bytes] | None = None,
        encryption_key_id: str = "",
    ) -> None: ...
    @property
    def directory(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    def transact(self, retry: bool = False) -> AbstractContextManager[None]: ...
    def set(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def add(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool: ...
    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool: ...
    def incr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any: ...
    def decr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any: ...
    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any: ...
    def __getitem__(self, key: Any) -> Any: ...
    def read(self, key: Any, retry: bool = False) -> BinaryIO: ...
    def __contains__(self, key: Any) -> bool: ...
    def pop(
        self,
        key: Any,
        default: Any = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any: ...
    def __delitem__(self, key: Any, retry: bool = True) -> None: ...
    def delete(self, key: Any, retry: bool = False) -> bool: ...
    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: _Side = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any: ...
    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: _Side = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any: ...
    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: _Side = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any: ...
    def peekitem(
        self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any: ...
    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Container[int | str] = (),
    ) -> Callable[[Callable[_P, _T]], _Memoized[_P, _T]]: ...
    def expire(self, now: float | None = None, retry: bool = False) -> int: ...
    def evict(self, tag: Any, retry: bool = False) -> int: ...
    def clear(self, retry: bool = False) -> int: ...
    def cull(self, retry: bool = False) -> int: ...
    def volume(self) -> int: ...
    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]: ...
    def check(self, fix: bool = False, retry: bool = False) -> list[str]: ...
    def reset(self, key: _Setting, value: Any = ..., update: bool = True) -> Any: ...
    def iterkeys(self, reverse: bool = False) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __reversed__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Cache: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class _Memoized(Generic[_P, _T]):
    __name__: str
    __wrapped__: Callable[_P, _T]
    def __call__(self, *args: _P.args, **named: _P.kwargs) -> _T: ...
    def __cache_key__(self, *args: _P.args, **named: _P.kwargs) -> tuple[Any, ...]: ...
    # A memoized method: the types of its arguments without `self` are not known.
    @overload
    def __get__(self, instance: None, owner: type) -> _Memoized[_P, _T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., _T]: ...
