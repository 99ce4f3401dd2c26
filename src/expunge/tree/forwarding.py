"""What an aggregator has forwarded, and what is on its way: the group's ledger at a place of the group's log.

Law: what counts as forwarded is what the server above has receipted, also after a crash at any point. Each state is sealed and
its predecessor's key destroyed: the difference of two of them is what the group has deleted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from expunge.client import ClientStore
from expunge.errors import FormatError
from expunge.signing import Envelope
from expunge.spec import Spec
from expunge.statistics import Statistics

_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True)
class Forwarded:
    """The group's ledger as a request brought it to the server above, and the size of the group's log then."""

    sequence: int
    size: int
    statistics: Statistics

    def to_bytes(self) -> bytes:
        """For the store."""
        return _HEADER.pack(self.sequence, self.size) + self.statistics.to_bytes()

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes | None) -> Forwarded:
        """The inverse of `to_bytes`; nothing was forwarded if there is nothing."""
        if data is None:
            return cls(0, 0, Statistics.zero(spec))
        if len(data) < _HEADER.size:
            raise FormatError("what was forwarded is damaged: rebuild the aggregator from its group")
        sequence, size = _HEADER.unpack_from(data)
        return cls(sequence, size, Statistics.from_bytes(spec, data[_HEADER.size :]))


class Forwarding:
    """The two states in the store of an aggregator."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    def settled(self) -> Forwarded:
        """What has been forwarded. What was on its way counts as soon as its receipt is here."""
        store = self._store
        data = store.forwarding.kept()
        if data is not None:
            under_way = Forwarded.from_bytes(store.spec, data)
            if self.is_receipted(under_way.sequence):
                store.forwarded.keep(data)
                store.forwarding.drop()
            elif store.composed() is None:  # it was abandoned, or never composed
                store.forwarding.drop()
        return Forwarded.from_bytes(store.spec, store.forwarded.kept())

    def begin(self, state: Forwarded) -> None:
        """Note what is on its way with the request of this number."""
        self._store.forwarding.keep(state.to_bytes())

    def is_receipted(self, sequence: int) -> bool:
        """Whether a group message of this number is: a number whose request was abandoned may have been used for another."""
        receipt = self._store.documents("receipt").get(sequence)
        if receipt is None:
            return False
        return bool(Envelope.from_bytes(receipt, "receipt").unverified()["entry"].get("message") == "group")
