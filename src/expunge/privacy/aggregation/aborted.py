"""The end of a round without a sum."""

from __future__ import annotations

from expunge.errors import ProtocolError


class Aborted(ProtocolError):  # noqa: N818 - the word for it in the protocol
    """A round that cannot come to its sum: nothing is learnt or applied. `reason` says who or what was missing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
