"""The local carrier, with the seconds of each phase at the service."""

from __future__ import annotations

from collections.abc import Callable

from expunge.transport.local import LocalCarrier


class TimedCarrier(LocalCarrier):
    """`timing` receives, for each answered request, the seconds of each phase."""

    timing: Callable[[dict[str, float]], object]

    def request(self, data: bytes) -> bytes:
        """As the service, timed."""
        offer = self.take(data)
        answer = offer.answer.result()
        self.timing(offer.seconds)
        return answer
