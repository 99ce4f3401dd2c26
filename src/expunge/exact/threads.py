"""Sharing rows out among threads.

BLAS threads spin for a while after every call, and element-wise numpy work has one thread only; so
for large inputs it is faster to give each of our own threads whole rows, with BLAS on one thread
each, than to let BLAS use all cores in turns with single-threaded passes. Results never depend on
how work was shared out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from expunge.exact import blas

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Entries touched at a time by element-wise passes: a few arrays of this size stay in the cache
CHUNK = 24576

_lock = threading.Lock()
_inside = 0
_limiter: object = None


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _controller() -> ThreadpoolController:
    """The libraries of this process, ours among them."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - few commands set limits

    blas.load()
    return ThreadpoolController()


def _release() -> None:
    """Newer threadpoolctl lets only one thread set limits, silently; here the last one to leave
    must be able to.
    """
    from threadpoolctl import OpenBLASController  # noqa: PLC0415 - few commands set limits

    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS uses one thread while any caller is inside; the last one to leave restores what was."""
    global _inside, _limiter  # noqa: PLW0603 - the number of BLAS threads is a property of the process
    with _lock:
        if _inside == 0:
            _release()
            _limiter = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _release()
                _limiter.restore_original_limits()  # type: ignore[attr-defined]  # threadpoolctl has no type hints
                _release()
                _limiter = None


def limit_blas_threads(most: int) -> None:
    """Let BLAS use at most `most` threads from now on: a server has other work for its cores."""
    with _lock:
        _release()
        _controller().limit(limits=most, user_api="blas")
        _release()


def chunks(rows: int, width: int) -> Iterator[slice]:
    """Consecutive slices that cover range(rows), each of about CHUNK entries when a row has
    `width`.
    """
    step = max(1, CHUNK // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def share_out(rows: int, workers: int, work: Callable[[int, slice], None]) -> None:
    """Call work(worker, slice) for `workers` consecutive slices that cover range(rows),
    concurrently.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for many rows only

    bounds = [rows * index // workers for index in range(workers + 1)]
    with one_blas_thread(), ThreadPoolExecutor(workers, thread_name_prefix="expunge") as pool:
        futures = [
            pool.submit(work, index, slice(bounds[index], bounds[index + 1]))
            for index in range(workers)
        ]
        for future in futures:
            future.result()
