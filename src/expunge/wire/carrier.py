"""Carrier: whoever brings bytes to the server and its answers back.

A carrier may lose, repeat, delay or cut short; what it carries is signed. Each method returns the
server's bytes, or raises RefusedError (the server said no; nothing has changed) or CarrierError (no
answer came; the request may or may not have taken effect, so the same bytes must be offered again).

Both sides tell bytes that were damaged on the way from bytes that are wrong. Law: a refusal that
may be given before a signature has been checked names the SHA-256 of the bytes that it answers
(`to`), as a standing does; it is empty if they did not all arrive. If those are not the bytes that
were sent, the refusal says nothing about them, and they must be offered again. An answer that ends
too early says nothing either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Protocol, TypeVar

from expunge.errors import CarrierError, RefusedError
from expunge.wire.refusals import UNPROVEN

_Self = TypeVar("_Self")
_Data = TypeVar("_Data", bound=bytes | memoryview)
_Answer = TypeVar("_Answer")


class Carrier(Protocol):
    """The ways to the server."""

    def federation(self) -> bytes:
        """The envelope `federation`: spec, limits, server key and its rotations."""
        ...

    def enrol(self, data: bytes) -> bytes:
        """Offer an enrolment; answered by the envelope `enrolled`."""
        ...

    def request(self, data: bytes) -> bytes:
        """Offer a client's request; answered by the envelope `receipt`."""
        ...

    def sync(self, data: bytes) -> bytes:
        """Ask what is new; answered by the envelope `answer`."""
        ...

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation; answered by the envelope `standing`."""
        ...

    def command(self, data: bytes) -> bytes:
        """Offer a command of an operator or officer, or ask (sequence 0); answered by the envelope
        `result`.
        """
        ...

    def head(self, known: str | None = None) -> bytes | None:
        """The published head with its certificate; None if its digest is `known`."""
        ...

    def checkpoint(self) -> bytes:
        """The envelope `checkpoint`."""
        ...

    def entries(self, start: int, end: int) -> list[bytes]:
        """Entries of the audit log with start <= index < end; the server may answer with fewer."""
        ...

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof that an entry is in the log of that size."""
        ...

    def consistency(self, first: int, second: int) -> list[bytes]:
        """The proof that the log of size `second` continues that of size `first`."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


# -- the server ------------------------------------------------------------------------------------


@contextmanager
def refusals_to(data: bytes | memoryview) -> Iterator[None]:
    """Refusals from within name these bytes, unless who sent them has been proven."""
    try:
        yield
    except RefusedError as refusal:
        if refusal.code in UNPROVEN and "to" not in refusal.details:
            refusal.details["to"] = hashlib.sha256(data).hexdigest()
        raise


def answers_bytes(
    method: Callable[[_Self, _Data], _Answer],
) -> Callable[[_Self, _Data], _Answer]:
    """The method, with refusals that name the bytes it was given."""

    @wraps(method)
    def answer(self: _Self, data: _Data) -> _Answer:
        with refusals_to(data):
            return method(self, data)

    return answer


# -- clients and offices ---------------------------------------------------------------------------


class CheckedCarrier:
    """The same carrier, on which whatever was damaged on the way is lost: CarrierError.

    The published head is checked by whoever reads it, and lists by the carriers that take them
    apart.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def federation(self) -> bytes:
        """The envelope `federation`."""
        return _whole(self._carrier.federation())

    def enrol(self, data: bytes) -> bytes:
        """Offer an enrolment."""
        return _delivered(self._carrier.enrol, data)

    def request(self, data: bytes) -> bytes:
        """Offer a client's request."""
        return _delivered(self._carrier.request, data)

    def sync(self, data: bytes) -> bytes:
        """Ask what is new."""
        return _delivered(self._carrier.sync, data)

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation."""
        return _delivered(self._carrier.aggregate, data)

    def command(self, data: bytes) -> bytes:
        """Offer a command, or ask."""
        return _delivered(self._carrier.command, data)

    def head(self, known: str | None = None) -> bytes | None:
        """The published head, unless it is known."""
        return self._carrier.head(known)

    def checkpoint(self) -> bytes:
        """The envelope `checkpoint`."""
        return _whole(self._carrier.checkpoint())

    def entries(self, start: int, end: int) -> list[bytes]:
        """Entries of the audit log."""
        return self._carrier.entries(start, end)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """An inclusion proof."""
        return self._carrier.inclusion(index, size)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """A consistency proof."""
        return self._carrier.consistency(first, second)

    def close(self) -> None:
        """Let go of connections."""
        self._carrier.close()


def _delivered(send: Callable[[bytes], bytes], data: bytes) -> bytes:
    try:
        return _whole(send(data))
    except RefusedError as refusal:
        # A server that does not name what it answers is believed: its version may be an older one.
        if refusal.details.get("to", digest := hashlib.sha256(data).hexdigest()) == digest:
            raise
        why = f"what was sent was damaged on the way ({refusal.reason}): offer the same again"
        raise CarrierError(why) from refusal


def _whole(answer: bytes) -> bytes:
    """An envelope that was cut short is no JSON any more, wherever it was cut."""
    try:
        json.loads(answer)
    except (ValueError, RecursionError) as problem:
        raise CarrierError("the answer was damaged on the way: offer the same again") from problem
    return answer
