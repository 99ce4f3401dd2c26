"""Aggregation: the rules of exact secure aggregation that every party of a federation agrees on.

Degree and threshold of a round follow from these rules and the number of its clients (`privacy/aggregation/plan.py`); nobody is
told them by the server.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from expunge.errors import SpecError

_RANGES = {
    "fewest": (2, 1 << 20),
    "dropouts": (0, 99),
    "colluding": (0, 99),
    "security_bits": (1, 128),
    "completion_bits": (1, 128),
}


@dataclass(frozen=True)
class Aggregation:
    """The rules of secure aggregation.

    - `fewest`: no sum of fewer clients is ever unmasked.
    - `dropouts`: per cent of a round's clients that may drop out of it.
    - `colluding`: per cent of a round's clients that may collude with the server.
    - `security_bits`: with so many colluding and dropping out, more than the sum can be learnt with probability at most
      2^-security_bits.
    - `completion_bits`: with so many dropping out, the round has to be aborted with probability at most 2^-completion_bits.
    """

    fewest: int = 3
    dropouts: int = 30
    colluding: int = 10
    security_bits: int = 40
    completion_bits: int = 20

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise SpecError(f"{name}={value!r:.80} of the aggregation must be an integer between {least} and {most}")
            if not least <= int(value) <= most:
                raise SpecError(f"{name}={int(value)} of the aggregation must lie between {least} and {most}")
            object.__setattr__(self, name, int(value))
        if self.dropouts + self.colluding >= 100:
            raise SpecError(
                f"dropouts={self.dropouts} and colluding={self.colluding} of the aggregation are together 100 per cent or more: "
                "no honest client would be left to protect. Lower one of them"
            )

    def to_dict(self) -> dict[str, int]:
        """A JSON-ready form; `from_dict` is its inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Aggregation:
        """The inverse of `to_dict`; unknown or missing keys are refused by name."""
        expected = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != expected:
            found = set(content) if isinstance(content, dict) else set()
            raise SpecError(
                f"an aggregation must be an object with exactly the keys {sorted(expected)}; "
                f"missing: {sorted(expected - found)}, unknown: {sorted(map(str, found - expected))}"
            )
        return cls(**content)
