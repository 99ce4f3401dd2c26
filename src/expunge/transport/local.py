"""The local carrier: the whole service in this process, with its folder, signatures and bytes.

The embedded default. Nothing is skipped: what a client offers is encoded, signed, journalled,
logged and receipted as over a network, and the server's folder can be served by `expunge serve`
afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path

from expunge.server.service import Service
from expunge.server.state import Settings


class LocalCarrier:
    """Carries to a service in this process.

    With a path it opens the service, and closes it (after erasing at rest).

    `timing` is told, for each request that was answered, the seconds of each phase at the service.
    """

    def __init__(
        self,
        server: Service | Path,
        *,
        settings: Settings | None = None,
        mirrors: Sequence[Path] = (),
        timeout: float = 10.0,
        timing: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self._timing = timing
        self._owned = isinstance(server, Path)
        if isinstance(server, Service):
            self.service = server
        else:
            self.service = Service.open(server, settings=settings, mirrors=mirrors, timeout=timeout)

    def federation(self) -> bytes:
        """The envelope `federation`."""
        return self.service.federation()

    def enrol(self, data: bytes) -> bytes:
        """Offer an enrolment."""
        return self.service.enrol(data)

    def request(self, data: bytes) -> bytes:
        """Offer a client's request."""
        offer = self.service.take(data)
        answer = offer.answer.result()
        if self._timing is not None:
            self._timing(offer.seconds)
        return answer

    def sync(self, data: bytes) -> bytes:
        """Ask what is new."""
        return self.service.sync(data)

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation; one that only asks may wait until something
        has changed.
        """
        rounds = self.service.aggregations
        standing = rounds.turn(data)
        end = time.monotonic() + standing.wait
        while standing.waiting and (left := end - time.monotonic()) > 0.0:
            change = rounds.change_after(standing.version)
            wait([change], timeout=min(left, standing.due))
            change.cancel()
            standing = rounds.turn(data)
        return standing.data

    def command(self, data: bytes) -> bytes:
        """Offer a command, or ask."""
        return self.service.command(data)

    def head(self, known: str | None = None) -> bytes | None:
        """The published head, unless it is known."""
        return self.service.head(known)

    def checkpoint(self) -> bytes:
        """The envelope `checkpoint`."""
        return self.service.checkpoint()

    def entries(self, start: int, end: int) -> list[bytes]:
        """Entries of the audit log."""
        return self.service.entries(start, end)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """An inclusion proof."""
        return self.service.inclusion(index, size)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """A consistency proof."""
        return self.service.consistency(first, second)

    def close(self) -> None:
        """Let go; a service that this carrier opened is closed."""
        if self._owned:
            self.service.close(fold=True)
