"""Carrier: whoever brings bytes to the server and its answers back.

A carrier may lose, repeat, delay or cut short; what it carries is signed. Each method returns the
server's bytes, or raises RefusedError (the server said no; nothing has changed) or CarrierError (no
answer came; the request may or may not have taken effect, so the same bytes must be offered again).
What was damaged on the way and is carried all the same is noticed by `delivery`.
"""

from __future__ import annotations

from typing import Protocol


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
