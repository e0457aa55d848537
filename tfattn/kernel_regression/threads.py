"""A decorator that limits BLAS to one thread, by threadpoolctl.

The products of a tile are small: BLAS threads, which wait by spinning, make them several times
slower, above all on a busy machine. For many pairs whole tiles run in parallel threads instead.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_inside = 0  # number of running calls
_limit: Any = None


@functools.cache
def _controller() -> Any:
    import threadpoolctl  # lazily, since layers do not need it

    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS at the first of overlapping calls and restores it after the last.

    The setting belongs to the process: if each call restored the setting that it found, overlapping
    calls in several threads would leave it at one.
    """
    global _inside, _limit
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
            _limit.__enter__()
            for library in _controller().lib_controllers:
                # Since threadpoolctl 3.8, only the thread that set OpenBLAS may restore it.
                getattr(library, "clear_controlling_thread", lambda: None)()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.__exit__(None, None, None)
                _limit = None
