"""The relay: a carrier whose answers are those at hand; what they do not answer is noted, to be carried later.

Laws: an answer is given once, as over a network; a call without an answer is noted, once, and raises NotYet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from expunge.carriers.flower.calls import CALLS, Call, Reply
from expunge.errors import CarrierError
from expunge.protocol.carrier import Carrier


class NotYet(CarrierError):  # noqa: N818 - not a fault
    """The call is on its way, and its answer comes when the agent is run again."""


class Relay:
    """A carrier over answers at hand; `answered` counts, by name, the calls that had one."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self._replies = {reply.call: reply for reply in replies}
        self._noted: dict[str, Call] = {}
        self._used: dict[str, Call] = {}
        self.answered: Counter[str] = Counter()

    @property
    def carrier(self) -> Carrier:
        """The relay as the carrier that it is: it has every method of one, by `__getattr__`."""
        return cast("Carrier", self)

    @property
    def noted(self) -> tuple[Call, ...]:
        """The calls without an answer, in the order in which they are to be made; one made again comes last."""
        return tuple(self._noted.values())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CALLS:
            raise AttributeError(f"a carrier has no {name!r}")
        return partial(self._call, name)

    def _call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        call = Call.of(name, *arguments, **named)
        digest = call.digest
        reply = self._replies.pop(digest, None)
        if reply is not None:
            self.answered[name] += 1
            self._used[digest] = call
            return reply.result()
        self._noted.pop(digest, None)
        self._noted[digest] = call
        raise NotYet(f"the call {name!r} is on its way: run the agent again when its answer is here")

    def interrupt(self) -> None:
        """From now on, everything is noted; and what was only read is noted again, for the next run must read it again."""
        self._replies.clear()
        reads = {digest: call for digest, call in self._used.items() if not any(isinstance(one, bytes) for one in call.arguments)}
        self._noted = reads | self._noted

    def close(self) -> None:
        """Nothing is held."""
