"""What a file of evidence says, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

STANDS = "It cannot be taken back: every later checkpoint that is consistent with this one contains it."


@dataclass(frozen=True)
class Finding:
    """What a file of evidence that holds says, in plain words. Every string is safe to print."""

    kind: str
    title: str
    facts: list[tuple[str, str]]
    proved: list[str]
    assumptions: list[str]
    not_proved: list[str]
