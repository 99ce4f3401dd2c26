"""How far an agent has come: what it has sent, what it waits for, what it has recomputed; for bars that people watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from expunge.cli.screen import Bars
from expunge.client import ClientStore
from expunge.errors import ExpungeError
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier

SENDING, RECOMPUTING = "Sending samples", "Recomputing for the audit"
ROUND = "Round"
_PHASES = {
    "sharing": "shares of keys are exchanged",
    "masking": "masked sums are sent",
    "revealing": "the masks of the sum are taken off",
}


def watched(store: ClientStore, carrier: Carrier, show: Bars) -> Carrier:
    """The same carrier; whenever a request is answered, `show` hears how many samples were sent, of all there are to send."""
    return cast("Carrier", _Watched(store, carrier, show))


class _Watched:
    """Whatever else is asked of it, the carrier does itself."""

    def __init__(self, store: ClientStore, carrier: Carrier, show: Bars) -> None:
        self._store = store
        self._carrier = carrier
        self._show = show
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def request(self, data: bytes) -> bytes:
        """Offer a request. Its samples are pending until it is settled, which is after this returns."""
        composition = self._store.composed()
        samples = 0 if composition is None else composition.added + composition.deleted
        if not samples:
            return self._carrier.request(data)
        standing = self._store.status()
        total = self._sent + max(samples, standing.adding + standing.deleting)
        self._show(SENDING, self._sent, total)
        answer = self._carrier.request(data)
        self._sent += samples
        self._show(SENDING, self._sent, total)
        return answer

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation, and show how the round stands."""
        answer = self._carrier.aggregate(data)
        standing = how_it_stands(answer)
        if standing:
            self._show(f"{ROUND}: {standing}", 0, None)
        return answer


def how_it_stands(answer: bytes) -> str:
    """The state of a round in a few words, for people who wait; the agent is the one to judge the answer."""
    try:
        _, content = speech.overheard("standing", answer)
    except ExpungeError:
        return ""
    if content["phase"] == "joining":
        return f"{content['joined']} of at least {content['fewest']} clients are here"
    return _PHASES.get(content["phase"], "")


def recomputed(store: ClientStore, show: Bars) -> Callable[[int], None]:
    """Hears how many samples an audit has gone through."""

    def heard(done: int) -> None:
        standing = store.status()
        show(RECOMPUTING, done, max(done, standing.live + standing.deleting))

    return heard
