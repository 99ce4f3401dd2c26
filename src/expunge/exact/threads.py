"""Sharing rows out among threads, and work in the background.

BLAS threads spin for a while after every call, and element-wise numpy work has one thread only; so
for large inputs it is faster to give each of our own threads whole rows, with BLAS on one thread
each, than to let BLAS use all cores in turns with single-threaded passes. Results never depend on
how work was shared out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from expunge.exact import blas

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Entries touched at a time by element-wise passes: a few arrays of this size stay in the cache
CHUNK = 24576

Result = TypeVar("Result")

_lock = threading.Lock()
_inside: dict[int, int] = {}  # by thread: how often it is inside
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
    global _limiter  # noqa: PLW0603 - the number of BLAS threads is a property of the process
    caller = threading.get_ident()
    with _lock:
        if not _inside:
            _release()
            _limiter = _controller().limit(limits=1, user_api="blas")
        _inside[caller] = _inside.get(caller, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _inside[caller] -= 1
            if not _inside[caller]:
                del _inside[caller]
            if not _inside:
                _release()
                _limiter.restore_original_limits()  # type: ignore[attr-defined]  # threadpoolctl has no type hints
                _release()
                _limiter = None


def _alone_after_fork() -> None:
    """In a process that was just forked there is one thread, and others have left nothing to wait
    for.
    """
    global _lock, _limiter  # noqa: PLW0603 - as above
    _lock = threading.Lock()
    for thread in set(_inside) - {threading.get_ident()}:
        del _inside[thread]
    if _limiter is not None and not _inside:
        _release()
        _limiter.restore_original_limits()  # type: ignore[attr-defined]  # threadpoolctl has no type hints
        _release()
        _limiter = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone_after_fork)


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


class Background(Generic[Result]):
    """Work that a thread of its own does meanwhile; it must not change anything.

    The thread ends with the work, and a process waits for it before it ends. Where there is no
    such thread, as in a forked process or one that ends, the work is done when its result is asked
    for.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._results: list[Result] = []  # one, once there is one
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="expunge background")
        with suppress(RuntimeError):  # the system has no more threads
            self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as failure:  # raised where the result is asked for
            self._failure = failure

    def result(self) -> Result:
        """What the work returns or raises; waits for it."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0] if self._results else self._work()
