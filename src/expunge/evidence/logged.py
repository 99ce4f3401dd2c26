"""An entry of the audit log together with the proof that it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge import canonical
from expunge.errors import EvidenceError
from expunge.evidence import entry as entries
from expunge.evidence import fields, merkle
from expunge.evidence.checkpoint import Checkpoint

_POSITION = {"index": fields.count, "proof": fields.lists(fields.digest)}
check_position = fields.objects(_POSITION)
_CHECK = fields.objects({**_POSITION, "entry": lambda value, _: entries.checked(value)})


@dataclass(frozen=True)
class Logged:
    """Entry number `index` of a log, with its inclusion proof in some checkpoint of it."""

    entry: dict[str, Any]
    index: int
    proof: tuple[bytes, ...]

    @classmethod
    def of(cls, entry: bytes, index: int, proof: Sequence[bytes]) -> Logged:
        """From the entry's bytes as the log has them."""
        return cls(entries.read(entry), index, tuple(proof))

    @classmethod
    def at(cls, entry: object, position: object) -> Logged:
        """From an entry's object and the position {"index", "proof"} that stands beside it."""
        parts = check_position(position, "a position in the log")
        return cls(entries.checked(entry), parts["index"], tuple(bytes.fromhex(text) for text in parts["proof"]))

    def position(self) -> dict[str, Any]:
        """Index and proof as a JSON value."""
        return {"index": self.index, "proof": [sibling.hex() for sibling in self.proof]}

    def to_json(self) -> dict[str, Any]:
        """The three parts as one JSON value."""
        return {"entry": self.entry, **self.position()}

    @classmethod
    def from_json(cls, value: object) -> Logged:
        """The inverse of `to_json`."""
        parts = _CHECK(value, "an entry with its proof")
        return cls(parts["entry"], parts["index"], tuple(bytes.fromhex(text) for text in parts["proof"]))

    def verify(self, checkpoint: Checkpoint) -> None:
        """Raise EvidenceError unless exactly this entry stands at this place of the checkpoint's log."""
        leaf = merkle.leaf_hash(canonical.encode(self.entry))
        try:
            merkle.verify_inclusion(leaf, self.index, checkpoint.size, self.proof, checkpoint.root)
        except EvidenceError as problem:
            raise EvidenceError(f"the {self.entry['kind']!r} entry is not in the log as claimed: {problem}") from problem
