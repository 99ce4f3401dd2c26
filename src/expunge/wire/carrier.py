"""Carrier: the interface that brings bytes to the server and its answers back.

A carrier may lose, repeat, delay or truncate what it carries; all of it is signed. Each method
returns the server's bytes, or raises RefusedError (the server refused; nothing has changed) or
CarrierError (no answer came; the request may or may not have taken effect, so the same bytes must
be offered again).

Both sides tell bytes that were damaged on the way from bytes that are wrong. Law: a refusal that
may be given before a signature has been checked names the SHA-256 of the bytes that it answers
(`to`), as a standing does; it is empty if they did not all arrive. If those are not the bytes that
were sent, the refusal says nothing about them, and they must be offered again. A truncated answer
says nothing either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Protocol, TypeVar

from expunge._lazy import public_dir
from expunge.errors import CarrierError, RefusedError
from expunge.wire.refusals import UNPROVEN

__all__ = ["Carrier"]
__dir__ = public_dir(__name__)

_Self = TypeVar("_Self")
_Data = TypeVar("_Data", bound=bytes | memoryview)
_Answer = TypeVar("_Answer")


class Carrier(Protocol):
    """The interface between a client or office and its server: bytes in, the server's bytes out.

    Implement these methods to reach a server by another way; no base class is needed. `HttpCarrier`
    (a server elsewhere), `LocalCarrier` (a server in this process) and the Flower carrier are such
    implementations. Requests and answers are the bytes of docs/protocol.md.

    An implementation follows three laws:

    - A method returns the server's bytes unchanged, raises `RefusedError` if the server refused, or
      raises `CarrierError` if no whole answer came. It never invents an answer.
    - A `RefusedError` says that this attempt changed nothing at the server. Anything uncertain is a
      `CarrierError`: the caller then offers the same bytes again.
    - Offering the same bytes twice is harmless: the server applies a numbered request once and
      gives the same answer again. A carrier may therefore repeat what got no answer.

    Notes
    -----
    A carrier need not be trusted: requests are signed by their sender, answers by the server, and
    agents and offices verify them against the server's pinned key. A carrier can delay or suppress
    traffic, and read what it carries unless the connection is encrypted.

    Examples
    --------
    A carrier that passes everything on and records the calls:

    >>> class RecordingCarrier:
    ...     def __init__(self, carrier):
    ...         self.carrier, self.calls = carrier, []
    ...     def __getattr__(self, name):
    ...         self.calls.append(name)
    ...         return getattr(self.carrier, name)

    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.client import Agent
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> store = federation.client("north").store
    >>> store.add(["a"], [[1.0, 0.5]], ["cat"], now=0.0)
    1
    >>> carrier = RecordingCarrier(federation.carrier)
    >>> receipts = Agent(store, carrier).push()
    >>> carrier.calls
    ['request']
    >>> federation.close()
    >>> folder.cleanup()
    """

    def federation(self) -> bytes:
        """Fetch what the server says of its federation: spec, limits, server key and its rotations.

        Returns
        -------
        bytes
            An envelope of kind `federation`.

        Raises
        ------
        CarrierError
            No answer came.
        """
        ...

    def enrol(self, data: bytes) -> bytes:
        """Offer the enrolment of a key; the same enrolment again gets the same answer.

        Parameters
        ----------
        data : bytes
            An envelope of kind `enrolment`.

        Returns
        -------
        bytes
            An envelope of kind `enrolled`.

        Raises
        ------
        RefusedError
            The server does not take the key in.
        CarrierError
            No answer came: offer the same bytes again.
        """
        ...

    def request(self, data: bytes) -> bytes:
        """Offer a client's numbered request, which is applied once.

        Parameters
        ----------
        data : bytes
            The signed request.

        Returns
        -------
        bytes
            An envelope of kind `receipt`.

        Raises
        ------
        RefusedError
            The server refused; this attempt changed nothing.
        CarrierError
            No answer came: offer the same bytes again.
        """
        ...

    def sync(self, data: bytes) -> bytes:
        """Ask what is new for an actor: orders, audits, amendments, rotations, the checkpoint.

        Parameters
        ----------
        data : bytes
            An envelope of kind `question`.

        Returns
        -------
        bytes
            An envelope of kind `answer`.

        Raises
        ------
        RefusedError
            The server refused.
        CarrierError
            No answer came.
        """
        ...

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation.

        Parameters
        ----------
        data : bytes
            An envelope of kind `turn`, or the binary message of a phase.

        Returns
        -------
        bytes
            An envelope of kind `standing`; it may take as long as the turn allows the server to
            wait.

        Raises
        ------
        RefusedError
            The server refused, or the federation does not use secure aggregation.
        CarrierError
            No answer came: offer the same bytes again.
        """
        ...

    def command(self, data: bytes) -> bytes:
        """Offer a numbered command of an operator or officer, which is applied once, or ask a
        question (sequence 0), which changes nothing.

        Parameters
        ----------
        data : bytes
            An envelope of kind `command`.

        Returns
        -------
        bytes
            An envelope of kind `result`.

        Raises
        ------
        RefusedError
            The server refused; this attempt changed nothing.
        CarrierError
            No answer came: offer the same bytes again.
        """
        ...

    def head(self, known: str | None = None) -> bytes | None:
        """Fetch the published head with its certificate.

        Parameters
        ----------
        known : str or None, default None
            The digest of a head that the caller holds.

        Returns
        -------
        bytes or None
            The file of the head; None if the current head is the known one.

        Raises
        ------
        RefusedError
            There is no head to publish (code `unsolvable`).
        CarrierError
            No answer came.
        """
        ...

    def checkpoint(self) -> bytes:
        """Fetch the size and root of the audit log as they are now.

        Returns
        -------
        bytes
            An envelope of kind `checkpoint`.

        Raises
        ------
        CarrierError
            No answer came.
        """
        ...

    def entries(self, start: int, end: int) -> list[bytes]:
        """Fetch consecutive entries of the audit log.

        Parameters
        ----------
        start : int
            The index of the first entry, counted from 0.
        end : int
            The index after the last entry.

        Returns
        -------
        list of bytes
            Entries from `start` on; the server may answer with fewer than were asked for.

        Raises
        ------
        RefusedError
            The range is not one.
        CarrierError
            No answer came.
        """
        ...

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Fetch the proof that an entry is in the log of a given size (RFC 9162).

        Parameters
        ----------
        index : int
            The index of the entry, counted from 0.
        size : int
            The size of the log that the proof is for.

        Returns
        -------
        list of bytes
            Hashes of 32 bytes each.

        Raises
        ------
        RefusedError
            The log has no such entry at that size.
        CarrierError
            No answer came.
        """
        ...

    def consistency(self, first: int, second: int) -> list[bytes]:
        """Fetch the proof that the log of one size continues the log of a smaller size (RFC 9162).

        Parameters
        ----------
        first : int
            The smaller size.
        second : int
            The larger size.

        Returns
        -------
        list of bytes
            Hashes of 32 bytes each.

        Raises
        ------
        RefusedError
            The log never had these sizes.
        CarrierError
            No answer came.
        """
        ...

    def close(self) -> None:
        """Release connections and files."""
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
    """A carrier whose damaged requests and answers are CarrierErrors, as if they had been lost.

    The published head is checked by its reader, and lists by the carriers that take them apart.
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
        """Close connections."""
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
    """A truncated envelope is not valid JSON, wherever it was cut."""
    try:
        json.loads(answer)
    except (ValueError, RecursionError) as problem:
        raise CarrierError("the answer was damaged on the way: offer the same again") from problem
    return answer
