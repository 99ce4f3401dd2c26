"""The forwarder: keeps an aggregator in step with the server above, in a thread of its own, while its group is served."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from expunge.errors import ExpungeError
from expunge.tree.aggregator import Aggregator

Report = Callable[[str, BaseException | None], None]


class Forwarder:
    """Syncs an aggregator every so many seconds. What fails is reported, and tried again the next time; nothing is lost."""

    def __init__(self, aggregator: Aggregator, every: float, report: Report) -> None:
        self._aggregator = aggregator
        self._every = every
        self._report = report
        self._stop = Event()
        self._thread = Thread(target=self._run, name="forwarder", daemon=True)

    def start(self) -> None:
        """Begin, with a sync at once."""
        self._thread.start()

    def stop(self) -> None:
        """Come to an end, after what is being done."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                done = self._aggregator.sync()
                if done.receipts:
                    self._report(f"forwarded to the server above: {len(done.receipts)} requests receipted", None)
            except (ExpungeError, OSError) as problem:
                self._report("what the group has changed could not be forwarded yet", problem)
            if self._stop.wait(self._every):
                return
