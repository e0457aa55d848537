"""BLAS keeps to one thread while tiles are computed.

Products of a tile are small. Shared among threads of BLAS's own, which wait for one another by
spinning, they take several times as long, the more so on a busy machine; where there are many pairs
whole tiles are shared among threads instead. threadpoolctl tells BLAS so.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["one_blas_thread"]

Function = TypeVar("Function", bound=Callable)
_lock = threading.Lock()
_inside = 0  # calls under way
_limit: Any = None


@functools.cache
def _controller() -> Any:
    import threadpoolctl  # when it is used: layers alone do without

    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def _one() -> Iterator[None]:
    """The setting is the process's: the first call that comes in makes it, the last takes it back.

    Calls in several threads that each put back what they had found would leave it at one.
    """
    global _inside, _limit
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
            _limit.__enter__()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.__exit__(None, None, None)
                _limit = None


def one_blas_thread(function: Function) -> Function:
    """A function that has BLAS in one thread while it runs."""

    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with _one():
            return function(*args, **kwargs)

    return alone
