"""Scrubs: everything in a store is read, and compared with what it must agree with.

What nobody reads for years may be damaged for years: evidence, tags, the share of a client that is
silent. A scrub reads all of it. What is kept twice, or is authenticated, can be put right: indexes
from their tables, tags from sealed names, hashes from entries, and one flipped bit from whatever it
was sealed or hashed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from expunge.errors import ExpungeError

Progress = Callable[[str, int, int | None], None]
_INDEX_ONLY = ("missing from index", "wrong # of entries in index", "non-unique entry in index")


def no_progress(_: str, __: int, ___: int | None) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Damage:
    """Something that is damaged.

    Attributes
    ----------
    what : str
        The part of the store: `"database"`, `"samples"`, `"receipts"`, ...
    text : str
        What is wrong with it; nothing personal.
    repaired : bool
        Whether it has been put right.
    remedy : str
        What to do if it has not.
    """

    what: str
    text: str
    repaired: bool = False
    remedy: str = ""


@dataclass
class ScrubResult:
    """What a scrub has read and found.

    Attributes
    ----------
    read : dict of str to int
        How many of each kind were read.
    findings : list of Damage
        What was damaged; empty if all is whole.
    """

    read: dict[str, int] = field(default_factory=dict)
    findings: list[Damage] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged any more."""
        return all(finding.repaired for finding in self.findings)


class _Checked(Protocol):
    """A store that can look at its own files."""

    @property
    def remedy(self) -> str:
        """What to do if they are damaged."""
        ...

    def damage(self) -> list[str]:
        """What is wrong with them."""
        ...

    def rebuild_indexes(self) -> bool:
        """Make anew what only helps to find things; whether there is such a thing."""
        ...


class Scrub:
    """One scrub of one store, step by step; `repair` says whether damage is to be put right."""

    def __init__(self, *, repair: bool, progress: Progress = no_progress) -> None:
        self.repair = repair
        self.result = ScrubResult()
        self._progress = progress

    def count(self, what: str, done: int, total: int | None = None) -> None:
        """So many of something have been read."""
        self.result.read[what] = done
        self._progress(what, done, total)

    def found(self, what: str, text: str, *, repaired: bool = False, remedy: str = "") -> None:
        """Note that something is damaged."""
        self.result.findings.append(Damage(what, text, repaired, "" if repaired else remedy))

    def attempt(self, what: str, step: Callable[[], None], remedy: str) -> None:
        """Take a step; that it cannot be taken is a finding, also where a value is so damaged that
        it is of no use.
        """
        try:
            step()
        except (ExpungeError, OSError) as problem:
            self.found(what, str(problem), remedy=remedy)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as problem:
            text = f"a value is not what it must be: {type(problem).__name__}"
            self.found(what, text, remedy=remedy)

    def database(self, database: _Checked) -> None:
        """The file of a database; indexes are made anew from their tables."""
        problems = database.damage()
        of_indexes = [text for text in problems if any(words in text for words in _INDEX_ONLY)]
        mended = False
        if self.repair and of_indexes:
            mended = database.rebuild_indexes()
            problems = [*of_indexes, *database.damage()]
        for text in problems:
            is_index = text in of_indexes
            self.found(
                "database",
                text,
                repaired=mended and is_index,
                remedy="its indexes can be made anew (--repair)" if is_index else database.remedy,
            )
        self.count("database", 1, 1)


def one_bit_off(data: bytes) -> Iterator[bytes]:
    """All bytes that differ from these by one bit."""
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
