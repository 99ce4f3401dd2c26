"""What shards are computed on: threads or processes of this machine, Ray, or Dask.

An engine runs a task on a shard somewhere and adds two results there; what it hands out in between
are only names of results, so that what is large stays where it is. Only this file imports Ray and
Dask, and only when they are asked for.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Protocol

from expunge.errors import ExpungeError, InputError, requires_extra
from expunge.exact.threads import cores

ENGINES = ("threads", "processes", "ray", "dask")

_LOST = (
    "a worker was lost ({problem}): nothing has come of it. Try again, with fewer workers if "
    "memory ran out"
)


class Engine(Protocol):
    """Names of results are hashable, and are handed back to the engine that gave them out."""

    most: int  # how many results should be on their way at once

    def run(self, task: Callable[[Any], Any], shard: Any) -> Any:
        """Begin to compute a task on a shard."""
        ...

    def add(self, left: Any, right: Any) -> Any:
        """Begin to add two results that are finished."""
        ...

    def finished(self, names: list[Any]) -> list[Any]:
        """Wait until at least one of these is finished; those that are.

        If one has failed, its error is raised.
        """
        ...

    def result(self, name: Any) -> Any:
        """The result itself."""
        ...


@contextmanager
def engine_of(on: Any, workers: int | None) -> Iterator[Engine]:
    """The engine that is meant, for the time of the block; what was started for it is stopped."""
    if on == "threads":
        with _pool(ThreadPoolExecutor(workers or cores(), "shard")) as pool:
            yield _Local(pool, workers or cores())
    elif on == "processes":
        # Not by fork, which copies locks that threads of this process hold.
        context = multiprocessing.get_context("spawn")
        with _pool(ProcessPoolExecutor(workers or cores(), mp_context=context)) as pool:
            yield _Local(pool, workers or cores())
    elif on == "ray":
        with _ray(workers) as engine:
            yield engine
    elif on == "dask" or type(on).__module__.partition(".")[0] == "distributed":
        with _dask(on, workers) as engine:
            yield engine
    else:
        raise InputError(
            f"on={on!r:.80} must be one of {', '.join(ENGINES)}, or a client of dask.distributed"
        )


def _imported(module: str, extra: str) -> Any:
    with requires_extra(extra, f"on={extra!r}"):
        return import_module(module)


# -- this machine ----------------------------------------------------------------------------------


@contextmanager
def _pool(pool: Executor) -> Iterator[Executor]:
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Local:
    """A pool of threads or processes. Results are here anyway, so that they are added here."""

    def __init__(self, pool: Executor, workers: int) -> None:
        self._pool = pool
        self.most = 2 * workers

    def run(self, task: Callable[[Any], Any], shard: Any) -> Future[Any]:
        try:
            return self._pool.submit(task, shard)
        except BrokenProcessPool as problem:
            raise ExpungeError(_LOST.format(problem=problem)) from problem

    def add(self, left: Future[Any], right: Future[Any]) -> Future[Any]:
        total: Future[Any] = Future()
        total.set_result(left.result() + right.result())
        return total

    def finished(self, names: list[Future[Any]]) -> list[Future[Any]]:
        done = list(wait(names, return_when=FIRST_COMPLETED).done)
        for future in done:
            self.result(future)
        return done

    def result(self, name: Future[Any]) -> Any:
        try:
            return name.result()
        except BrokenProcessPool as problem:
            raise ExpungeError(_LOST.format(problem=problem)) from problem


# -- Ray -------------------------------------------------------------------------------------------


def _told(task: Callable[[Any], Any], shard: Any) -> tuple[ExpungeError | None, Any]:
    """What went wrong, and the result: apart, since the result is large and need not be fetched."""
    try:
        return None, task(shard)
    except ExpungeError as problem:
        return problem.with_traceback(None), None


def _sum(left: Any, right: Any) -> Any:
    return left + right


@contextmanager
def _ray(workers: int | None) -> Iterator[Engine]:
    ray = _imported("ray", "ray")
    with ExitStack() as after:
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # A Ray elsewhere (RAY_ADDRESS) has its own number of processors. Otherwise one of our
            # own is started: "local", since Ray would by itself join whatever cluster has last been
            # noted on this machine, alive or not.
            own = {"address": "local", "num_cpus": workers or cores(), "include_dashboard": False}
            ray.init(
                log_to_driver=False,
                logging_level="error",
                **({} if os.environ.get("RAY_ADDRESS") else own),
            )
            after.callback(ray.shutdown)
        engine = _Ray(ray, workers)
        after.callback(engine.abandon)
        try:
            yield engine
        except ray.exceptions.RayError as problem:
            raise ExpungeError(
                _LOST.format(problem=str(problem).strip().rpartition("\n")[2])
            ) from problem


class _Ray:
    """Names are pairs: of what went wrong, and of the result."""

    def __init__(self, ray: Any, workers: int | None) -> None:
        self._ray = ray
        self._run = ray.remote(_told).options(num_returns=2, num_cpus=1)
        self._add = ray.remote(_sum)
        self._running: set[Any] = set()
        self.most = workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(self, task: Callable[[Any], Any], shard: Any) -> Any:
        return self._noted(tuple(self._run.remote(task, shard)))

    def add(self, left: Any, right: Any) -> Any:
        total = self._add.remote(left[1], right[1])
        return self._noted((total, total))

    def _noted(self, name: Any) -> Any:
        self._running.add(name)
        return name

    def finished(self, names: list[Any]) -> list[Any]:
        ready, _ = self._ray.wait([name[0] for name in names], num_returns=1)
        done = [name for name in names if name[0] in ready]
        for name in done:
            self._running.discard(name)
            problem = None if name[0] == name[1] else self._ray.get(name[0])
            if problem is not None:
                raise problem
        return done

    def result(self, name: Any) -> Any:
        self._running.discard(name)
        return self._ray.get(name[1])

    def abandon(self) -> None:
        """Work that is still running is no longer needed."""
        for name in self._running:
            self._ray.cancel(name[0])


# -- Dask ------------------------------------------------------------------------------------------


@contextmanager
def _dask(on: Any, workers: int | None) -> Iterator[Engine]:
    distributed = _imported("distributed", "dask")
    with ExitStack() as after:
        client = _current_client(distributed) if on == "dask" else on
        if client is None:
            cluster = distributed.LocalCluster(
                n_workers=workers or cores(),
                threads_per_worker=1,
                dashboard_address=None,
                silence_logs="ERROR",
            )
            after.callback(cluster.close)
            client = distributed.Client(cluster, set_as_default=False)
            after.callback(client.close)
        engine = _Dask(distributed, client, workers)
        after.callback(engine.abandon)
        try:
            yield engine
        except (
            distributed.scheduler.KilledWorker,
            distributed.client.FutureCancelledError,
        ) as problem:
            raise ExpungeError(_LOST.format(problem=problem)) from problem


def _current_client(distributed: Any) -> Any:
    try:
        return distributed.get_client()
    except ValueError:  # there is none
        return None


class _Dask:
    """Names are Dask's own futures; a result goes when its last name does."""

    def __init__(self, distributed: Any, client: Any, workers: int | None) -> None:
        self._distributed, self._client = distributed, client
        self._running: set[Any] = set()
        self.most = workers or 2 * max(1, sum(client.nthreads().values()))

    def run(self, task: Callable[[Any], Any], shard: Any) -> Any:
        return self._noted(self._client.submit(task, shard, pure=False))

    def add(self, left: Any, right: Any) -> Any:
        return self._noted(self._client.submit(_sum, left, right, pure=False))

    def _noted(self, name: Any) -> Any:
        self._running.add(name)
        return name

    def finished(self, names: list[Any]) -> list[Any]:
        with self._client.as_current():  # which `wait` asks, rather than the futures
            done = list(self._distributed.wait(names, return_when="FIRST_COMPLETED").done)
        for name in done:
            self._running.discard(name)
            if name.status == "error":
                raise name.exception()
        return done

    def result(self, name: Any) -> Any:
        self._running.discard(name)
        return name.result()

    def abandon(self) -> None:
        """Work that is still running is no longer needed."""
        if self._running:
            self._client.cancel(list(self._running))
