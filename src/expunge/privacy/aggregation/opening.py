"""Opening: what a round of secure aggregation is, before anybody has joined it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from expunge import canonical
from expunge.errors import FormatError
from expunge.protocol.names import FEDERATION_DIGITS, checked_digest, checked_hex

PURPOSES = ("change", "audit", "rebuild")
ROUND_DIGITS = 32
_KEYS = frozenset({"federation", "round", "purpose", "data_digest", "labels_digest"})


@dataclass(frozen=True)
class Opening:
    """One round: its federation, its own id, what it is for, and the spec under which vectors are made."""

    federation: str
    round: str
    purpose: str
    data_digest: str
    labels_digest: str

    def __post_init__(self) -> None:
        checked_hex(self.federation, FEDERATION_DIGITS, "the federation of a round")
        checked_hex(self.round, ROUND_DIGITS, "the id of a round")
        checked_digest(self.data_digest, "the data digest of a round")
        checked_digest(self.labels_digest, "the labels digest of a round")
        if self.purpose not in PURPOSES:
            raise FormatError(f"the purpose of a round must be one of {', '.join(PURPOSES)}, got {self.purpose!r:.40}")

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Opening:
        """The inverse of `to_json`; FormatError for anything else."""
        return cls(**canonical.require_keys(value, "the opening of a round", _KEYS))
