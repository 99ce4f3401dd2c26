"""Sharing out work: every row once, errors passed on, and BLAS threads given back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

from expunge.exact import threads
from expunge.exact.threads import CHUNK, Background, chunks, one_blas_thread, share_out


def blas_threads() -> list[int]:
    return [
        library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()
    ]


def release_control() -> None:
    """Let any thread set limits: newer threadpoolctl lets only the first one that did, until it is
    told otherwise.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[list[int]]:
    """BLAS with two threads, whatever the machine has, so that there is something to restore."""
    release_control()
    limiter = ThreadpoolController().limit(limits=2, user_api="blas")
    release_control()
    before = blas_threads()
    assert before
    assert set(before) == {2}
    yield before
    release_control()
    limiter.restore_original_limits()
    release_control()


def test_one_thread_inside_and_the_old_number_after(two_threads: list[int]) -> None:
    with one_blas_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == two_threads


def test_nesting_restores_when_the_outermost_leaves(two_threads: list[int]) -> None:
    with one_blas_thread():
        with one_blas_thread(), one_blas_thread():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == two_threads
    with one_blas_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == two_threads


def test_an_exception_restores_too(two_threads: list[int]) -> None:
    with pytest.raises(KeyError), one_blas_thread(), one_blas_thread():
        raise KeyError
    assert blas_threads() == two_threads


class Visitor:
    """A thread that stays inside `one_blas_thread` until it is told to leave, perhaps by an
    error.
    """

    def __init__(self, pool: ThreadPoolExecutor, fails: bool) -> None:
        self._entered, self._leave, self._fails = threading.Event(), threading.Event(), fails
        self._visit = pool.submit(self._stay)
        assert self._entered.wait(10)

    def _stay(self) -> None:
        with one_blas_thread():
            self._entered.set()
            self._leave.wait(10)
            if self._fails:
                raise KeyError

    def leave(self) -> None:
        self._leave.set()
        assert (self._visit.exception(10) is not None) == self._fails


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_threads_inside_at_once(
    two_threads: list[int], order: tuple[int, int], fails: bool
) -> None:
    with ThreadPoolExecutor(2) as pool:
        visitors = [Visitor(pool, fails), Visitor(pool, fails)]
        seen = [blas_threads()]
        for index in order:
            visitors[index].leave()
            seen.append(blas_threads())
    ones = [1 for _ in two_threads]
    assert seen == [ones, ones, two_threads]


def test_a_thread_that_stays_longer_than_the_main_thread_restores(two_threads: list[int]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with one_blas_thread():
            visitor = Visitor(pool, False)
        during = blas_threads()
        visitor.leave()
    assert set(during) == {1}
    assert blas_threads() == two_threads


def test_another_thread_can_limit_after_the_main_thread_has(two_threads: list[int]) -> None:
    with one_blas_thread():
        pass
    with ThreadPoolExecutor(1) as pool:
        visitor = Visitor(pool, False)
        during = blas_threads()
        visitor.leave()
    assert set(during) == {1}
    assert blas_threads() == two_threads


@given(st.integers(0, 100_000), st.integers(0, 3 * CHUNK))
def test_chunks_cover_every_row_once_in_order(rows: int, width: int) -> None:
    if rows * max(width, 1) > 1000 * CHUNK:
        rows = rows % 500
    parts = list(chunks(rows, width))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])][: len(parts)]
    assert (parts[-1].stop if parts else 0) == rows
    assert all(part.start < part.stop for part in parts)
    assert all((part.stop - part.start) * width <= max(CHUNK, width) for part in parts)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_share_out_covers_every_row_once(rows: int, workers: int) -> None:
    seen: dict[int, slice] = {}
    share_out(rows, workers, seen.__setitem__)
    assert sorted(seen) == list(range(workers))
    assert [
        row for worker in range(workers) for row in range(seen[worker].start, seen[worker].stop)
    ] == list(range(rows))


def test_share_out_runs_with_one_blas_thread(two_threads: list[int]) -> None:
    seen = []
    share_out(10, 2, lambda _worker, _rows: seen.extend(blas_threads()))
    assert set(seen) == {1}
    assert blas_threads() == two_threads


def test_share_out_passes_on_the_error_of_the_first_rows(two_threads: list[int]) -> None:
    second_failed = threading.Event()

    def work(worker: int, rows: slice) -> None:
        if worker == 0:
            assert second_failed.wait(10)
        else:
            second_failed.set()
        raise KeyError(rows.start)

    with pytest.raises(KeyError, match="0"):
        share_out(10, 2, work)
    assert blas_threads() == two_threads


def test_there_is_at_least_one_core() -> None:
    assert threads.cores() >= 1


# -- work in the background ------------------------------------------------------------------------


def test_a_result_is_waited_for_and_can_be_asked_for_again() -> None:
    gate, caller = threading.Event(), threading.get_ident()
    background = Background(lambda: (gate.wait(10), threading.get_ident()))
    gate.set()
    assert background.result() == background.result()
    assert background.result()[1] != caller


def test_a_failure_is_raised_where_the_result_is_asked_for() -> None:
    background = Background(lambda: {}["missing"])
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            background.result()


def test_without_a_thread_the_work_is_done_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_threads(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        background = Background(threading.get_ident)
    assert background.result() == threading.get_ident()


def test_a_forked_process_has_the_blas_threads_of_before(two_threads: list[int]) -> None:
    """Another thread is inside when the process is forked, and there is none in the child."""
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with one_blas_thread():
            entered.set()
            leave.wait(10)

    background = Background(stay)
    assert entered.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if blas_threads() == two_threads else 1)
    leave.set()
    background.result()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert blas_threads() == two_threads
