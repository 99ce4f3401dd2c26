"""The one thread that changes things: it takes what has come in and does it together (group
commit).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any

from expunge.errors import CarrierError, RefusedError
from expunge.server.requests import Offer
from expunge.wire.refusals import cause_of

_MOST_OFFERS = 512
_MOST_BYTES = 64 << 20

Work = Callable[[], Any]


class Writer:
    """First come, first served.

    Offers that wait together run as one round; other work runs alone. Both run in a thread, or,
    without one, in that of whoever calls `catch_up` or waits for other work.
    """

    def __init__(
        self, run: Callable[[list[Offer]], None], *, group_commit: bool, thread: bool = True
    ) -> None:
        self._run_round = run
        self._most = _MOST_OFFERS if group_commit else 1
        self._waiting: deque[Offer | tuple[Work, Future[Any]]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="writer", daemon=True) if thread else None
        if self._thread is not None:
            self._thread.start()

    def offer(self, offer: Offer) -> Future[bytes]:
        """Have a request applied; the future gets its receipt."""
        self._put(offer)
        return offer.answer

    def do(self, work: Work) -> Any:
        """Have other work done in turn, and wait for what it returns."""
        result: Future[Any] = Future()
        self._put((work, result))
        self.catch_up()
        return result.result()

    def catch_up(self) -> None:
        """Do what is waiting, if there is no thread that does."""
        while self._thread is None and self._waiting:
            self._turn()

    def _put(self, item: Offer | tuple[Work, Future[Any]]) -> None:
        with self._changed:
            if self._closed:
                raise RefusedError(
                    "storage",
                    "the server is stopping: nothing was changed, offer the request again later",
                )
            self._waiting.append(item)
            self._changed.notify()

    def __len__(self) -> int:
        return len(self._waiting)

    def _next(self) -> list[Offer] | tuple[Work, Future[Any]] | None:
        """Everything at the front that can run together; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            first = self._waiting.popleft()
            if not isinstance(first, Offer):
                return first
            together, size = [first], first.size
            while self._waiting and len(together) < self._most:
                following = self._waiting[0]
                if not isinstance(following, Offer) or size + following.size > _MOST_BYTES:
                    break
                size += following.size
                together.append(following)
                self._waiting.popleft()
        return [
            offer for offer in together if offer.answer.set_running_or_notify_cancel()
        ]  # some may have stopped waiting

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Do what is next, or wait for it; false at the end."""
        item = self._next()
        if isinstance(item, list):
            self._run_together(item)
        elif item is not None:
            work, result = item
            try:
                value = work()
            except BaseException as problem:
                result.set_exception(problem)
            else:
                result.set_result(value)
        return item is not None

    def _run_together(self, offers: list[Offer]) -> None:
        """Nothing that goes wrong in a round ends this thread; callers still waiting learn that the
        outcome is unknown.
        """
        try:
            self._run_round(offers)
        except Exception as problem:
            for offer in offers:
                offer.give(
                    CarrierError(
                        f"the server failed in the middle of a round ({cause_of(problem)}): "
                        "offer this again"
                    )
                )

    def close(self) -> None:
        """Do what is waiting, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self.catch_up()
